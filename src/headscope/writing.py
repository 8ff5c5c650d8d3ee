"""Files that are written whole or not at all: what was there stays until the new one is finished."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headscope.errors import HeadscopeError


@contextmanager
def replacing(path: Path, error: type[HeadscopeError]) -> Iterator[Path]:
    """A file beside `path` to write to; on leaving it takes that place, after an exception it is gone."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield waiting
        os.replace(waiting, path)
    except OSError as reason:
        raise error(f"{path}: cannot be written: {reason.strerror or reason}") from None
    finally:
        with suppress(OSError):  # where nothing could be written there is nothing to take away
            waiting.unlink()


def write_whole(path: Path, content: bytes, error: type[HeadscopeError]) -> Path:
    """Write a file."""
    with replacing(path, error) as waiting:
        waiting.write_bytes(content)
    return path

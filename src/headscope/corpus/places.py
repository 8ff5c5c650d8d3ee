"""Where files lie: local paths and, through fsspec, any `scheme://…` whose driver is installed."""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeVar, cast

from headscope.errors import CorpusError

SHOWN = 200
"""characters of a source that an error message repeats"""
PIECE = 2**18
"""bytes of a remote file that are asked for at once"""
CHANGED = ("ETag", "etag", "blob_id", "mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created")
"""where drivers say when a file was last changed, or which version of it this is; the first that is there counts"""

Kind = Literal["file", "folder", "pattern"]
T = TypeVar("T")


@dataclass(frozen=True)
class Stamp:
    """What tells whether a file is still the one it was."""

    size: int
    """in bytes"""
    changed: str
    """when, or which version; empty where the place does not say"""


def is_url(source: str) -> bool:
    """Whether a source is a place that fsspec knows, and not a local path.

    >>> is_url("s3://bucket/a.jsonl"), is_url("hf:wikimedia/wikipedia"), is_url("C:/texts")
    (True, False, False)
    """
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+(::[a-z0-9]+)*://", source) is not None


def plain_name(path: str) -> str:
    """A path in small letters without what a web address says after its name: what endings are looked for in.

    >>> plain_name("https://example.org/A.jsonl.gz?download=1")
    'https://example.org/a.jsonl.gz'
    """
    if re.match(r"https?:/", path):
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    elif re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:/", path):  # `zip://a.jsonl::https://…` is a file in another
        path = path.partition("::")[0]
    return path.lower()


def found(source: str) -> tuple[Kind, list[str]]:
    """The files a source stands for, sorted: itself, those in the folder, hidden ones left out, or what matches."""
    return _found_there(source) if is_url(source) else _found_here(source)


def stamp(path: str) -> Stamp | None:
    """Size and last change of a file; None where there is nothing to ask (pipes, standard input, hub datasets)."""
    if is_url(path):
        return _asked(path, _stamp_there)
    if path == "-" or path.startswith(("hf:", "example:")):
        return None
    try:
        held = os.stat(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return Stamp(held.st_size, str(held.st_mtime_ns)) if stat.S_ISREG(held.st_mode) else None


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file's bytes as a stream, a `.gz` unpacked on the way."""
    try:
        with _stream(path) as raw:
            if not plain_name(path).endswith(".gz"):
                yield raw
                return
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                yield cast(BinaryIO, unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: a damaged .gz file: {error}") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _stream(path: str) -> BinaryIO:
    if is_url(path):
        held = _asked(path, lambda system, place: _Guarded(path, system, system.open(place, "rb")))
        return cast(BinaryIO, io.BufferedReader(held, PIECE))
    try:
        return open(path, "rb")
    except ValueError as error:  # a name with NUL in it
        raise _unreadable(path, error) from None


class _Guarded(io.RawIOBase):
    """A remote file whose driver's errors, of many kinds, are told as ours."""

    def __init__(self, path: str, system: Any, there: Any) -> None:
        self.path, self.there = path, there
        self.system = system  # that of an archive closes it when nobody holds it any more

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self.there.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._asked(lambda: self.there.seek(offset, whence)))

    def tell(self) -> int:
        return int(self._asked(self.there.tell))

    def readinto(self, buffer: Any) -> int:
        got: bytes = self._asked(lambda: self.there.read(len(buffer)))
        buffer[: len(got)] = got
        return len(got)

    def close(self) -> None:
        if not self.closed:
            with suppress(Exception):  # what was read is read
                self.there.close()
        super().close()

    def _asked(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise _unreadable(self.path, error) from None


def _found_here(source: str) -> tuple[Kind, list[str]]:
    path = Path(source)
    try:
        # An empty name would be the current folder, one of a text's length is more than a file system takes.
        there = source != "" and path.exists()
    except (OSError, ValueError):
        there = False
    if there and path.is_dir():
        files = (p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path).parts))
        return "folder", sorted(p.as_posix() for p in files)
    if there:
        return "file", [source]
    if glob.has_magic(source) and "\0" not in source:
        # With the same sign between folders everywhere: names stay the same, and their order.
        return "pattern", sorted(p.replace(os.sep, "/") for p in glob.glob(source, recursive=True) if Path(p).is_file())
    raise _absent(source)


def _found_there(source: str) -> tuple[Kind, list[str]]:
    return _asked(source, lambda system, place: _listed(source, system, place))


def _listed(source: str, system: Any, place: str) -> tuple[Kind, list[str]]:
    _, _, chained = source.partition("::")

    def named(path: str) -> str:
        return str(system.unstrip_protocol(path)) + (f"::{chained}" if chained else "")

    web = source.startswith(("http:", "https:"))
    kind = "directory" if web and source.endswith("/") else _kind(system, place)
    if kind == "directory":
        return "folder", sorted(named(p) for p in system.find(place) if not _hidden(_below(p, place)))
    if kind is not None:
        return "file", [source]
    if any(sign in place for sign in ("*[" if web else "*?[")):
        fixed = re.split(r"[*?\[]", place, maxsplit=1)[0].rpartition("/")[0]
        hidden_too = "/." in place.removeprefix(fixed)
        files = [p for p in system.glob(place) if _kind(system, p) == "file"]
        return "pattern", sorted(named(p) for p in files if hidden_too or not _hidden(_below(p, fixed)))
    raise _absent(source)


def _kind(system: Any, place: str) -> str | None:
    try:
        return str(system.info(place)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def _below(path: str, folder: str) -> tuple[str, ...]:
    return PurePosixPath(path.lstrip("/").removeprefix(folder.strip("/"))).parts


def _hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)


def _stamp_there(system: Any, place: str) -> Stamp | None:
    with suppress(Exception):  # not every driver keeps what it was told before
        system.invalidate_cache(place)
    about = system.info(place)
    changed = next((str(about[name]) for name in CHANGED if about.get(name)), "")
    return None if about.get("size") is None else Stamp(int(about["size"]), changed)


def _asked(source: str, question: Callable[[Any, str], T]) -> T:
    """Ask the driver of a place; whatever it raises becomes a sentence."""
    from fsspec.core import url_to_fs

    try:
        system, place = url_to_fs(source)
        return question(system, place)
    except CorpusError:
        raise
    except ImportError as error:
        missing = getattr(error.__cause__, "name", None) or error.name
        needs = f"needs the package {missing}: pip install {missing}" if missing else "needs a driver"
        raise CorpusError(f"{_shown(source)}: {source.partition('://')[0]}:// {needs} ({error})") from None
    except Exception as error:  # every driver has errors of its own
        raise _unreadable(source, error) from None


def _unreadable(path: str, error: Exception) -> CorpusError:
    if isinstance(error, CorpusError):
        return error
    if isinstance(error, FileNotFoundError):
        why = "No such file or directory"
    elif isinstance(error, OSError):
        why = error.strerror or str(error) or type(error).__name__
    else:
        why = f"{type(error).__name__}: {error}"
    return CorpusError(f"{_shown(path)}: cannot be read: {why}")


def _absent(source: str) -> CorpusError:
    return CorpusError(
        f"{_shown(source)!r}: no such file or folder. A text itself is given in a list, or on standard input (-)"
    )


def _shown(source: str) -> str:
    return source if len(source) <= SHOWN else f"{source[:SHOWN]}…"

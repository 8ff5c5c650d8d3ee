"""Files that are written whole or not at all: what was there stays until the new one is finished. And how they open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xarray as xr

from headscope.declared import Refused, check_file
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


def check_folder(folder: Path, error: type[HeadscopeError]) -> None:
    """Make a folder, and make sure that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as reason:
        raise error(
            f"{folder}: cannot write there: {reason.strerror or reason}. Choose another folder with --out"
        ) from None


def load_dataset(source: Path, error: type[HeadscopeError]) -> xr.Dataset:
    """Open a netCDF file."""
    try:
        check_file(source)
        # No file of ours holds times: units that say so are not asked for a calendar.
        return xr.load_dataset(source, engine="h5netcdf", decode_times=False)
    except Refused as reason:
        raise error(f"{source}: not a file that headscope wrote: {reason}") from None
    except Exception as reason:  # h5netcdf and HDF5 raise what they like on files that are not theirs
        raise error(f"{source}: not readable as netCDF: {reason}") from None


def write_whole(path: Path, content: bytes, error: type[HeadscopeError]) -> Path:
    """Write a file."""
    with replacing(path, error) as waiting:
        waiting.write_bytes(content)
    return path

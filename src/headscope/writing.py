"""Files that are written whole or not at all: what was there stays until the new one is finished. And how they open."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xarray as xr

from headscope.declared import Refused, check_file
from headscope.errors import HeadscopeError

SEAL, DIGEST, PIECE = b"\nsealed by headscope: ", 32, 2**20


@contextmanager
def replacing(path: Path, error: type[HeadscopeError]) -> Iterator[Path]:
    """A file beside `path` to write to; on leaving it takes that place, after an exception it is gone."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield waiting
        with open(waiting, "rb") as file:  # on the disk before it takes its place: the power may fail
            os.fsync(file.fileno())
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


def save_dataset(data: xr.Dataset, path: Path, packed: Iterable[Hashable], error: type[HeadscopeError]) -> Path:
    """Write a netCDF file, the variables named in `packed` compressed, and seal it.

    It is made in memory: on a full disk HDF5 crashes. Behind its data comes its own hash, where HDF5 does not look, so
    that anyone reads the file as before.
    """
    encoding = {name: {"zlib": True, "complevel": 4} for name in packed}
    content = bytes(data.to_netcdf(engine="h5netcdf", encoding=encoding))
    return write_whole(path, content + SEAL + hashlib.blake2b(content, digest_size=DIGEST).digest(), error)


def check_seal(path: Path) -> None:
    """Refuse a sealed file that is not what it was: on one that is damaged HDF5 may crash or never come back."""
    size = path.stat().st_size - len(SEAL) - DIGEST
    if size < 0:
        return
    with open(path, "rb") as file:
        file.seek(size)
        end = file.read()
    if end.startswith(SEAL) and end[len(SEAL) :] != _hash(path, size):
        raise Refused("damaged, its hash is wrong")


def _hash(path: Path, size: int) -> bytes:
    """Of the first so many bytes of a file."""
    found = hashlib.blake2b(digest_size=DIGEST)
    with open(path, "rb") as file:
        while size and (piece := file.read(min(size, PIECE))):
            found.update(piece)
            size -= len(piece)
    return found.digest()


def load_dataset(source: Path, error: type[HeadscopeError]) -> xr.Dataset:
    """Open a netCDF file."""
    try:
        check_seal(source)
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

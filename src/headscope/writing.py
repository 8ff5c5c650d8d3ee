"""Files that are written whole or not at all: what was there stays until the new one is finished. And how they open."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xarray as xr

from headscope.declared import Refused, check_file
from headscope.errors import HeadscopeError
from headscope.interrupts import defer_interrupts

SEAL, DIGEST, PIECE = b"\nsealed by headscope: ", 32, 2**20


@contextmanager
def replacing(path: Path, error: type[HeadscopeError]) -> Iterator[Path]:
    """A file beside `path` to write to; on leaving it takes that place, after an exception it is gone.

    Ctrl-C waits until then: a process that ends at once would leave the file behind.
    """
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    with defer_interrupts():
        try:
            yield waiting
            # On the disk before it takes its place: the power may fail. Windows flushes only what is open for writing.
            with open(waiting, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(waiting, path)
        except OSError as reason:
            raise error(f"{path}: cannot be written: {reason.strerror or reason}") from None
        finally:
            with suppress(OSError):  # where nothing could be written there is nothing to take away
                waiting.unlink()


def check_folder(folder: Path, error: type[HeadscopeError]) -> None:
    """Make a folder, and make sure that files can be written there."""
    check_writable(folder, error)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise _cannot_write(folder, reason, error) from None


def check_writable(folder: Path, error: type[HeadscopeError]) -> None:
    """Refuse a folder in which no files can be written, or that cannot be created. Leaves nothing behind."""
    try:
        existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise _cannot_write(folder, reason, error) from None


@contextmanager
def created(folder: Path, error: type[HeadscopeError]) -> Iterator[None]:
    """A context with this folder; on leaving, it and the folders created with it are removed if they are empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise _cannot_write(folder, reason, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()


def _cannot_write(folder: Path, reason: OSError, error: type[HeadscopeError]) -> HeadscopeError:
    return error(f"{folder}: cannot write there: {reason.strerror or reason}. Choose another folder with --out")


def save_dataset(data: xr.Dataset, path: Path, packed: Iterable[Hashable], error: type[HeadscopeError]) -> Path:
    """Write a netCDF file, the variables named in `packed` compressed, and seal it.

    It is made in memory: on a full disk HDF5 crashes. Behind its data comes its own hash, where HDF5 does not look, so
    that anyone reads the file as before.
    """
    encoding = {name: {"zlib": True, "complevel": 4} for name in packed}
    with _netcdf("memory", "w", driver="core", backing_store=False, track_order=True) as (held, store):
        data.dump_to_store(store, encoding=encoding)
        store.ds.flush()
        held.flush()
        content = held.id.get_file_image()
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
        return _read(source)
    except Refused as reason:
        raise error(f"{source}: not a file that headscope wrote: {reason}") from None
    except Exception as reason:  # h5netcdf and HDF5 raise what they like on files that are not theirs
        raise error(f"{source}: not readable as netCDF: {reason}") from None


def _read(source: Path) -> xr.Dataset:
    with _netcdf(source, "r") as (_, store):
        # No file of ours holds times: units that say so are not asked for a calendar.
        return xr.load_dataset(store, engine="store", decode_times=False)


@contextmanager
def _netcdf(place: str | Path, mode: str, **how: Any) -> Iterator[tuple[Any, Any]]:
    """An HDF5 file, and xarray's way to it."""
    import h5netcdf
    import h5py
    from xarray.backends import H5NetCDFStore

    class Known(h5py.File):  # type: ignore[misc]
        """h5netcdf looks a variable up whenever it wants to know anything of it: two thirds of a study's opening."""

        def __getitem__(self, name: Any) -> Any:
            if not isinstance(name, str):
                return super().__getitem__(name)
            if name == "/":
                return self  # so that what is taken away is taken away here
            key = name.lstrip("/")
            if key not in known:
                known[key] = super().__getitem__(name)
            return known[key]

        def __delitem__(self, name: str) -> None:
            known.pop(name.lstrip("/"), None)
            super().__delitem__(name)

    known: dict[str, Any] = {}
    with Known(place, mode, **how) as held, h5netcdf.File(held, mode, decode_vlen_strings=True) as netcdf:
        yield held, H5NetCDFStore(netcdf)
        known.clear()


def write_whole(path: Path, content: bytes, error: type[HeadscopeError]) -> Path:
    """Write a file."""
    with replacing(path, error) as waiting:
        waiting.write_bytes(content)
    return path

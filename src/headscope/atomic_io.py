"""Write files atomically (an existing file stays until its replacement is complete), netCDF files and CSV."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from headscope.errors import HeadscopeError
from headscope.interrupts import defer_interrupts
from headscope.netcdf_validation import InvalidFileError, check_file

if TYPE_CHECKING:
    import pandas as pd

SEAL, DIGEST, BLOCK_SIZE = b"\nsealed by headscope: ", 32, 2**20
FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""how texts begin that a spreadsheet takes for a formula; the last four are full-width forms of the first"""
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextmanager
def replace_atomically(path: Path, error: type[HeadscopeError]) -> Iterator[Path]:
    """Yield a temporary path beside `path`. On leaving, it replaces `path`; after an exception it is deleted.

    Ctrl-C is deferred until then, because a process that ends at once would leave the temporary file behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with defer_interrupts():
        try:
            yield temporary
            # Flushed before it replaces `path`: the power may fail. Windows flushes only files open for writing.
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as reason:
            raise error(f"{path}: cannot be written: {reason.strerror or reason}") from None
        finally:
            with suppress(OSError):  # nothing was written, or it was renamed
                temporary.unlink()


def check_writable(folder: Path, error: type[HeadscopeError]) -> None:
    """Raise an error if files cannot be written in a folder, or if it cannot be created. Leaves nothing behind."""
    try:
        existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise _make_write_error(folder, reason, error) from None


@contextmanager
def create_folder(folder: Path, error: type[HeadscopeError]) -> Iterator[None]:
    """Create a folder; on leaving the context, remove it and its created parents if they are empty."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise _make_write_error(folder, reason, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()


def _make_write_error(folder: Path, reason: OSError, error: type[HeadscopeError]) -> HeadscopeError:
    return error(f"{folder}: cannot write there: {reason.strerror or reason}. Choose another folder with --output")


def save_dataset(data: xr.Dataset, path: Path, packed: Iterable[Hashable], error: type[HeadscopeError]) -> Path:
    """Write a netCDF file, the variables named in `packed` compressed, and seal it.

    It is built in memory, because HDF5 crashes on a full disk. The seal is a hash after the end of the HDF5 data, which
    other readers ignore.
    """
    encoding = {name: {"zlib": True, "complevel": 4} for name in packed}
    with _open_netcdf("memory", "w", driver="core", backing_store=False, track_order=True) as (file, store):
        data.dump_to_store(store, encoding=encoding)
        store.ds.flush()
        file.flush()
        content = file.id.get_file_image()
    return write_atomically(path, content + SEAL + hashlib.blake2b(content, digest_size=DIGEST).digest(), error)


def check_seal(path: Path) -> None:
    """Raise `InvalidFileError` if the hash of a sealed file is wrong: on damaged files HDF5 may crash or hang.

    HDF5 ignores bytes before and after its data. They are refused, because they could displace the seal.
    """
    end = _read_hdf5_end(path)
    trailing = 0 if end is None else path.stat().st_size - end
    if end is None or trailing <= 0:  # HDF5 itself reports files that are cut off
        return
    with open(path, "rb") as file:
        file.seek(end)
        seal = file.read(len(SEAL) + DIGEST)
    if not seal.startswith(SEAL):
        raise InvalidFileError(f"damaged, with {trailing:,} bytes after its end")
    if seal[len(SEAL) :] != _hash_start(path, end):
        raise InvalidFileError("damaged, its hash is wrong")
    if trailing != len(seal):
        raise InvalidFileError(f"damaged, {trailing - len(seal):,} bytes were appended to it")


def _read_hdf5_end(path: Path) -> int | None:
    """Return where the data of an HDF5 file end, according to its superblock; None for other files."""
    with open(path, "rb") as file:
        start = file.read(48)
        if not start.startswith(HDF5_SIGNATURE):
            offset = 512  # where else HDF5 looks for the beginning of its data, and at every power of 2 of it
            while offset < path.stat().st_size:
                file.seek(offset)
                if file.read(len(HDF5_SIGNATURE)) == HDF5_SIGNATURE:
                    raise InvalidFileError(f"damaged, {offset:,} bytes were put before it")
                offset *= 2
            return None
    position = {0: 40, 1: 44, 2: 28, 3: 28}.get(start[8]) if len(start) == 48 else None
    return None if position is None else int.from_bytes(start[position : position + 8], "little")


def _hash_start(path: Path, size: int) -> bytes:
    """Return the hash of the first `size` bytes of a file."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    with open(path, "rb") as file:
        while size and (block := file.read(min(size, BLOCK_SIZE))):
            digest.update(block)
            size -= len(block)
    return digest.digest()


def load_dataset(source: Path, error: type[HeadscopeError]) -> xr.Dataset:
    """Open a netCDF file."""
    try:
        check_seal(source)
        check_file(source)
        return _read(source)
    except InvalidFileError as reason:
        raise error(f"{source}: not a file that headscope wrote: {reason}") from None
    except Exception as reason:  # h5netcdf and HDF5 raise errors of many types on other files
        raise error(f"{source}: not readable as netCDF: {reason}") from None


def _read(source: Path) -> xr.Dataset:
    with _open_netcdf(source, "r") as (_, store):
        # headscope files contain no times, so units are not decoded as calendars.
        return xr.load_dataset(store, engine="store", decode_times=False)


@contextmanager
def _open_netcdf(source: str | Path, mode: str, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Open an HDF5 file; yield it and the xarray store for it."""
    import h5netcdf
    import h5py
    from xarray.backends import H5NetCDFStore

    class CachedFile(h5py.File):  # type: ignore[misc]
        """Caches variables: h5netcdf looks them up at every access, two thirds of the time to open a study."""

        def __getitem__(self, name: Any) -> Any:
            if not isinstance(name, str):
                return super().__getitem__(name)
            if name == "/":
                return self  # so that deletions go through this class
            key = name.lstrip("/")
            if key not in cache:
                cache[key] = super().__getitem__(name)
            return cache[key]

        def __delitem__(self, name: str) -> None:
            cache.pop(name.lstrip("/"), None)
            super().__delitem__(name)

    cache: dict[str, Any] = {}
    with CachedFile(source, mode, **options) as file, h5netcdf.File(file, mode, decode_vlen_strings=True) as netcdf:
        yield file, H5NetCDFStore(netcdf)
        cache.clear()


def format_csv(table: pd.DataFrame) -> str:
    """Return a table as CSV, whose texts no spreadsheet takes for formulas.

    A token such as `=cmd|…` would be executed when the file is opened in one. As OWASP advises, a text that begins with
    one of `= + - @`, a tab or a line break gets a `'` before it; numbers stay as they are. Parquet keeps all texts.
    """
    safe = table.map(lambda value: f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value)
    # A text with a carriage return stays in its row only if it is quoted.
    has_returns = any("\r" in value for column in safe for value in safe[column] if isinstance(value, str))
    quoting: Any = csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL
    return str(safe.to_csv(index=False, lineterminator="\n", quoting=quoting))


def write_atomically(path: Path, content: bytes, error: type[HeadscopeError]) -> Path:
    """Write a file atomically."""
    with replace_atomically(path, error) as temporary:
        temporary.write_bytes(content)
    return path

"""Files: output paths, writing completely or not at all, validation of netCDF before it is read, the cache folder.

Write files atomically (an existing file stays until its replacement is complete); write netCDF files and CSV.

The checks of output paths, called before anything is computed, need none of the libraries that take long to import.

Validate netCDF files: declared sizes before they are read (five kilobytes can declare terabytes), then contents.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import HeadscopeError, ReadingError
from headscope.interrupts import defer_interrupts

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


PACKED, SMALL = 1100, 2**20
"""Largest compression ratio of a file, and bytes that are always accepted."""
Shapes = Mapping[str, tuple[tuple[str, ...], str]]
"""Variables by name: their dimensions, and the allowed kinds of their dtypes (`i`, `f`, or `OU` for text)."""


class InvalidFileError(Exception):
    """A file is not a valid headscope file; the message says why."""


def check_file(source: Path) -> None:
    """Raise `InvalidFileError` for anything but plain arrays, or for arrays larger than file or memory can be."""
    import h5py

    remaining = min(PACKED * source.stat().st_size + SMALL, _measure_memory())
    with h5py.File(source, "r") as file:
        for name in file:
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise InvalidFileError(f"{name!r} is a link to somewhere else")
            dataset = file.get(name)
            if not isinstance(dataset, h5py.Dataset):
                raise InvalidFileError(f"{name!r} is not an array")
            remaining -= _measure_dataset(name, dataset)
            if remaining < 0:
                raise InvalidFileError(
                    f"with {name!r} it declares more than such a file, or this machine's memory, can hold"
                )


def _measure_dataset(name: str, dataset: Any) -> int:
    import h5py

    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not (text or dataset.dtype.kind in "iufb") or dataset.dtype.subdtype is not None:
        raise InvalidFileError(f"{name!r} holds neither numbers nor text")
    if dataset.external or dataset.is_virtual or dataset.compression not in (None, "gzip"):
        raise InvalidFileError(f"{name!r} is stored in a way that headscope does not write")
    if dataset.shape is None:
        return 0
    elements = int(np.prod([int(n) for n in dataset.shape], dtype=object))
    chunk_elements = int(np.prod([int(n) for n in dataset.chunks], dtype=object)) if dataset.chunks else 0
    return max(elements, chunk_elements) * max(8, int(dataset.dtype.itemsize))


def _measure_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**40


def get_scalar_attribute(data: xr.Dataset, name: str) -> Any:
    """Return an attribute as a plain value; None if it is absent or an array of several values."""
    value = data.attrs.get(name)
    return (
        value.item()
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1)
        else (None if isinstance(value, np.ndarray) else value)
    )


def check_arrays(
    data: xr.Dataset, whole: str, needed: Iterable[str], shapes: Shapes, error: type[HeadscopeError]
) -> None:
    """Raise an error if a dataset lacks variables or attributes, or has variables of other dimensions or dtypes.

    Args:
        whole: Beginning of the error message: the file, and what it should be.
        needed: Names of required variables and attributes.
    """
    if absent := [name for name in needed if name not in data.variables and name not in data.attrs]:
        raise error(f"{whole}, but not a whole one: no {', '.join(absent)}")
    for name, (dims, kinds) in shapes.items():
        if name not in data.variables:
            continue
        variable = data.variables[name]
        if variable.dims != dims:
            raise error(f"{whole}, but not a whole one: {name} lies over {variable.dims}, not over {dims}"[:500])
        if variable.size and variable.dtype.kind not in kinds:  # files do not keep the dtype of empty arrays
            raise error(f"{whole}, but not a whole one: {name} holds {variable.dtype}"[:500])
        if kinds == "OU" and not all(isinstance(text, str) for text in np.ravel(variable.values)):
            raise error(f"{whole}, but not a whole one: {name} does not hold text")


def check_numbers(data: xr.Dataset, whole: str, names: Iterable[str], error: type[HeadscopeError]) -> None:
    """Raise an error for attributes that should be numbers and are not."""
    for name in names:
        value = get_scalar_attribute(data, name)
        if name in data.attrs and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise error(f"{whole}, but its {name} is no number")


def check_json(data: xr.Dataset, whole: str, names: Iterable[str], error: type[HeadscopeError]) -> None:
    """Raise an error for attributes that should be JSON and are not."""
    for name in names:
        try:
            json.loads(data.attrs.get(name, "0"))
        except (ValueError, TypeError, RecursionError):
            raise error(f"{whole}, but its {name} are not JSON") from None


GENERATOR_TAG = b'<meta name="generator" content="headscope">'
"""Tag by which pages written by headscope are recognized; it is within the first `TAG_SEARCH_BYTES` bytes."""
TAG_SEARCH_BYTES = 2000
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


def check_writable(folder: Path, error: type[HeadscopeError], option: str = "--output") -> None:
    """Raise an error if files cannot be written in a folder, or if it cannot be created. Leaves nothing behind.

    Args:
        option: The option that names the folder.
    """
    try:
        existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise make_folder_error(folder, reason, error, option) from None


def check_output_file(path: Path, error: type[HeadscopeError], option: str = "") -> None:
    """Raise an error if a file cannot be written to a path. Leaves nothing behind.

    Args:
        option: The option that names the file, if it is one.
    """
    another = f"another with {option}" if option else "another"
    if os.path.isdir(path):  # Path.is_dir raises on names that are too long
        raise error(f"{path}: a folder: name the file in it that is to be written")
    if not os.path.isdir(path.parent):
        raise error(f"{path}: there is no folder {path.parent}: create it, or choose {another}")
    try:
        path.exists()  # raises on names that are too long
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as reason:
        raise error(f"{path}: cannot be written: {reason.strerror or reason}") from None


def check_page(path: Path, error: type[HeadscopeError] = ReadingError) -> None:
    """Raise an error if a page cannot be written to a path, or would replace a file of the user."""
    check_output_file(path, error, "--output")
    refuse_foreign(path, error)


def refuse_foreign(path: Path, error: type[HeadscopeError]) -> None:
    """Refuse to replace a file that is not a page of headscope."""
    try:
        if path.exists() and not is_page(path):
            raise error(f"{path} is there already, and is no page of headscope: choose another name with --output")
    except OSError as reason:
        raise error(f"{path}: cannot be written: {reason.strerror or reason}") from None


def is_page(path: Path) -> bool:
    """Return whether a file is a page that headscope wrote."""
    with path.open("rb") as file:  # closed at once: Windows does not replace open files
        return GENERATOR_TAG in file.read(TAG_SEARCH_BYTES)


@contextmanager
def create_folder(folder: Path, error: type[HeadscopeError], option: str = "--output") -> Iterator[None]:
    """Create a folder; on leaving the context, remove it and its created parents if they are empty.

    Args:
        option: The option that names the folder.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise make_folder_error(folder, reason, error, option) from None
    try:
        yield
    finally:
        for path in new:
            with suppress(OSError):  # not empty, or removed by another process
                path.rmdir()


def make_folder_error(
    folder: Path, reason: OSError, error: type[HeadscopeError], option: str = "--output"
) -> HeadscopeError:
    """Return the error for a folder in which files cannot be written."""
    return error(f"{folder}: cannot write there: {reason.strerror or reason}. Choose another folder with {option}")


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
    import xarray as xr

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
    return safe.to_csv(
        index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL
    )


def write_atomically(path: Path, content: bytes, error: type[HeadscopeError]) -> Path:
    """Write a file atomically."""
    with replace_atomically(path, error) as temporary:
        temporary.write_bytes(content)
    return path


def find_cache_folder() -> Path | None:
    """Return the cache folder, which may not exist yet; None without a home folder.

    It is below `XDG_CACHE_HOME` if that is set, otherwise in the platform's standard location.
    """
    chosen = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None)
    if chosen:
        return Path(chosen) / "headscope"
    try:
        home = Path.home()
    except RuntimeError:  # the user id is not in the user database, as in containers
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "headscope"

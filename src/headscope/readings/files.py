"""Readings and their tables as files."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from headscope.errors import ReadingError
from headscope.readings.reading import FORMAT, KIND, Reading

STRINGS = ("token", "text")
TABLES = (".csv", ".parquet")


def save_reading(reading: Reading, path: Path) -> Path:
    """Write one netCDF file; what was there stays whole until the new one is."""
    data = reading.data.copy()
    for name in STRINGS:  # netCDF strings end at a NUL and take no half of a surrogate pair, and tokens may hold both
        escaped = np.vectorize(_escaped, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(escaped, dtype=object))
    packed = {name: {"zlib": True, "complevel": 4} for name in ("outputs", "attention") if name in data}
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        data.to_netcdf(waiting, engine="h5netcdf", encoding=packed)
        os.replace(waiting, path)
    except OSError as error:
        raise ReadingError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        waiting.unlink(missing_ok=True)
    return path


def open_reading(path: str | Path) -> Reading:
    """Open a reading that was saved.

    >>> open_reading("nowhere.nc")
    Traceback (most recent call last):
    headscope.errors.ReadingError: nowhere.nc: no such file
    """
    source = Path(path)
    if not source.is_file():
        raise ReadingError(f"{source}: no such file")
    try:
        data = xr.load_dataset(source, engine="h5netcdf")
    except Exception as error:  # h5netcdf and HDF5 raise what they like on files that are not theirs
        raise ReadingError(f"{source}: not readable as netCDF: {error}") from None
    if data.attrs.get("kind") != KIND:
        what = "a study: open it with open_study" if "theta" in data.attrs else "not a headscope reading"
        raise ReadingError(f"{source}: {what}")
    if data.attrs.get("format") != FORMAT:
        raise ReadingError(f"{source}: a reading of format {data.attrs.get('format')}; this headscope reads {FORMAT}")
    for name in STRINGS:
        plain = np.vectorize(_unescaped, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(plain, dtype=object))
    data["special"] = data["special"].astype(bool)
    return Reading(data)


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """A table as CSV or Parquet, by the file's ending."""
    ending = path.suffix.lower()
    if ending not in TABLES:
        raise ReadingError(f"{path}: tables are written as {' or '.join(TABLES)}")
    if ending == ".csv":
        content = table.to_csv(index=False).encode("utf-8", "replace")
    else:
        held = io.BytesIO()
        _plain_columns(table).to_parquet(held, index=False)
        content = held.getvalue()
    return write_whole(path, content)


def _plain_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Columns that Parquet takes: heads as text where `sum` is among them, tokens without halves of surrogate pairs."""
    made = table.copy()
    if "head" in made and made["head"].dtype == object:
        made["head"] = made["head"].astype(str)
    for name in ("token", "token_i", "token_j"):
        if name in made:
            made[name] = [text.encode("utf-8", "replace").decode() for text in made[name]]
    return made


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        waiting.write_bytes(content)
        os.replace(waiting, path)
    except OSError as error:
        raise ReadingError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        waiting.unlink(missing_ok=True)
    return path


def _escaped(text: str) -> str:
    r"""Text without NUL and without halves of surrogate pairs.

    >>> _escaped("a\0b\\")
    'a\\0000b\\\\'
    """
    return re.sub(r"[\0\ud800-\udfff]", lambda found: f"\\{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        return "\\" if found[0] == "\\\\" else chr(int(found[1], 16))

    return re.sub(r"\\(?:\\|([0-9a-f]{4}))", plain, text)

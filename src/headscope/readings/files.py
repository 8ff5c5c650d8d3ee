"""Readings and their tables as files."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from headscope.declared import attribute, check_arrays, check_numbers
from headscope.errors import ReadingError
from headscope.readings.dataset import FORMAT, KIND
from headscope.readings.reading import Reading
from headscope.writing import load_dataset, save_dataset, write_whole

STRINGS = ("token", "text")
COORDINATES = ("layer", "head", "position", "token_id", "special", "sentence", "word", "start", "end")
NEEDED = ("outputs", *STRINGS, *COORDINATES, "model", "theta", "tau")
NUMBERS = ("theta", "tau")
SHAPES = {
    **dict.fromkeys(COORDINATES, (("position",), "iu")),
    "outputs": (("layer", "position", "head", "width"), "f"),
    "attention": (("layer", "head", "query", "key"), "f"),
    "layer": (("layer",), "i"),
    "head": (("head",), "i"),
    "token": (("position",), "OU"),
    "text": ((), "OU"),
    "special": (("position",), "biu"),
}
TABLES = (".csv", ".parquet")


def save_reading(reading: Reading, path: Path) -> Path:
    """Write one netCDF file; what was there stays whole until the new one is."""
    _need_file(path)
    data = reading.data.copy()
    for name in STRINGS:  # netCDF strings end at a NUL, and tokens may hold one
        escaped = np.vectorize(_escaped, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(escaped, dtype=object))
    packed = [name for name in ("outputs", "attention") if name in data]
    return save_dataset(data, path, packed, ReadingError)


def open_reading(path: str | Path) -> Reading:
    """Open a reading that was saved.

    >>> open_reading("nowhere.nc")
    Traceback (most recent call last):
    headscope.errors.ReadingError: nowhere.nc: no such file
    """
    source = Path(path)
    if os.path.isdir(source):
        raise ReadingError(f"{source}: a folder: a reading is one file")
    if not os.path.isfile(source):
        raise ReadingError(f"{source}: no such file")
    data = load_dataset(source, ReadingError)
    if attribute(data, "kind") != KIND:
        what = "a study: open it with open_study" if "theta" in data.attrs else "not a headscope reading"
        raise ReadingError(f"{source}: {what}")
    if attribute(data, "format") != FORMAT:
        raise ReadingError(f"{source}: a reading of format {data.attrs.get('format')}; this headscope reads {FORMAT}")
    whole = f"{source}: a reading"
    check_arrays(data, whole, NEEDED, SHAPES, ReadingError)
    check_numbers(data, whole, NUMBERS, ReadingError)
    for name in STRINGS:
        plain = np.vectorize(_unescaped, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(plain, dtype=object))
    data["special"] = data["special"].astype(bool)
    return Reading(data)


def is_reading(path: Path) -> bool:
    """Whether a file is a saved reading, by what it says of itself."""
    try:
        with xr.open_dataset(path, engine="h5netcdf") as data:
            return bool(data.attrs.get("kind") == KIND)
    except Exception:  # not netCDF at all: whoever opens it next says so
        return False


def check_table(path: Path) -> None:
    """Refuse an ending that tables are not written with, before anything is computed."""
    if path.suffix.lower() not in TABLES:
        raise ReadingError(f"{path}: tables are written as {' or '.join(TABLES)}")


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """A table as CSV or Parquet, by the file's ending."""
    check_table(path)
    _need_file(path)
    if path.suffix.lower() == ".csv":
        written = table.to_csv(index=False, lineterminator="\n")
        if "\r" in written:  # a token with a carriage return stays in its row only if it is quoted
            written = table.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        content = written.encode()
    else:
        held = io.BytesIO()
        _plain_columns(table).to_parquet(held, index=False)
        content = held.getvalue()
    return write_whole(path, content, ReadingError)


def _need_file(path: Path) -> None:
    if os.path.isdir(path):  # Path.is_dir raises on names that are too long
        raise ReadingError(f"{path}: a folder: say which file in it is to be written")


def _plain_columns(table: pd.DataFrame) -> pd.DataFrame:
    """Columns that Parquet takes: heads as text where `sum` is among them."""
    made = table.copy()
    if "head" in made and made["head"].dtype == object:
        made["head"] = made["head"].astype(str)
    return made


def _escaped(text: str) -> str:
    r"""Text without NUL.

    >>> _escaped("a\0b\\")
    'a\\0000b\\\\'
    """
    return text.replace("\\", "\\\\").replace("\0", "\\0000")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(\\|0000)", lambda found: "\\" if found[1] == "\\" else "\0", text)

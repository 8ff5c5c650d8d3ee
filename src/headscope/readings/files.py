"""Readings on disk: their dataset, netCDF files, and tables as CSV or Parquet.

The dataset of a reading: the content of `Reading.data` and of a saved reading.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.array_types import Bools, Floats, Ints
from headscope.errors import ReadingError
from headscope.file_io import (
    check_arrays,
    check_numbers,
    check_output_file,
    format_csv,
    get_scalar_attribute,
    load_dataset,
    save_dataset,
    write_atomically,
)
from headscope.readings.reading import Reading

FORMAT = 1
KIND = "reading"


@dataclass(frozen=True)
class Source:
    """What the encoder of an encoder–decoder model reads."""

    text: str
    labels: list[str]
    ids: Ints
    special: Bools
    token_count: int
    """number of tokens of the text, also of those that were not read"""
    attention: Sequence[Floats] | None = None
    """attention maps (head, query, source position) of each layer of cross-attention"""


def make_dataset(
    *,
    labels: list[str],
    ids: Ints,
    special: Bools,
    sentence: Ints,
    word: Ints,
    spans: Ints | None,
    text: str,
    outputs: Sequence[Floats],
    attention: Sequence[Floats] | None,
    attributes: dict[str, Any],
    layers: Sequence[int] | None = None,
    source: Source | None = None,
) -> xr.Dataset:
    """Return the arrays of a reading as one labelled dataset.

    Lone surrogates are replaced by U+FFFD, because no file, page or table can hold them. Where layers differ in the
    number or width of their heads, what a layer lacks is NaN.

    Args:
        spans: Start and end of each token in the text (position, 2); −1 for tokens that are not in the text.
        outputs: Head outputs (position, head, width) of each layer.
        attention: Attention maps (head, query, key) of each layer.
        layers: Numbers of the layers, if not 0, 1, 2, …
        source: The text that the encoder of an encoder–decoder model reads, if a decoder's heads are read.
    """
    stacked_outputs = _stack_layers(outputs)
    depth, n, heads, _ = stacked_outputs.shape
    text_array = np.array(_replace_surrogates(text), dtype=object)
    clean_attributes = {
        name: _replace_surrogates(value, "\0") if isinstance(value, str) else value
        for name, value in attributes.items()
    }
    offsets = np.full((n, 2), -1, dtype=np.int64) if spans is None else spans
    data = xr.Dataset(
        {"outputs": (("layer", "position", "head", "width"), stacked_outputs), "text": ((), text_array)},
        coords={
            "layer": np.arange(depth) if layers is None else np.array(layers, dtype=np.int64),
            "head": np.arange(heads),
            "position": np.arange(n),
            "token": ("position", np.array([_replace_surrogates(label) for label in labels], dtype=object)),
            "token_id": ("position", ids),
            "special": ("position", special),
            "sentence": ("position", sentence),
            "word": ("position", word),
            "start": ("position", offsets[:, 0]),
            "end": ("position", offsets[:, 1]),
        },
        attrs={"format": FORMAT, "kind": KIND, **clean_attributes},
    )
    if attention is not None:
        data["attention"] = (("layer", "head", "query", "key"), _stack_layers(attention))
    if source is not None:
        data["source_text"] = ((), np.array(_replace_surrogates(source.text), dtype=object))
        source_labels = np.array([_replace_surrogates(label) for label in source.labels], dtype=object)
        data = data.assign_coords(source_token=("source_position", source_labels))
        data = data.assign_coords(
            source_token_id=("source_position", source.ids), source_special=("source_position", source.special)
        )
        if source.attention is not None:
            data["source_attention"] = (
                ("layer", "head", "query", "source_position"),
                _stack_layers(source.attention),
            )
    return data


def _stack_layers(layers: Sequence[Floats]) -> Floats:
    """Return the arrays of all layers as one, filled up with NaN where they are smaller than others."""
    shape = np.max([layer.shape for layer in layers], axis=0)
    stacked = np.full((len(layers), *shape), np.nan, dtype=np.result_type(*layers))
    for k, layer in enumerate(layers):
        stacked[k][tuple(slice(size) for size in layer.shape)] = layer
    return stacked


def _replace_surrogates(text: str, other: str = "") -> str:
    """Replace lone surrogates, and `other` characters, by U+FFFD."""
    return re.sub(f"[{other}\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


STRINGS = ("token", "text")
SOURCE_STRINGS = ("source_token", "source_text")
"""strings of the text that the encoder reads, in readings of a decoder behind it"""
COORDINATES = ("layer", "head", "position", "token_id", "special", "sentence", "word", "start", "end")
NEEDED = ("outputs", *STRINGS, *COORDINATES, "model", "theta", "tau")
NUMBERS = ("theta", "tau")
SHAPES = {
    **dict.fromkeys(COORDINATES, (("position",), "iu")),
    "outputs": (("layer", "position", "head", "width"), "f"),
    "attention": (("layer", "head", "query", "key"), "f"),
    "source_attention": (("layer", "head", "query", "source_position"), "f"),
    "source_token": (("source_position",), "OU"),
    "source_token_id": (("source_position",), "iu"),
    "source_special": (("source_position",), "biu"),
    "source_text": ((), "OU"),
    "layer": (("layer",), "i"),
    "head": (("head",), "i"),
    "token": (("position",), "OU"),
    "text": ((), "OU"),
    "special": (("position",), "biu"),
}
"""dimensions and numpy dtype kinds of the arrays"""
TABLE_SUFFIXES = (".csv", ".parquet")


def save_reading(reading: Reading, path: Path) -> Path:
    """Write a reading as one netCDF file. An existing file is replaced only when the new one is complete."""
    check_output_file(path, ReadingError)
    data = reading.data.copy()
    for name in _list_strings(data):  # netCDF strings end at a NUL, and tokens may contain one
        escaped = np.vectorize(_escape, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(escaped, dtype=object))
    packed = [name for name in ("outputs", "attention", "source_attention") if name in data]
    return save_dataset(data, path, packed, ReadingError)


def _list_strings(data: xr.Dataset) -> list[str]:
    return [name for name in (*STRINGS, *SOURCE_STRINGS) if name in data.variables]


def open_reading(path: str | Path) -> Reading:
    """Open a reading that was saved.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Reading

    Raises
    ------
    ReadingError
        There is no file, or it is damaged or something else.

    Examples
    --------
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
    if get_scalar_attribute(data, "kind") != KIND:
        reason = "a study: open it with open_study" if "theta" in data.attrs else "not a headscope reading"
        raise ReadingError(f"{source}: {reason}")
    if get_scalar_attribute(data, "format") != FORMAT:
        raise ReadingError(f"{source}: a reading of format {data.attrs.get('format')}; this headscope reads {FORMAT}")
    description = f"{source}: a reading"
    check_arrays(data, description, NEEDED, SHAPES, ReadingError)
    check_numbers(data, description, NUMBERS, ReadingError)
    _check_values(data, description)
    for name in _list_strings(data):
        unescaped = np.vectorize(_unescape, otypes=[object])(data[name].values)
        data[name] = (data[name].dims, np.asarray(unescaped, dtype=object))
    for name in {"special", "source_special"} & set(data.coords):
        data[name] = data[name].astype(bool)
    return Reading(data)


def _check_values(data: xr.Dataset, description: str) -> None:
    """Raise ReadingError for NaN or infinite values other than those of heads that layers lack."""
    absent = np.isnan(data["outputs"].transpose("layer", "head", "position", "width").values)
    no_head = absent.all(axis=(2, 3))
    is_absent = {"outputs": no_head[:, :, None, None] | absent.all(axis=(1, 2))[:, None, None, :]}
    is_absent["attention"] = is_absent["source_attention"] = no_head[:, :, None, None]
    for name, mask in is_absent.items():
        if name not in data:
            continue
        values = data[name].transpose("layer", "head", ...).values
        if not (np.isfinite(values) | mask).all() or (name == "outputs" and no_head.all(axis=1).any()):
            raise ReadingError(f"{description}, but damaged: its {name} hold NaN or infinite values")


def is_reading(path: Path) -> bool:
    """Whether a file is a saved reading, judged by its `kind` attribute."""
    try:
        with xr.open_dataset(path, engine="h5netcdf") as data:
            return bool(data.attrs.get("kind") == KIND)
    except Exception:  # not netCDF at all: the function that opens it next reports why
        return False


def check_table(path: Path) -> None:
    """Raise ReadingError if a table cannot be written to this path; called before anything is computed."""
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise ReadingError(f"{path}: tables are written as {' or '.join(TABLE_SUFFIXES)}")
    check_output_file(path, ReadingError)


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV or Parquet, depending on the suffix."""
    check_table(path)
    if path.suffix.lower() == ".csv":
        content = format_csv(table).encode()
    else:
        buffer = io.BytesIO()
        _convert_heads_to_text(table).to_parquet(buffer, index=False)
        content = buffer.getvalue()
    return write_atomically(path, content, ReadingError)


def _convert_heads_to_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return a copy whose heads are text where `sum` is among them: a Parquet column has one type."""
    converted = table.copy()
    if "head_number" in converted and converted["head_number"].dtype == object:
        converted["head_number"] = converted["head_number"].astype(str)
    return converted


def _escape(text: str) -> str:
    r"""Return text without NUL.

    >>> _escape("a\0b\\")
    'a\\0000b\\\\'
    """
    return text.replace("\\", "\\\\").replace("\0", "\\0000")


def _unescape(text: str) -> str:
    return re.sub(r"\\(\\|0000)", lambda match: "\\" if match[1] == "\\" else "\0", text)

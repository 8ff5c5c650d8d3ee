"""Validate netCDF files: declared sizes before they are read (five kilobytes can declare terabytes), then contents."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import HeadscopeError

if TYPE_CHECKING:
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

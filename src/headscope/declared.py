"""What a netCDF file says it holds, looked at before it is read: one of five kilobytes can declare terabytes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from headscope.errors import HeadscopeError

PACKED, SMALL = 1100, 2**20
"""a byte of a packed file holds no more bytes than this; and bytes that nobody minds"""
Shapes = Mapping[str, tuple[tuple[str, ...], str]]
"""variables by name: their dimensions, and the kinds of numbers they may have (`i`, `f`), or `OU` for text"""


class Refused(Exception):
    """What is wrong with a file, in words."""


def check_file(source: Path) -> None:
    """Refuse what is more than plain arrays, or larger than its file or the memory can be."""
    import h5py

    room = min(PACKED * source.stat().st_size + SMALL, _memory())
    with h5py.File(source, "r") as held:
        for name in held:
            if not isinstance(held.get(name, getlink=True), h5py.HardLink):
                raise Refused(f"{name!r} is a link to somewhere else")
            dataset = held.get(name)
            if not isinstance(dataset, h5py.Dataset):
                raise Refused(f"{name!r} is no array")
            room -= _size(name, dataset)
            if room < 0:
                raise Refused(f"with {name!r} it declares more than such a file, or this machine's memory, can hold")


def _size(name: str, dataset: Any) -> int:
    import h5py

    text = h5py.check_string_dtype(dataset.dtype) is not None
    if not (text or dataset.dtype.kind in "iufb") or dataset.dtype.subdtype is not None:
        raise Refused(f"{name!r} holds neither numbers nor text")
    if dataset.external or dataset.is_virtual or dataset.compression not in (None, "gzip"):
        raise Refused(f"{name!r} is stored in a way that headscope does not write")
    if dataset.shape is None:
        return 0
    count = int(np.prod([int(n) for n in dataset.shape], dtype=object))
    chunk = int(np.prod([int(n) for n in dataset.chunks], dtype=object)) if dataset.chunks else 0
    return max(count, chunk) * max(8, int(dataset.dtype.itemsize))


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**40


def attribute(data: xr.Dataset, name: str) -> Any:
    """A plain attribute; None where there is none, or a list of them."""
    value = data.attrs.get(name)
    return (
        value.item()
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size == 1)
        else (None if isinstance(value, np.ndarray) else value)
    )


def check_arrays(
    data: xr.Dataset, whole: str, needed: Iterable[str], shapes: Shapes, error: type[HeadscopeError]
) -> None:
    """Refuse a dataset that lacks what it needs, or has a variable of another shape than it must have."""
    if absent := [name for name in needed if name not in data.variables and name not in data.attrs]:
        raise error(f"{whole}, but not a whole one: no {', '.join(absent)}")
    for name, (dims, kinds) in shapes.items():
        if name not in data.variables:
            continue
        found = data.variables[name]
        if found.dims != dims:
            raise error(f"{whole}, but not a whole one: {name} lies over {found.dims}, not over {dims}"[:500])
        if found.size and found.dtype.kind not in kinds:  # of nothing at all a file does not keep the kind
            raise error(f"{whole}, but not a whole one: {name} holds {found.dtype}"[:500])
        if kinds == "OU" and not all(isinstance(text, str) for text in np.ravel(found.values)):
            raise error(f"{whole}, but not a whole one: {name} does not hold text")


def check_numbers(data: xr.Dataset, whole: str, names: Iterable[str], error: type[HeadscopeError]) -> None:
    """Refuse attributes that are to be numbers and are none."""
    for name in names:
        value = attribute(data, name)
        if name in data.attrs and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise error(f"{whole}, but its {name} is no number")


def check_json(data: xr.Dataset, whole: str, names: Iterable[str], error: type[HeadscopeError]) -> None:
    """Refuse attributes that are to be JSON and are not."""
    for name in names:
        try:
            json.loads(data.attrs.get(name, "0"))
        except (ValueError, TypeError, RecursionError):
            raise error(f"{whole}, but its {name} are not JSON") from None

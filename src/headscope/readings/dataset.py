"""The arrays of a reading under their names: what `Reading.data` holds and a saved reading keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from headscope.types import Bools, Floats, Ints

FORMAT = 1
KIND = "reading"


def dataset(
    *,
    labels: list[str],
    ids: Ints,
    special: Bools,
    sentence: Ints,
    word: Ints,
    spans: Ints | None,
    text: str,
    outputs: Floats,
    attention: Floats | None,
    attributes: dict[str, Any],
    layers: Sequence[int] | None = None,
) -> xr.Dataset:
    """The arrays of a reading under their names. A token that stands nowhere in the text starts and ends at −1.

    `layers` are their numbers, if not 0, 1, 2, …

    Half of a surrogate pair is no character, and no file, page or table takes it: U+FFFD stands in its place.
    """
    depth, n, heads, _ = outputs.shape
    held = np.array(_whole(text), dtype=object)
    about = {name: _whole(value, "\0") if isinstance(value, str) else value for name, value in attributes.items()}
    places = np.full((n, 2), -1, dtype=np.int64) if spans is None else spans
    made = xr.Dataset(
        {"outputs": (("layer", "position", "head", "width"), outputs), "text": ((), held)},
        coords={
            "layer": np.arange(depth) if layers is None else np.array(layers, dtype=np.int64),
            "head": np.arange(heads),
            "position": np.arange(n),
            "token": ("position", np.array([_whole(label) for label in labels], dtype=object)),
            "token_id": ("position", ids),
            "special": ("position", special),
            "sentence": ("position", sentence),
            "word": ("position", word),
            "start": ("position", places[:, 0]),
            "end": ("position", places[:, 1]),
        },
        attrs={"format": FORMAT, "kind": KIND, **about},
    )
    if attention is not None:
        made["attention"] = (("layer", "head", "query", "key"), attention)
    return made


def _whole(text: str, other: str = "") -> str:
    return re.sub(f"[{other}\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)

"""The dataset of a reading: the content of `Reading.data` and of a saved reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from headscope.array_types import Bools, Floats, Ints

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

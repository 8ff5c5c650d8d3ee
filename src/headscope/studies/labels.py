"""Sums under labels: from a tally to the Dataset that METHOD §3 names, and from sums to the rates people read.

One name stands twice in METHOD: `distance` is a variable over a dimension `distance`. xarray counts any variable named
like a dimension among the coordinates, so `distance` is listed there; the distances 1…N−1 are `tokens_apart`. Sums are
added as plain variables, because arithmetic on a Dataset leaves its coordinates alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from headscope.corpus.windows import BLOCKS
from headscope.tally.quantities import KINDS, QUANTITIES, RATE_BINS, RECEIVERS, VALUE_BINS, Shape
from headscope.tally.tally import Tally

RATES = {
    "repeat_rate": ("equal", "pairs"),
    "repeat_rate_in_sentence": ("equal_same", "same"),
    "same_sentence_rate": ("same", "pairs"),
    "mean_distance": ("distance_sum", "pairs"),
    "dominant_share": ("dominant_share_sum", "texts_with_pairs"),
}
"""Each rate is one sum over another."""
OF_WORDS = ("repeat_rate", "repeat_rate_in_sentence", "same_sentence_rate")
"""rates that speak of words and sentences: of images they are not measured, and NaN"""


def shape_in_words(attributes: Mapping[str, Any], layers: int, heads: int) -> str:
    """Layers and heads, and of a model with several stacks which of them it is."""
    stack = f"{attributes['stack']}, " if "+" in str(attributes.get("stacks", "")) else ""
    return f"{stack}{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}"


def of_images(attributes: Mapping[Any, Any]) -> bool:
    """Whether a manifest says that the tokens are patches of images; older ones say nothing, and are of texts."""
    return str(attributes.get("modality", "text")) == "image"


def labelled(
    tally: Tally,
    token_names: Callable[[list[int]], list[str]],
    layers: Sequence[int] | None = None,
    modality: str = "text",
) -> xr.Dataset:
    """A tally as a Dataset: sums, their blocks, and the rates. `layers` are their numbers, if not 0, 1, 2, …"""
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for quantity in QUANTITIES:
        if quantity.name not in tally.arrays:
            continue
        array = tally[quantity.name]
        if quantity.in_blocks:
            variables[f"{quantity.name}_blocks"] = (("block", *quantity.dims), array)
            array = array.sum(axis=0)
        variables[quantity.name] = (quantity.dims, array)
    tokens = sorted(tally.most_attended)
    attended = [tally.most_attended[token] for token in tokens]
    stacked = np.stack(attended, axis=2) if attended else np.zeros((BLOCKS, tally.shape.layers, 0), dtype=np.int64)
    variables["most_attended_blocks"] = (("block", "layer", "token"), stacked)
    variables["most_attended"] = (("layer", "token"), stacked.sum(axis=0))
    numbers = range(tally.shape.layers) if layers is None else layers
    data = xr.Dataset(variables, coords=_coordinates(tally.shape, numbers), attrs={"modality": modality})
    data = data.assign_coords(
        token=np.array(token_names(tokens), dtype=object), token_id=("token", np.array(tokens, dtype=np.int64))
    )
    for quantity in QUANTITIES:
        if quantity.name in data:
            data[quantity.name].attrs["long_name"] = quantity.about
    return derived(data)


def derived(data: xr.Dataset) -> xr.Dataset:
    """The same Dataset with everything that follows from its sums computed anew."""
    return data.assign(following(data.variables, data.attrs))


def following(sums: Mapping[Any, xr.Variable], attributes: Mapping[Any, Any]) -> dict[str, xr.Variable]:
    """What follows from sums."""
    new: dict[str, xr.Variable] = {}
    for name, (part, whole) in RATES.items():
        new[name] = ratio(sums[part], sums[whole])
        if name in OF_WORDS and of_images(attributes):
            new[name] = xr.full_like(new[name], np.nan)
    if "attention_received" in sums:  # it belongs to all heads of a layer, and goes where only some are selected
        received = sums["attention_received"]
        new["attention_received_share"] = ratio(received, received.sum("receiver"))
    if "attention" in sums:
        counts = sums["window_tokens"].values
        reaching = counts[::-1].cumsum()[::-1]  # texts with at least so many tokens
        length = len(counts) - 1
        further = np.maximum.outer(np.arange(length), np.arange(length)) + 1
        about = {"long_name": "texts in which both positions hold a token"}
        new["position_texts"] = xr.Variable(("position_i", "position_j"), reaching[further], about)
    return new


Labelled = TypeVar("Labelled", xr.DataArray, xr.Variable)


def ratio(part: Labelled, whole: Labelled) -> Labelled:
    """A rate; NaN where nothing was counted. Sums of one study have the same labels, so these are not compared."""
    if isinstance(part, xr.DataArray):
        return xr.DataArray(ratio(part.variable, whole.variable), part.coords)
    rate: Labelled = (part / whole.where(whole != 0)).astype(np.float64)  # type: ignore[no-untyped-call]
    return rate


def _coordinates(shape: Shape, layers: Sequence[int]) -> dict[str, object]:
    positions = np.arange(shape.length)
    maps = dict.fromkeys(("position_i", "position_j", "query", "key"), positions) if shape.maps else {}
    return {
        "layer": np.array(layers, dtype=np.int64),
        "head": np.arange(shape.heads),
        "block": np.arange(BLOCKS),
        "rate_bin": (np.arange(RATE_BINS) + 0.5) / RATE_BINS,
        "value_bin": (np.arange(VALUE_BINS) + 0.5) / (VALUE_BINS / 2) - 1,
        "tokens_apart": ("distance", np.arange(1, shape.length)),
        "offset": np.arange(-(shape.length - 1), shape.length),
        "count": np.arange(shape.heads + 1),
        "receiver": np.array(RECEIVERS, dtype=object),
        "kind": np.array(KINDS, dtype=object),
        "tokens": np.arange(shape.length + 1),
        **maps,
    }

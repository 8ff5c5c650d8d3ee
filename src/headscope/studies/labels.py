"""Convert a tally to the labelled Dataset of METHOD §3, and compute rates from its sums.

METHOD uses one name twice: `distance` is a variable over a dimension `distance`. xarray treats a variable named like a
dimension as a coordinate, so `distance` is one; the distances 1…N−1 are `tokens_apart`. When studies are merged, sums
are added as plain variables, because arithmetic on a Dataset does not change its coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from headscope.corpus.windows import BLOCKS
from headscope.studies.rates import ATTENTION_SCORES, RATES, has_attention_scores
from headscope.tally.quantities import (
    ALL_QUANTITIES,
    CONTRASTS,
    ENTROPY,
    RATE_BINS,
    RECEIVERS,
    RECENT,
    VALUE_BINS,
    Shape,
)
from headscope.tally.tally import Tally

HEAD_COLUMNS = ("head", "layer", "head_number")
"""the first columns of every table with a row per head: its name, such as L3H7, and the two numbers in it"""


def format_shape(attributes: Mapping[str, Any], layers: int, heads: int) -> str:
    """Format the number of layers and heads, with the name of the stack if the model has several."""
    stack = f"{attributes['stack']}, " if "+" in str(attributes.get("stacks", "")) else ""
    return f"{stack}{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}"


def format_head(layer: int, head: int) -> str:
    """Return the name by which tables, files and pages know a head.

    >>> format_head(3, 7)
    'L3H7'
    """
    return f"L{layer}H{head}"


def make_head_columns(layers: Sequence[int], head_numbers: Sequence[int]) -> dict[str, Any]:
    """Return the columns that tell the rows of a table of heads apart, `HEAD_COLUMNS`, layer by layer."""
    return {
        "head": [format_head(layer, head) for layer in layers for head in head_numbers],
        "layer": np.repeat(np.asarray(layers, dtype=np.int64), len(head_numbers)),
        "head_number": np.tile(np.asarray(head_numbers, dtype=np.int64), len(layers)),
    }


def has_images(attributes: Mapping[Any, Any]) -> bool:
    """Return whether tokens are patches of images, according to a manifest. Older manifests are of texts."""
    return str(attributes.get("modality", "text")) == "image"


def label_sums(
    tally: Tally,
    token_names: Callable[[list[int]], list[str]],
    layers: Sequence[int] | None = None,
    modality: str = "text",
) -> xr.Dataset:
    """Return a tally as a Dataset: the sums, the sums of each block, and the rates.

    Args:
        tally: The sums of a study.
        token_names: Returns the names of token ids.
        layers: Numbers of the layers, by default 0, 1, 2, …
        modality: `text` or `image`.
    """
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for quantity in ALL_QUANTITIES:
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
    data = xr.Dataset(variables, coords=_make_coordinates(tally.shape, numbers), attrs={"modality": modality})
    data = data.assign_coords(
        token=np.array(token_names(tokens), dtype=object), token_id=("token", np.array(tokens, dtype=np.int64))
    )
    for quantity in ALL_QUANTITIES:
        if quantity.name in data:
            data[quantity.name].attrs["long_name"] = quantity.description
    return add_derived_variables(data)


def add_derived_variables(data: xr.Dataset) -> xr.Dataset:
    """Return the Dataset with all variables that depend on its sums computed again."""
    if has_attention_scores(data):
        sums = derive_score_sums(data.variables)
        blocks = derive_score_sums(data.variables, "_blocks")
        data = data.assign({**sums, **{f"{name}_blocks": variable for name, variable in blocks.items()}})
    return data.assign(compute_derived(data.variables, data.attrs))


def derive_score_sums(sums: Mapping[Any, xr.Variable], suffix: str = "") -> dict[str, xr.Variable]:
    """Return the sums of those attention scores that follow from other sums; none for cross-attention.

    Args:
        sums: The sums of a study.
        suffix: `_blocks` for the sums of each block.
    """
    if "attention_offset" not in sums:
        return {}
    attention, offsets = sums[f"attention_offset{suffix}"], np.arange(sums["attention_offset"].sizes["offset"])
    offsets = offsets - len(offsets) // 2
    weights = {
        "attends_previous_sum": offsets == -1,
        "attends_next_sum": offsets == 1,
        "attends_self_sum": offsets == 0,
        "attention_distance_sum": np.abs(offsets),
        "attends_distant_sum": offsets <= -RECENT,
    }
    variables = {
        name: (attention * xr.Variable("offset", weight.astype(np.float64))).sum("offset")
        for name, weight in weights.items()
    }
    # Attention beyond the recent tokens is to sinks or to distant tokens; the rows of a map sum to 1.
    distant, queries = variables["attends_distant_sum"], sums[f"attends_recent_queries{suffix}"]
    distant = distant - sums[f"far_sink_sum{suffix}"]
    distant = distant * ((distant > 0) & (queries > 0))
    rest = queries - sums[f"attends_sink_sum{suffix}"] - distant
    return variables | {"attends_distant_sum": distant, "attends_recent_sum": rest.transpose(*distant.dims)}


def compute_derived(sums: Mapping[Any, xr.Variable], attributes: Mapping[Any, Any]) -> dict[str, xr.Variable]:
    """Compute the variables that depend on sums: rates, attention shares, and texts per position."""
    variables: dict[str, xr.Variable] = {}
    for name, rate in RATES.items():
        variables[name] = divide_sums(sums[rate.numerator], sums[rate.denominator])
        if rate.of_words and has_images(attributes):
            variables[name] = xr.full_like(variables[name], np.nan)
    if has_attention_scores(sums):
        variables |= _compute_scores(sums, has_images(attributes))
    if "attention_received" in sums:  # absent if only some heads are selected
        received = sums["attention_received"]
        variables["attention_received_share"] = divide_sums(received, received.sum("receiver"))
    if "attention" in sums:
        counts = sums["window_tokens"].values
        texts_by_length = counts[::-1].cumsum()[::-1]  # texts with at least this number of tokens
        length = len(counts) - 1
        min_tokens = np.maximum.outer(np.arange(length), np.arange(length)) + 1
        text_attributes = {"long_name": "texts in which both positions hold a token"}
        variables["position_texts"] = xr.Variable(
            ("position_i", "position_j"), texts_by_length[min_tokens], text_attributes
        )
    return variables


def _compute_scores(sums: Mapping[Any, xr.Variable], images: bool) -> dict[str, xr.Variable]:
    """Compute attention scores and their chance levels; NaN for those that do not exist."""
    variables: dict[str, xr.Variable] = {}
    missing = xr.full_like(sums[f"{ENTROPY}_sum"], np.nan)
    for name, score in ATTENTION_SCORES.items():
        has_sums = all(part in sums for part in (*score.sums, score.chance_numerator))
        exists = has_sums and not (score.of_words and images)
        variables[name] = divide_sums(sums[score.numerator], sums[score.denominator]) if exists else missing
        variables[f"{name}_chance"] = (
            divide_sums(sums[score.chance_numerator], sums[score.denominator]) if exists else xr.Variable((), np.nan)
        )
        variables[name].attrs = {"long_name": score.label}
    return variables


Labelled = TypeVar("Labelled", xr.DataArray, xr.Variable)


def divide_sums(numerator: Labelled, denominator: Labelled) -> Labelled:
    """Divide two sums; NaN where nothing was counted. Labels are not compared: sums of one study share them."""
    if isinstance(numerator, xr.DataArray):
        return xr.DataArray(divide_sums(numerator.variable, denominator.variable), numerator.coords)
    rate: Labelled = (numerator / denominator.where(denominator != 0)).astype(np.float64)  # type: ignore[no-untyped-call]
    return rate


def _make_coordinates(shape: Shape, layers: Sequence[int]) -> dict[str, object]:
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
        "contrast": np.array(CONTRASTS, dtype=object),
        "tokens": np.arange(shape.length + 1),
        **maps,
    }

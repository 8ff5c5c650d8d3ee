"""Validate the dataset of a study file: its sums, their dimensions and sizes, named as in METHOD §3."""

from __future__ import annotations

import numpy as np
import xarray as xr

from headscope.corpus.windows import BLOCKS
from headscope.errors import StudyError
from headscope.netcdf_validation import check_arrays, check_json, check_numbers, get_scalar_attribute
from headscope.settings import list_of_kind
from headscope.studies.rates import ALL_RATES, RATES
from headscope.tally.quantities import ALL_QUANTITIES, ATTENTION_SCORE_QUANTITIES, CROSS_SCORES, SCORES, Shape

ABOUT = ("model", "corpus", "layers", "heads", "length", "theta", "tau")
SUMS = ("texts", "window_tokens", "all_pairs", "all_equal", "all_same", "all_equal_same", "distance")
NEEDED = (
    *ABOUT,
    *("layer", "head", "block", "tokens", "token", "token_id"),
    *SUMS,
    *(f"{name}_blocks" for name in SUMS),
    *RATES,
    *sorted({name for rate in RATES.values() for name in rate.sums}),
)
SHAPES = {
    **{quantity.name: (quantity.dims, "if") for quantity in ALL_QUANTITIES},
    **{
        f"{quantity.name}_blocks": (("block", *quantity.dims), "if")
        for quantity in ALL_QUANTITIES
        if quantity.in_blocks
    },
    **dict.fromkeys(ALL_RATES, (("layer", "head"), "f")),
    **{f"{name}_sum": (("layer", "head"), "f") for name in SCORES},
    **{f"{name}_sum_blocks": (("block", "layer", "head"), "f") for name in SCORES},
    **{f"{name}_chance": ((), "f") for name in SCORES},
    **{name: ((name,), "if") for name in ("layer", "head", "block", "tokens", "rate_bin", "value_bin", "offset")},
    **{name: ((name,), "OU") for name in ("token", "receiver", "contrast")},
    "token_id": (("token",), "i"),
}


def check_study(data: xr.Dataset, source: object) -> None:
    """Raise a StudyError if the dataset is not that of a study, before it fails later with an obscure error."""
    description = f"{source}: a headscope study"
    check_arrays(data, description, (*NEEDED, *_list_score_variables(data)), SHAPES, StudyError)
    check_numbers(data, description, list_of_kind("number", "yes or no"), StudyError)
    check_json(data, description, list_of_kind("JSON"), StudyError)
    layers, heads, length = (int(get_scalar_attribute(data, name)) for name in ("layers", "heads", "length"))
    sizes = {**Shape(layers, heads, length, width=data.sizes.get("width", 0)).get_sizes(), "block": BLOCKS}
    for name, size in data.sizes.items():
        selected = name in ("layer", "head") and 0 < size <= sizes[str(name)]
        if str(name) in sizes and size != sizes[str(name)] and not selected:
            raise StudyError(
                f"{description}, but not a whole one: it has {size:,} {name}s instead of {sizes[str(name)]:,}"
            )
    _check_sums(data, description)


def _list_score_variables(data: xr.Dataset) -> list[str]:
    """Return the variables that a study with attention scores must have; none if it has no scores."""
    names = [*SCORES, *(f"{name}_chance" for name in SCORES)]
    sums = [quantity.name for quantity in ATTENTION_SCORE_QUANTITIES]
    if "attention_offset" not in data:  # cross-attention
        sums = [name for name in sums if name.startswith(CROSS_SCORES)]
    names += [*sums, *(f"{name}_blocks" for name in sums)]
    return names if any(name in data for name in names) else []


def _check_sums(data: xr.Dataset, description: str) -> None:
    """Raise a StudyError for counts below 0, NaN or infinite sums, and blocks that do not add up to the total."""
    for quantity in ALL_QUANTITIES:
        for name in {quantity.name, f"{quantity.name}_blocks"} & set(data.variables):
            values = data.variables[name].values
            if not np.isfinite(values.sum()) or (not quantity.real and values.min(initial=0) < 0):
                raise StudyError(f"{description}, but damaged: {name} holds what no sum can be")
        if not quantity.real and {quantity.name, f"{quantity.name}_blocks"} <= set(data.variables):
            blocks = data.variables[f"{quantity.name}_blocks"].sum("block")
            if not np.array_equal(blocks.values, data.variables[quantity.name].values):
                raise StudyError(f"{description}, but damaged: the blocks of {quantity.name} do not add up to it")

"""The dataset of a study: a tally with labels, and the validation of a study file.

Convert a tally to the labelled Dataset of METHOD §3, and compute rates from its sums.

METHOD uses one name twice: `distance` is a variable over a dimension `distance`. xarray treats a variable named like a
dimension as a coordinate, so `distance` is one; the distances 1…N−1 are `tokens_apart`. When studies are merged, sums
are added as plain variables, because arithmetic on a Dataset does not change its coordinates.

Validate the dataset of a study file: its sums, their dimensions and sizes, named as in METHOD §3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from headscope.corpus.windows import BLOCKS
from headscope.errors import StudyError
from headscope.file_io import check_arrays, check_json, check_numbers, get_scalar_attribute
from headscope.settings import list_of_kind
from headscope.studies.example_arrays import (
    EXAMPLE_SHAPES,
    TOKEN_SHAPES,
    PlainTokens,
    TokenWriter,
    assign_token_texts,
    check_tokens,
    label_tokens,
)
from headscope.studies.output_spread import compute_output_spread
from headscope.studies.rates import ALL_RATES, ATTENTION_SCORES, RATES, has_attention_scores
from headscope.tally.quantities import (
    ALL_QUANTITIES,
    ATTENTION_SCORE_QUANTITIES,
    BY_NAME,
    CONTRASTS,
    CROSS_SCORES,
    ENTROPY,
    HEAD_PAIR,
    MAX_RELATED_HEADS,
    MAX_RELATIONS,
    RATE_BINS,
    RECEIVERS,
    RECENT,
    RELATION_QUANTITIES,
    SCORES,
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
    window_tokens: TokenWriter | None = None,
) -> xr.Dataset:
    """Return a tally as a Dataset: the sums, the sums of each block, and the rates.

    Args:
        tally: The sums of a study.
        token_names: Returns the names of token ids.
        layers: Numbers of the layers, by default 0, 1, 2, …
        modality: `text` or `image`.
        window_tokens: The tokens of the windows, by default those named by `token_names`.
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
    data = _add_relations(data, tally)
    for quantity in BY_NAME.values():
        if quantity.name in data:
            data[quantity.name].attrs["long_name"] = quantity.description
    data = data.assign(label_tokens(tally.dominant_tokens, tally.examples, list(numbers), tally.shape.examples))
    return add_derived_variables(assign_token_texts(data, window_tokens or PlainTokens(token_names)))


def _add_relations(data: xr.Dataset, tally: Tally) -> xr.Dataset:
    """Return the Dataset with the sums of labelled relations, if there are any."""
    if not tally.relations:
        return data
    labels = sorted(tally.relations)
    variables = {}
    for quantity in RELATION_QUANTITIES:
        array = np.stack([tally.relations[label][quantity.name] for label in labels], axis=1)
        variables[f"{quantity.name}_blocks"] = (("block", *quantity.dims), array)
        variables[quantity.name] = (quantity.dims, array.sum(axis=0))
    return data.assign(variables).assign_coords(relation=np.array(labels, dtype=object))


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
    """Compute the variables that depend on sums: rates, attention shares, spread of outputs, texts per position."""
    variables: dict[str, xr.Variable] = {}
    for name, rate in RATES.items():
        variables[name] = divide_sums(sums[rate.numerator], sums[rate.denominator])
        if rate.of_words and has_images(attributes):
            variables[name] = xr.full_like(variables[name], np.nan)
    if has_attention_scores(sums):
        variables |= _compute_scores(sums, has_images(attributes))
    if "head_similarity_sum" in sums:  # of blocks there are none
        variables["head_similarity"] = divide_sums(
            *(sums[f"head_similarity_{name}"].sum("half") for name in ("sum", "texts"))
        )
    if "attention_received" in sums:  # absent if only some heads are selected
        received = sums["attention_received"]
        variables["attention_received_share"] = divide_sums(received, received.sum("receiver"))
    variables |= compute_output_spread(sums)
    if "attention" in sums:
        counts = sums["window_tokens"].values
        texts_by_length = counts[::-1].cumsum()[::-1]  # texts with at least this number of tokens
        length = len(counts) - 1
        min_tokens = np.maximum.outer(np.arange(length), np.arange(length)) + 1
        text_attributes = {"long_name": "texts in which both positions hold a token"}
        variables["position_texts"] = xr.Variable(
            ("position_i", "position_j"), texts_by_length[min_tokens], text_attributes
        )
    return variables | _derive_relations(sums)


def _derive_relations(sums: Mapping[Any, xr.Variable]) -> dict[str, xr.Variable]:
    """Compute what labelled pairs are on average, and what pairs of words as far apart are; empty without relations."""
    if "relation_pairs" not in sums:
        return {}
    pairs, variables = sums["relation_pairs"], {}
    for name, numerator in RELATION_RATES.items():
        variables[name] = divide_sums(sums[numerator], pairs)
    rate, chance = variables["relation_rate"], variables["relation_chance"]
    variables["relation_odds_ratio"] = divide_sums(rate * (1 - chance), chance * (1 - rate))
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


RELATION_RATES = {
    "relation_rate": "relation_high",
    "relation_chance": "relation_expected",
    "relation_attention_ab_mean": "relation_attention_ab",
    "relation_attention_ab_chance": "relation_attention_ab_expected",
    "relation_attention_ba_mean": "relation_attention_ba",
    "relation_attention_ba_chance": "relation_attention_ba_expected",
}
"""numbers of a relation and a head, and the sums that are divided by the number of labelled pairs"""
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
        **(
            {"other_layer": np.array(layers, dtype=np.int64), "other_head": np.arange(shape.heads)}
            if shape.layers * shape.heads <= MAX_RELATED_HEADS
            else {}
        ),
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
    **{quantity.name: (quantity.dims, "if") for quantity in BY_NAME.values()},
    **{
        f"{quantity.name}_blocks": (("block", *quantity.dims), "if")
        for quantity in BY_NAME.values()
        if quantity.in_blocks
    },
    **dict.fromkeys(ALL_RATES, (("layer", "head"), "f")),
    **{f"{name}_sum": (("layer", "head"), "f") for name in SCORES},
    **{f"{name}_sum_blocks": (("block", "layer", "head"), "f") for name in SCORES},
    **{f"{name}_chance": ((), "f") for name in SCORES},
    **{
        name: ((name,), "if")
        for name in ("layer", "head", "other_layer", "other_head", "block", "tokens", "rate_bin", "value_bin", "offset")
    },
    **dict.fromkeys((*RELATION_RATES, "relation_odds_ratio"), (("relation", "layer", "head"), "f")),
    **{name: ((name,), "OU") for name in ("token", "receiver", "contrast", "relation")},
    "token_id": (("token",), "i"),
    "head_similarity": (HEAD_PAIR, "f"),
    **TOKEN_SHAPES,
    **EXAMPLE_SHAPES,
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
        selected = name in ("layer", "head", "other_layer", "other_head") and 0 < size <= sizes[str(name)]
        if str(name) in sizes and size != sizes[str(name)] and not selected:
            raise StudyError(
                f"{description}, but not a whole one: it has {size:,} {name}s instead of {sizes[str(name)]:,}"
            )
    _check_relations(data, description)
    _check_sums(data, description)
    if reason := check_tokens(data):
        raise StudyError(f"{description}, but damaged: {reason}")


def _check_relations(data: xr.Dataset, description: str) -> None:
    """Raise a StudyError if the sums of labelled relations are there in part, or are of too many of them."""
    names = {"relation", *RELATION_RATES, "relation_odds_ratio"}
    names |= {name for q in RELATION_QUANTITIES for name in (q.name, f"{q.name}_blocks")}
    absent = sorted(names - set(data.variables))
    if 0 < len(absent) < len(names):
        raise StudyError(f"{description}, but not a whole one: no {', '.join(absent)}")
    labels = data["relation"].values.tolist() if "relation" in data.variables else []
    if len(set(labels)) != len(labels) or len(labels) > MAX_RELATIONS:
        raise StudyError(f"{description}, but damaged: its relations are not at most {MAX_RELATIONS} different ones")


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
    for quantity in BY_NAME.values():
        for name in {quantity.name, f"{quantity.name}_blocks"} & set(data.variables):
            values = data.variables[name].values
            if not np.isfinite(values.sum()) or (not quantity.real and values.min(initial=0) < 0):
                raise StudyError(f"{description}, but damaged: {name} holds what no sum can be")
        if not quantity.real and {quantity.name, f"{quantity.name}_blocks"} <= set(data.variables):
            blocks = data.variables[f"{quantity.name}_blocks"].sum("block")
            if not np.array_equal(blocks.values, data.variables[quantity.name].values):
                raise StudyError(f"{description}, but damaged: the blocks of {quantity.name} do not add up to it")

"""The numbers behind the findings: each a function from a study to a value, so that it can be jackknifed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from headscope.studies.labels import OF_WORDS, RATES
from headscope.studies.result import Study
from headscope.types import Bools, Floats

HALVINGS = 100
BETWEEN_HALVES = ("repeat_rate", "repeat_rate_in_sentence", "same_sentence_rate", "mean_distance")
SEPARATORS = ["sentence end", "comma"]


def first_layers(study: Study) -> list[int]:
    """The first quarter of the layers, at least one."""
    return list(range(max(1, len(study.layers) // 4)))


def middle_layers(study: Study) -> list[int]:
    """The layers of the middle third; none where a model has fewer than three layers."""
    count = len(study.layers)
    return [layer for layer in range(count) if count / 3 <= layer < 2 * count / 3] if count >= 3 else []


def last_layers(study: Study) -> list[int]:
    """The last quarter of the layers, at least one."""
    count = len(study.layers)
    return list(range(count - max(1, count // 4), count))


def strongest_is_local(by_offset: xr.DataArray) -> Bools:
    """For each layer and head, whether its attention is strongest at offset −1, 0 or +1."""
    offsets = by_offset["offset"].values
    strongest: Bools = np.abs(offsets[by_offset.fillna(0).argmax("offset").values]) <= 1
    return strongest


def attention_per_element(study: Study) -> xr.DataArray:
    """Mean attention of one element at each offset: a window of n tokens has n − |offset| of them."""
    data = study.data
    elements = (data["window_tokens"] * (data["tokens"] - np.abs(data["offset"])).clip(min=0)).sum("tokens")
    return data["attention_offset"] / elements.where(elements > 0)


def most_attended_share(study: Study, tokens: list[str]) -> Floats:
    """By layer, the share of texts in which one of these tokens is the most attended."""
    held = [token for token in tokens if token in study.data["token"].values]
    shares: Floats = (study.data["most_attended"].sel(token=held).sum("token") / study.data["texts"]).values
    return shares


def top_tokens(study: Study, most: int = 3) -> list[dict[str, float]]:
    """By layer, the tokens most often the most attended, with their share of texts."""
    shares = study.data["most_attended"] / study.data["texts"]
    ranked = [layer.sortby(-layer).isel(token=slice(most)) for layer in shares]
    return [
        {str(token): float(share) for token, share in zip(layer["token"].values, layer.values, strict=True) if share}
        for layer in ranked
    ]


def separator_share(received: xr.DataArray) -> Floats:
    """The part of attention shares that goes to sentence ends and commas."""
    shares: Floats = received.sel(receiver=SEPARATORS).sum("receiver").values
    return shares


def diagonal_share(study: Study) -> Floats:
    """By layer, the share of attention within ±1 token."""
    attention = study.data["attention_offset"].sum("head")
    near = attention.sel(offset=[-1, 0, 1]).sum("offset")
    shares: Floats = (near.variable / attention.variable.sum("offset")).values
    return shares


def value_shares(histogram: xr.DataArray) -> list[float]:
    """The shares of normalized similarities below 0.1 and from 0.1 to 0.6."""
    total, centres = float(histogram.sum()), histogram["value_bin"]
    if total == 0:
        return [math.nan, math.nan]
    chosen = (centres < 0.1, (centres > 0.1) & (centres < 0.6))
    return [float(histogram.where(bins, 0).sum()) / total for bins in chosen]


def correlation(one: xr.DataArray | Floats, other: xr.DataArray | Floats) -> float:
    """Pearson's, over heads where both are known; NaN below three heads or without any spread."""
    x, y = np.ravel(np.asarray(one, dtype=np.float64)), np.ravel(np.asarray(other, dtype=np.float64))
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def mean_distinct_dominants(study: Study) -> Floats:
    """By layer, the mean number of different dominant tokens over its heads."""
    counts = study.data["distinct_dominants"]
    means: Floats = ((counts * counts["count"]).sum("count") / counts.sum("count")).values
    return means


def half_correlations(study: Study) -> dict[str, list[float]]:
    """For each rate, its correlation over heads between random halves of the blocks of texts, for many halvings.

    Empty where there are no two halves, or too few heads with pairs in both.
    """
    occupied = np.flatnonzero(study.data["texts_blocks"].values)
    if len(occupied) < 2:
        return {}
    random = np.random.default_rng(0)  # the same halves every time
    measured = [name for name in BETWEEN_HALVES if not (study.of_images and name in OF_WORDS)]
    found: dict[str, list[float]] = {name: [] for name in measured}
    sums = {name: [study.data[f"{part}_blocks"].values for part in RATES[name]] for name in measured}
    for _ in range(HALVINGS):
        shuffled = random.permutation(occupied)
        halves = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]
        for name, held in found.items():
            held.append(correlation(*(_rate_of_blocks(sums[name], half) for half in halves)))
    return {} if any(np.isnan(held).any() for held in found.values()) else found


def _rate_of_blocks(sums: list[Any], blocks: Any) -> Floats:
    part, whole = (held[blocks].sum(axis=0) for held in sums)
    rates: Floats = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return rates

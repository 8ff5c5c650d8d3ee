"""Statistics for the findings: functions of a study, so that `Study.jackknife` can compute their errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from headscope.array_types import Bools, Floats
from headscope.studies.rates import OF_WORDS, RATES
from headscope.studies.result import Study

HALVINGS = 100
BETWEEN_HALVES = ("repeat_rate", "repeat_rate_in_sentence", "same_sentence_rate", "mean_distance")
SEPARATORS = ["sentence end", "comma"]


def get_first_layers(study: Study) -> list[int]:
    """Return the first quarter of the layers, at least one."""
    return list(range(max(1, len(study.layers) // 4)))


def get_middle_layers(study: Study) -> list[int]:
    """Return the layers of the middle third; none if a model has fewer than three layers."""
    count = len(study.layers)
    return [layer for layer in range(count) if count / 3 <= layer < 2 * count / 3] if count >= 3 else []


def get_last_layers(study: Study) -> list[int]:
    """Return the last quarter of the layers, at least one."""
    count = len(study.layers)
    return list(range(count - max(1, count // 4), count))


def is_strongest_local(by_offset: xr.DataArray) -> Bools:
    """Return whether attention is strongest at offset −1, 0 or +1: (layer, head)."""
    offsets = by_offset["offset"].values
    strongest: Bools = np.abs(offsets[by_offset.fillna(0).argmax("offset").values]) <= 1
    return strongest


def compute_attention_per_element(study: Study) -> xr.DataArray:
    """Return the mean attention of an element at each offset: a window of n tokens has n − |offset| such elements."""
    data = study.data
    elements = (data["window_tokens"] * (data["tokens"] - np.abs(data["offset"])).clip(min=0)).sum("tokens")
    return data["attention_offset"] / elements.where(elements > 0)


def compute_most_attended_share(study: Study, tokens: list[str]) -> Floats:
    """Return the share of texts in which one of these tokens is the most attended: (layer,)."""
    present = [token for token in tokens if token in study.data["token"].values]
    shares: Floats = (study.data["most_attended"].sel(token=present).sum("token") / study.data["texts"]).values
    return shares


def find_top_tokens(study: Study, most: int = 3) -> list[dict[str, float]]:
    """Return for each layer the tokens that are most attended in the largest shares of texts, with these shares."""
    shares = study.data["most_attended"] / study.data["texts"]
    ranked = [layer.sortby(-layer).isel(token=slice(most)) for layer in shares]
    return [
        {str(token): float(share) for token, share in zip(layer["token"].values, layer.values, strict=True) if share}
        for layer in ranked
    ]


def compute_separator_share(received: xr.DataArray) -> Floats:
    """Return the share of attention that sentence ends and commas receive."""
    shares: Floats = received.sel(receiver=SEPARATORS).sum("receiver").values
    return shares


def compute_diagonal_share(study: Study) -> Floats:
    """Return the share of attention within ±1 token: (layer,)."""
    attention = study.data["attention_offset"].sum("head")
    near = attention.sel(offset=[-1, 0, 1]).sum("offset")
    shares: Floats = (near.variable / attention.variable.sum("offset")).values
    return shares


def compute_value_shares(histogram: xr.DataArray) -> list[float]:
    """Return the shares of normalized similarities below 0.1 and from 0.1 to 0.6."""
    total, centers = float(histogram.sum()), histogram["value_bin"]
    if total == 0:
        return [math.nan, math.nan]
    bin_masks = (centers < 0.1, (centers > 0.1) & (centers < 0.6))
    return [float(histogram.where(mask, 0).sum()) / total for mask in bin_masks]


def correlate(first: xr.DataArray | Floats, second: xr.DataArray | Floats) -> float:
    """Return Pearson's correlation over the heads where both are finite; NaN below three heads or without spread."""
    x, y = np.ravel(np.asarray(first, dtype=np.float64)), np.ravel(np.asarray(second, dtype=np.float64))
    is_finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def average_distinct_dominants(study: Study) -> Floats:
    """Return the mean number of different dominant tokens of the heads of a layer: (layer,)."""
    counts = study.data["distinct_dominants"]
    means: Floats = ((counts * counts["count"]).sum("count") / counts.sum("count")).values
    return means


def compute_half_correlations(study: Study) -> dict[str, list[float]]:
    """Return for each rate its correlations over heads between random halves of the blocks of texts, one per halving.

    Empty if fewer than two blocks contain texts, or if too few heads have pairs in both halves.
    """
    occupied = np.flatnonzero(study.data["texts_blocks"].values)
    if len(occupied) < 2:
        return {}
    random = np.random.default_rng(0)  # fixed seed: the same halves in every run
    rates = [name for name in BETWEEN_HALVES if not (study.has_images and name in OF_WORDS)]
    correlations: dict[str, list[float]] = {name: [] for name in rates}
    sums = {name: [study.data[f"{part}_blocks"].values for part in RATES[name].sums] for name in rates}
    for _ in range(HALVINGS):
        shuffled = random.permutation(occupied)
        halves = shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]
        for name, values in correlations.items():
            values.append(correlate(*(_compute_rate(sums[name], half) for half in halves)))
    return {} if any(np.isnan(values).any() for values in correlations.values()) else correlations


def _compute_rate(sums: list[Any], blocks: Any) -> Floats:
    numerator, denominator = (block_sums[blocks].sum(axis=0) for block_sums in sums)
    rates: Floats = np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)
    return rates

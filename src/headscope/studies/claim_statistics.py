"""Numbers of the claims: statistics of a study, and the result of measuring a claim with them.

Statistics for the claims: functions of a study, so that `Study.jackknife` can compute their errors.

The result of measuring a claim: a number, and the conditions it has to meet; limits and words for all claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import xarray as xr

from headscope.array_types import Bools, Floats
from headscope.studies.rates import OF_WORDS, RATES
from headscope.studies.result import Study

HALVINGS = 100
BETWEEN_HALVES = ("repeat_rate", "repeat_rate_in_sentence", "same_sentence_rate", "mean_distance")
SEPARATORS = ["sentence end", "comma"]


class CannotMeasure(Exception):
    """A claim cannot be measured in this study; the message says why."""


class NothingCounted(CannotMeasure):
    """None of the texts has what a claim is measured on; more texts may have it."""


def get_values(study: Study, name: str) -> Any:
    """Return the values of a variable of a study; raise `CannotMeasure` if it was not counted."""
    if name not in study.data:
        raise CannotMeasure("this study was made by an earlier version, which did not count what this needs")
    return study.data[name].values


def divide(numerator: Any, denominator: Any) -> Floats:
    """Return a quotient, NaN where nothing was counted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(denominator) != 0, np.asarray(numerator) / np.asarray(denominator), np.nan)


# -- layers ------------------------------------------------------------------------------------------------------------


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


# -- attention ---------------------------------------------------------------------------------------------------------


def is_strongest_local(study: Study) -> Bools:
    """Return whether a head's mean attention per element is strongest at offset −1, 0 or +1, and there at least twice
    that of even attention: (layer, head). Offsets with few elements, less than a quarter of the most, are left out.
    """
    offsets, elements = study.data["offset"].values, count_elements(study)
    frequent = elements >= elements.max() / 4
    mean = np.where(frequent, divide(get_values(study, "attention_offset"), elements), -1.0)
    even = divide(sum_even_attention(study), elements)
    strongest = mean.argmax(-1)
    at_least_twice = np.take_along_axis(mean, strongest[..., None], -1)[..., 0] >= 2 * even[strongest]
    return np.asarray((np.abs(offsets[strongest]) <= 1) & at_least_twice)


def count_elements(study: Study) -> Floats:
    """Return the number of elements of all maps at each offset: a window of n tokens has n − |offset| such elements."""
    tokens, offsets = study.data["tokens"].values, study.data["offset"].values
    return np.asarray(study.data["window_tokens"].values @ (tokens[:, None] - np.abs(offsets)).clip(min=0) * 1.0)


def sum_even_attention(study: Study) -> Floats:
    """Return what one head that spreads its attention evenly would have at each offset, over all texts: (offset,)."""
    tokens, offsets = study.data["tokens"].values, study.data["offset"].values
    if study.data.attrs.get("causal", 0):  # query i gives 1/(i + 1) to each of i + 1 keys
        harmonic = np.concatenate([[0.0], np.cumsum(1 / tokens[1:])])
        by_length = (harmonic[:, None] - harmonic[np.abs(offsets)]).clip(min=0) * (offsets <= 0)
    else:
        by_length = (tokens[:, None] - np.abs(offsets)).clip(min=0) / tokens.clip(min=1)[:, None]
    return np.asarray(study.data["window_tokens"].values @ by_length)


def compute_diagonal_share(study: Study) -> Floats:
    """Return the share of attention within ±1 token: (layer,)."""
    attention = study.data["attention_offset"].sum("head")
    near = attention.sel(offset=[-1, 0, 1]).sum("offset")
    shares: Floats = (near.variable / attention.variable.sum("offset")).values
    return shares


def compute_even_diagonal_share(study: Study) -> float:
    """Return the share of even attention within ±1 token."""
    even = sum_even_attention(study)
    return float(even[np.abs(study.data["offset"].values) <= 1].sum() / even.sum())


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


# -- similarities ------------------------------------------------------------------------------------------------------


def compute_value_shares(histogram: xr.DataArray) -> list[float]:
    """Return the shares of normalized similarities below 0.1 and from 0.1 to 0.6."""
    total, centers = float(histogram.sum()), histogram["value_bin"]
    if total == 0:
        return [math.nan, math.nan]
    bin_masks = (centers < 0.1, (centers > 0.1) & (centers < 0.6))
    return [float(histogram.where(mask, 0).sum()) / total for mask in bin_masks]


def compute_scattered_share(study: Study) -> float:
    """Return the share below 0.1 of similarities of unrelated outputs, which scatter around 0 as a normal distribution
    whose largest of M values, one for every pair, is at its quantile 1 − 1/M."""
    counts, tokens = study.data["window_tokens"].values, study.data["tokens"].values
    pairs = np.maximum(tokens * (tokens - 1) // 2, 2)
    normal = NormalDist()
    shares = [
        normal.cdf(0.1 * normal.inv_cdf(1 - 1 / count)) if windows else 0.0
        for count, windows in zip(pairs, counts, strict=True)
    ]
    return float(counts * pairs @ shares / (counts * pairs).sum())


def average_distinct(study: Study, name: str = "distinct_dominants") -> Floats:
    """Return the mean number of different dominant tokens of the heads of a layer: (layer,)."""
    counts = get_values(study, name)
    return divide(counts @ np.arange(counts.shape[-1]), counts.sum(-1))


def compute_matched_chance(study: Study) -> Floats:
    """Return the share of one sentence among all pairs at the distances of a head's pairs: (layer, head)."""
    tokens, distances = study.data["tokens"].values, study.data["tokens_apart"].values
    apart = (tokens[:, None] - distances).clip(min=0)
    same, pairs = get_values(study, "sentence_tokens") @ apart, study.data["window_tokens"].values @ apart
    return divide(study.data["distance"].values @ np.nan_to_num(divide(same, pairs)), study.data["pairs"].values)


def compute_distance_deviation(study: Study) -> Floats:
    """Return how far the distances of each layer's pairs, of all heads, are from those of all pairs: the share of pairs
    that would have to be at another distance (the total variation distance of both distributions): (layer,)."""
    tokens, distances = study.data["tokens"].values, study.data["tokens_apart"].values
    pairs = study.data["window_tokens"].values @ (tokens[:, None] - distances).clip(min=0)
    counts = study.data["distance"].values.sum(1)
    return np.asarray(np.abs(divide(counts, counts.sum(-1, keepdims=True)) - pairs / pairs.sum()).sum(-1) / 2)


# -- correlations over heads -------------------------------------------------------------------------------------------


def correlate(first: xr.DataArray | Floats, second: xr.DataArray | Floats) -> float:
    """Return Pearson's correlation over the heads where both are finite; NaN below three heads or without spread."""
    x, y = np.ravel(np.asarray(first, dtype=np.float64)), np.ravel(np.asarray(second, dtype=np.float64))
    is_finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def correlate_true(first: Floats, second: Floats, error_covariance: Floats) -> float:
    """Return the correlation over heads of two rates without that of their errors (correction for attenuation).

    Args:
        first: The first rate, of each head.
        second: The second rate.
        error_covariance: Covariance of the errors of both, averaged over heads: (2, 2).
    """
    covariance = np.cov(first, second) - error_covariance
    variances = covariance[0, 0] * covariance[1, 1]
    if min(covariance[0, 0], covariance[1, 1]) <= 0:
        return math.nan
    return float(np.clip(covariance[0, 1] / math.sqrt(variances), -1, 1))


def compute_half_correlations(study: Study) -> dict[str, list[float]]:
    """Return for each rate its correlations over heads between random halves of the blocks of texts, one per halving,
    corrected to the whole corpus (Spearman–Brown: 2r / (1 + r)).

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
            half = correlate(*(_compute_rate(sums[name], blocks) for blocks in halves))
            values.append(2 * half / (1 + half) if half > 0 else half)
    return {} if any(np.isnan(values).any() for values in correlations.values()) else correlations


def _compute_rate(sums: list[Any], blocks: Any) -> Floats:
    return divide(*(block_sums[blocks].sum(axis=0) for block_sums in sums))


MOST_HEADS = 0.9
TWICE = 2.0
"""Attention is where a claim says if there is at least so many times the attention that even attention would have."""
MANY_VALUES, FEW_VALUES = 0.75, 0.2
STRONG_CORRELATION = 0.9
SHARED_COLUMNS = 0.5
FAR = 50 / 128
"""The paper's distance of 50 tokens, as a share of its window of 128."""
THIRD, THIRD_OF_CHANCE = 0.33, 0.33 * 3.5
"""The paper's limit of 33 % at windows of 128 tokens "of around 3–4 sentences", where chance gives about 1/3.5."""
PAPER_LENGTH = 128
CLEARLY = 0.1
"""Differences between layers that a fixed network has by accident are smaller than this share of chance."""
ALMOST_RANDOM = 0.2
ROUNDING = 1e-9
NO_MIDDLE = "the model has too few layers to speak of first, middle and last ones"
NO_SAMPLE = "no text is in the sample this is measured on"


@dataclass(frozen=True)
class Condition:
    """What a claim asks of one number: to be above, or below, some limit."""

    text: str
    value: float
    error: float
    limit: float = 0.0
    at_most: bool = False
    or_equal: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether it is met; None within two standard errors of the limit, or if the number is not known."""
        margin = (self.limit - self.value) if self.at_most else (self.value - self.limit)
        error = 0.0 if math.isnan(self.error) else self.error
        if math.isnan(margin) or ROUNDING < abs(margin) < 2 * error:
            return None
        return bool(margin >= -ROUNDING if self.or_equal else margin > ROUNDING)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for the details of a finding."""
        outcome = {True: "met", False: "not met", None: "undecided"}[self.is_met]
        numbers = {
            name: None if math.isnan(number) else float(number)
            for name, number in (("value", self.value), ("error", self.error), ("limit", self.limit))
        }
        return {"condition": self.text, **numbers, "is": outcome}


@dataclass(frozen=True)
class Measurement:
    """Result of measuring a claim: the number with its standard error and its null, and what the claim asks."""

    explanation: str
    value: Any
    error: Any
    null: Any
    conditions: Sequence[Condition]
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def require_own_keys(study: Study) -> None:
    """Raise `CannotMeasure` if attention goes to another text."""
    if str(study.data.attrs.get("stack", "")) == "cross":
        raise CannotMeasure("attention goes to the tokens of another text, which have no place on a diagonal")


def require_sample(study: Study, name: str = "sample_texts") -> None:
    """Raise `CannotMeasure` if no text in the sample has what a claim needs."""
    if not get_values(study, name).sum():
        raise NothingCounted(NO_SAMPLE)


def get_layer_groups(study: Study) -> tuple[list[int], list[int], list[int]]:
    """Return the first, middle and last layers."""
    middle = get_middle_layers(study)
    if not middle:
        raise CannotMeasure(NO_MIDDLE)
    return get_first_layers(study), middle, get_last_layers(study)


def average(values: Any) -> float:
    """Return the mean of the numbers that are known; NaN if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def compute_median(values: Any) -> float:
    """Return the median of the numbers that are known; NaN if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else math.nan


def format_layers(layers: Sequence[int]) -> str:
    """Return the numbers of consecutive layers."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def format_percent(value: Any, error: Any) -> str:
    """Return a share with its standard error, if there is one, in percent."""
    return format_share(value) if np.isnan(error) else f"{value * 100:z.1f} ± {error * 100:.1f} %"


def format_share(value: Any) -> str:
    """Return a share in percent; never -0.0.

    >>> format_share(-0.0001)
    '0.0 %'
    """
    return f"{float(value) * 100:z.1f} %"


def format_number(value: Any, error: Any, digits: int = 2) -> str:
    """Return a number with its standard error, if there is one."""
    return f"{value:z.{digits}f}" if np.isnan(error) else f"{value:z.{digits}f} ± {error:.{digits}f}"


def format_groups(values: Floats, errors: Floats, format_value: Callable[[Any, Any], str]) -> str:
    """Return the numbers of the first, middle and last layers."""
    parts = [format_value(value, error) for value, error in zip(values[:3], errors[:3], strict=True)]
    return f"{parts[0]} in the first layers, {parts[1]} in the middle, {parts[2]} in the last"

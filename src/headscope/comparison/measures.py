"""The rates that are compared, each with its chance level.

Every rate is a ratio of two sums that a study holds in blocks of documents, so everything derived from it has a
delete-one-block jackknife error. The definitions are those of docs/method.md; here they are computed for all blocks at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headscope.array_types import Floats
from headscope.studies.jackknife import leave_out_blocks
from headscope.studies.rates import ATTENTION_SCORES, RATES, Rate, RateWords, sum_distances
from headscope.studies.result import Study
from headscope.studies.sample_size import get_filled_blocks

NEAR = "near_attention"
CROSS = "cross"
"""A stack whose queries and keys are of two texts, so that no key is near a query."""


@dataclass(frozen=True)
class RateSums:
    """Sums of a rate and of its chance level in each block.

    Attributes:
        numerators: Of shape (blocks, layers, heads), as are the `denominators`.
        chance_numerators: Of the same shape, or (blocks, 1, 1) if all heads share a chance level.
    """

    numerators: Floats
    denominators: Floats
    chance_numerators: Floats
    chance_denominators: Floats

    def compute_rates(self) -> Floats:
        """Return the rates by layer and head; NaN where nothing was counted."""
        return divide(self.numerators.sum(axis=0), self.denominators.sum(axis=0))

    def compute_chance(self) -> Floats:
        """Return what the rates would be without any preference."""
        return divide(self.chance_numerators.sum(axis=0), self.chance_denominators.sum(axis=0))

    def jackknife_rates(self) -> Floats:
        """Return the rates without each block in turn; of shape (blocks, layers, heads)."""
        return divide(leave_out_blocks(self.numerators), leave_out_blocks(self.denominators))

    def jackknife_chance(self) -> Floats:
        """Return the chance level without each block in turn."""
        return divide(leave_out_blocks(self.chance_numerators), leave_out_blocks(self.chance_denominators))


@dataclass(frozen=True)
class Measure(RateWords):
    """One rate of a head, how it is displayed, and how it is compared with chance."""

    name: str
    over: bool
    """whether chance divides it, instead of being subtracted"""
    compute_sums: Callable[[Study], RateSums]

    @property
    def against(self) -> str:
        return "over chance" if self.over else "minus chance"

    def compare_with_chance(self, rates: Floats, chance: Floats) -> Floats:
        """Return rates relative to chance, so that texts cut into other tokens can be compared."""
        return divide(rates, np.broadcast_to(chance, rates.shape)) if self.over else rates - chance


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Return a ratio; NaN where the denominator is 0."""
    blank = np.full(np.shape(numerators), np.nan)
    ratio: Floats = np.divide(numerators, denominators, out=blank, where=np.asarray(denominators) != 0)
    return ratio


def _get_blocks(study: Study, name: str) -> Floats:
    return np.asarray(study.data[f"{name}_blocks"].values[get_filled_blocks(study)], dtype=np.float64)


def _add_head_axes(sums: Floats) -> Floats:
    return sums.reshape(len(sums), 1, 1)


def _make_measure(name: str, rate: Rate) -> Measure:
    """Return the measure of a rate of docs/method.md; its sums are zeros if the study cannot measure it."""

    def compute_sums(study: Study) -> RateSums:
        if f"{rate.numerator}_blocks" not in study.data:  # an attention score that this study does not have
            nothing = np.zeros_like(_get_blocks(study, "pairs"))
            return RateSums(nothing, nothing, nothing, nothing)
        numerators, denominators = _get_blocks(study, rate.numerator), _get_blocks(study, rate.denominator)
        if denominators.ndim == 1:  # all heads have the same queries
            denominators = np.broadcast_to(_add_head_axes(denominators), numerators.shape)
        if bool(study.rate(name).isnull().all()):
            numerators, denominators = np.zeros_like(numerators), np.zeros_like(denominators)
        chance_numerators = (
            _get_blocks(study, rate.chance_numerator)
            if rate.chance_numerator
            else sum_distances(_get_blocks(study, "window_tokens"), study.data["tokens"].values)
        )
        chance_sums = (chance_numerators, _get_blocks(study, rate.chance_denominator))
        by_head = (_add_head_axes(sums) if sums.ndim == 1 else sums for sums in chance_sums)
        return RateSums(numerators, denominators, *by_head)

    return Measure(
        rate.label, rate.unit, rate.factor, rate.description, name, over=rate.over_chance, compute_sums=compute_sums
    )


def _sum_near_attention(study: Study) -> RateSums:
    attention: Floats
    if study.data.attrs.get("stack") == CROSS:  # attention has no offsets
        attention = np.zeros((*_get_blocks(study, "pairs").shape, study.data.sizes["offset"]))
    else:
        attention = _get_blocks(study, "attention_offset")
    is_near = np.abs(study.data["offset"].values) <= 1
    tokens = np.asarray(study.data["tokens"].values, dtype=np.float64)
    window_counts = _get_blocks(study, "window_tokens")
    even_attention = _compute_even_attention(len(tokens), causal=bool(study.data.attrs.get("causal", 0)))
    numerators, denominators = attention[..., is_near].sum(axis=-1), attention.sum(axis=-1)
    chance_numerators, chance_denominators = window_counts @ even_attention, window_counts @ tokens
    return RateSums(numerators, denominators, _add_head_axes(chance_numerators), _add_head_axes(chance_denominators))


def _compute_even_attention(lengths: int, *, causal: bool) -> Floats:
    """Return the evenly spread attention within ±1 token, summed over the queries of a window.

    Returns:
        Of shape (lengths,): index n is a window of n tokens.
    """
    length = np.arange(lengths, dtype=np.float64)
    if not causal:  # n = length: 3n − 2 elements of 1/n each
        return np.where(length > 0, (3 * length - 2) / np.maximum(length, 1), 0.0)
    # Query i of 1…n sees i keys; near ones are itself and, except for the first, the one before.
    shares = np.where(length > 1, 2 / np.maximum(length, 1), (length == 1).astype(np.float64))
    return np.asarray(np.cumsum(shares))


MEASURES = {
    **{name: _make_measure(name, rate) for name, rate in RATES.items()},
    NEAR: Measure(
        "attention within ±1",
        "%",
        100,
        "How much of a head's attention goes to the token itself and its two neighbours.",
        NEAR,
        over=False,
        compute_sums=_sum_near_attention,
    ),
}
"""Everything compared head by head."""
SCORE_MEASURES = {name: _make_measure(name, score) for name, score in ATTENTION_SCORES.items()}
"""what is compared head by head on request only"""
OVER_DEPTH = ("repeat_rate", "same_sentence_rate", "mean_distance", "dominant_share", NEAR)
"""Rates shown over depth; the repeat rate within sentences would repeat the repeat rate."""
DEPTH_PANELS = (
    *((rate, "against_chance") for rate in ("repeat_rate", "same_sentence_rate", "dominant_share", "mean_distance")),
    ("mean_distance", "value"),
    (NEAR, "against_chance"),
)
"""rate and column of each panel over depth; mean distance against chance and in tokens are neighbours"""

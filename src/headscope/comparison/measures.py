"""The rates that are compared, each with its chance level, also over relative depth.

Every rate is a ratio of two sums that a study holds in blocks of documents, so everything derived from it has a
delete-one-block jackknife error. The definitions are those of docs/method.md; here they are computed for all blocks at
once.

Rates over relative depth: the mean over the heads of each layer, also against chance.

The first layer is at depth 0, the last at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from headscope.array_types import Floats
from headscope.studies.rates import (
    ATTENTION_SCORES,
    RATES,
    Rate,
    RateWords,
    compute_jackknife_error,
    leave_out_blocks,
    sum_distances,
)
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


COLUMNS = (
    "model", "rate", "layer", "depth", "heads", "value", "error", "chance", "against_chance", "against_chance_error",
)  # fmt: skip


def compute_relative_depth(study: Study) -> Floats:
    """Return where each layer lies between the first (0) and the last (1) of its model.

    A study may hold only some layers of a model. Their numbers are then those of the model, and the attribute `depth`
    is its number of layers.
    """
    layers = np.asarray(study.layers, dtype=np.float64)
    last = max(float(study.data.attrs.get("depth", 0)) - 1, float(layers[-1]))
    return layers / last if last > 0 else np.zeros_like(layers)


def tabulate_depth(names: Sequence[str], studies: Sequence[Study]) -> pd.DataFrame:
    """Return a table with a row for each model, rate and layer; NaN where nothing was counted."""
    parts = [
        _tabulate_study(name, study, MEASURES[rate])
        for name, study in zip(names, studies, strict=True)
        for rate in OVER_DEPTH
    ]
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def _tabulate_study(name: str, study: Study, measure: Measure) -> pd.DataFrame:
    sums = measure.compute_sums(study)
    rates, chance = sums.compute_rates(), sums.compute_chance()
    jackknifed, chance_jackknifed = sums.jackknife_rates(), sums.jackknife_chance()
    relative = measure.compare_with_chance(rates, chance)
    relative_jackknifed = measure.compare_with_chance(jackknifed, chance_jackknifed)
    return pd.DataFrame(
        {
            "model": name,
            "rate": measure.name,
            "layer": study.layers,
            "depth": compute_relative_depth(study),
            "heads": np.isfinite(rates).sum(axis=-1),
            "value": average_heads(rates),
            "error": compute_jackknife_error(average_heads(jackknifed)),
            "chance": average_heads(np.broadcast_to(chance, rates.shape)),
            "against_chance": average_heads(relative),
            "against_chance_error": compute_jackknife_error(average_heads(relative_jackknifed)),
        }
    )


def average_heads(rates: Floats) -> Floats:
    """Return the mean over heads that have a rate; NaN where none has.

    Args:
        rates: Of shape (…, heads).
    """
    known = np.isfinite(rates)
    count = known.sum(axis=-1)
    sums = np.where(known, rates, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, count, out=np.full(sums.shape, np.nan), where=count > 0)
    return means

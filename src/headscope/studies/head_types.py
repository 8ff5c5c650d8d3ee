"""Classify heads by comparing their rates with chance: one head type per head.

A head type requires an effect that is both large and certain. Large: the odds of a rate are at least a fixed multiple
of the odds expected by chance (for mean distances, the mean itself is compared). Certain: the rate exceeds chance by
more than `Z` jackknife standard errors of that difference, over at least `MIN_BLOCKS` blocks of texts. The *strength*
of an effect is log(odds ratio) / log(required odds ratio), so 1 is just enough for every type.
docs/head-types.md says where the thresholds come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from headscope.array_types import Bools, Floats
from headscope.studies import signal_to_noise
from headscope.studies.labels import divide_sums
from headscope.studies.result import Study
from headscope.studies.wording import adapt_wording

Z = 5
"""Required standard errors above chance. By Student's t over 20 blocks, one rate in 25,000 reaches this by chance."""
MIN_BLOCKS = 10
"""Least number of blocks with texts; with fewer, the jackknife error itself is too uncertain for `Z`."""
NEIGHBORS = 2
"""Largest distance, in tokens, of two tokens that count as neighbours."""
EXTREME = 0.001
"""Shares are clipped to [EXTREME, 1 - EXTREME], so that odds stay finite."""
FEW_PAIRS = 2
"""Least number of pairs per text; the largest similarity of a text alone is one pair."""
MANY_PAIRS = 0.1
"""Least share of all pairs of the texts that a diffuse head has."""
NEAR = "near_share"
RATES = ("repeat_rate", "same_sentence_rate", "mean_distance", "dominant_share", NEAR)


@dataclass(frozen=True)
class HeadType:
    """A head type and its definition."""

    name: str
    description: str
    """meaning, in one sentence"""
    criterion: str
    """condition for a head to be of this type, in one sentence with its thresholds"""


@dataclass(frozen=True)
class _Preference:
    """A head type that is decided by one rate."""

    name: str
    rate: str
    times: float
    """required multiple of the odds by chance (for mean distances: of the mean)"""
    meaning: str
    measured: str
    """description of the rate, for the criterion"""
    template: str
    """description of one head, with the fields {rate}, {chance}, {apart} and {chance_apart}"""
    max_distance_ratio: float = math.inf
    """largest allowed ratio of the head's mean distance to that expected by chance"""

    @property
    def head_type(self) -> HeadType:
        odds = "" if self.rate == "mean_distance" else "the odds of "
        criterion = f"at least {self.times:g} times {odds}chance, and more than {Z} standard errors above it"
        if math.isfinite(self.max_distance_ratio):
            criterion += f"; and a mean distance of at most {self.max_distance_ratio:g} times chance"
        return HeadType(self.name, self.meaning, f"{self.measured}: {criterion}.")

    def is_large(self, table: pd.DataFrame, strength: Floats) -> Bools:
        """Return for each head whether the effect is as large as the criterion requires."""
        with np.errstate(invalid="ignore"):
            return (strength >= 1) & ~(
                table["mean_distance"] > self.max_distance_ratio * table["mean_distance_chance"]
            ).to_numpy()

    def compute_strength(self, rate: Floats, chance: Floats) -> Floats:
        """Return the strength of the effect of each head.

        It is NaN where there is no rate, or where chance is 0 or 1 and odds are undefined.
        """
        scale = np.log if self.rate == "mean_distance" else _compute_log_odds
        no_room = (chance <= 0) | ((chance >= 1) & (self.rate != "mean_distance"))
        with np.errstate(invalid="ignore", divide="ignore"):
            effect: Floats = (scale(rate) - scale(chance)) / math.log(self.times)
        return np.where(no_room | np.isnan(rate), np.nan, effect)

    def describe_head(self, head: pd.Series) -> str:
        format_value = _format_tokens if self.rate == "mean_distance" else _format_percent
        distances = {
            "apart": _format_tokens(head["mean_distance"]),
            "chance_apart": _format_tokens(head["mean_distance_chance"]),
        }
        return self.template.format(
            rate=format_value(head[self.rate]), chance=format_value(head[f"{self.rate}_chance"]), **distances
        )


PREFERENCES = (
    _Preference(
        "repeat-token",
        "repeat_rate",
        6,
        "It relates tokens that occur again to each other.",
        "Pairs of equal tokens",
        "{rate} of its pairs join equal tokens (chance {chance})",
    ),
    _Preference(
        "local",
        NEAR,
        8,
        "Its pairs are neighbours.",
        f"Pairs at most {NEIGHBORS} tokens apart",
        f"{{rate}} of its pairs are at most {NEIGHBORS} tokens apart (chance {{chance}}), "
        "on average {apart} (chance {chance_apart})",
        max_distance_ratio=0.5,
    ),
    _Preference(
        "within-sentence",
        "same_sentence_rate",
        4,
        "It relates the tokens of one sentence to each other.",
        "Pairs within one sentence",
        "{rate} of its pairs lie within one sentence (chance {chance})",
    ),
    _Preference(
        "one-token",
        "dominant_share",
        3,
        "In each text it relates everything to one chosen token.",
        "The share of a text's pairs that include its dominant token, against as many pairs drawn at random",
        "{rate} of a text's pairs include one token (chance {chance})",
    ),
    _Preference(
        "long-range",
        "mean_distance",
        1.2,
        "Its pairs are farther apart than tokens are on average.",
        "The mean distance of its pairs",
        "its pairs are {rate} tokens apart on average (chance {chance})",
    ),
)
DIFFUSE = HeadType(
    "diffuse",
    "It writes nearly the same for many tokens, without any preference that is measured here.",
    f"At least {MANY_PAIRS:.0%} of all pairs are high, and every rate that can be measured is nearer to chance, above "
    "or below, than its criterion asks.".replace("%", " %"),
)
SILENT = HeadType(
    "silent",
    "It has no high pairs, or almost none: nothing can be said of them.",
    f"Fewer than {FEW_PAIRS} high pairs per text.",
)
UNDECIDED = HeadType(
    "undecided",
    "None of its preferences is both large and certain enough for a name, and yet its rates are not all near chance.",
    "None of the others.",
)
HEAD_TYPES = (*(preference.head_type for preference in PREFERENCES), DIFFUSE, SILENT, UNDECIDED)
"""Every head has exactly one of these; the last one is the remainder."""
NAMES = tuple(head_type.name for head_type in HEAD_TYPES)


def head_types(study: Study) -> pd.DataFrame:
    """Return one row per head: its type, others that fit too, a description, and the numbers they rest on.

    >>> import headscope
    >>> table = headscope.head_types(headscope.study(headscope.load(), headscope.documents(limit=3)))
    >>> len(table), table.columns[:4].tolist()
    (72, ['layer', 'head', 'name', 'head_type'])
    """
    table, certain = _measure_heads(study)
    strengths = {
        p: p.compute_strength(table[p.rate].to_numpy(), table[f"{p.rate}_chance"].to_numpy()) for p in PREFERENCES
    }
    large = {p: p.is_large(table, strengths[p]) for p in PREFERENCES}
    choices = []
    for k, (_, head) in enumerate(table.iterrows()):
        measurable = [p for p in PREFERENCES if not math.isnan(strengths[p][k])]
        effects = [_Effect(p, float(strengths[p][k]), bool(large[p][k]), bool(certain[p.rate][k])) for p in measurable]
        choices.append(_choose_head_type(head, sorted(effects, key=lambda effect: -effect.strength)))
    for position, column in enumerate(("head_type", "also", "description", "strength"), start=3):
        table.insert(position, column, [head[column] for head in choices])
    table["description"] = [adapt_wording(study, words) for words in table["description"]]
    return table.sort_values(["layer", "head"], ignore_index=True)


def count_heads(table: pd.DataFrame) -> pd.Series:
    """Return the number of heads of each type, in the order of `HEAD_TYPES`."""
    return table["head_type"].value_counts().reindex(list(NAMES), fill_value=0).rename("heads").rename_axis("head_type")


@dataclass(frozen=True)
class _Effect:
    """How strongly one rate of one head supports a head type."""

    preference: _Preference
    strength: float
    large: bool
    certain: bool


def _choose_head_type(head: pd.Series, effects: Sequence[_Effect]) -> dict[str, Any]:
    """Choose a head type from the effects, which are sorted from the strongest.

    Returns the table cells of the head: its type, others that fit, the description and the strength.
    """
    if not head["pairs_per_text"] >= FEW_PAIRS:
        words = f"{head['pairs_per_text']:.1f} high pairs per text" if head["pairs"] else "no high pairs"
        return _make_choice(SILENT.name, words)
    fitting = [effect for effect in effects if effect.large and effect.certain]
    if fitting:
        first, *others = fitting
        return _make_choice(
            first.preference.name,
            first.preference.describe_head(head),
            tuple(e.preference.name for e in others),
            first.strength,
        )
    if head["pair_share"] >= MANY_PAIRS and all(abs(effect.strength) < 1 for effect in effects):
        return _make_choice(
            DIFFUSE.name, f"{_format_percent(head['pair_share'])} of all pairs are high, no rate is far from chance"
        )
    if not effects or effects[0].strength <= 0:
        return _make_choice(UNDECIDED.name, "no rate is above chance")
    nearest = effects[0]
    shortfall = "not certain" if nearest.large else "not enough"
    return _make_choice(
        UNDECIDED.name, f"nearest to {nearest.preference.name}, {shortfall}: {nearest.preference.describe_head(head)}"
    )


def _make_choice(name: str, words: str, also: tuple[str, ...] = (), strength: float = math.nan) -> dict[str, Any]:
    return {"head_type": name, "also": also, "description": f"{name}: {words}", "strength": strength}


def _measure_heads(study: Study) -> tuple[pd.DataFrame, dict[str, Bools]]:
    """Return the numbers of every head, and for each rate whether it is above chance with certainty."""

    def compute_rates_and_excess(study_part: Study) -> Floats:
        rates, chances = _stack_rates(study_part), _stack_chances(study_part)
        return np.stack([rates, rates - chances])

    (rates, excess), (errors, excess_errors) = study.jackknife(compute_rates_and_excess)
    enough = np.count_nonzero(study.data["texts_blocks"]) >= MIN_BLOCKS
    with np.errstate(invalid="ignore"):
        is_above_chance = (excess > Z * excess_errors) & enough
    pairs, chances = study.data["pairs"].values, _stack_chances(study)
    numbers: dict[str, Any] = {
        "layer": np.repeat(study.layers, len(study.heads)),
        "head": np.tile(study.heads, len(study.layers)),
        "name": [f"L{layer}H{head}" for layer in study.layers for head in study.heads],
        "pairs": pairs.ravel(),
        "pairs_per_text": _divide(pairs, study.texts),
        "pair_share": _divide(pairs, int(study.data["all_pairs"])),
    }
    for k, name in enumerate(RATES):
        numbers[name] = rates[k].ravel()
        numbers[f"{name}_error"] = errors[k].ravel()
        numbers[f"{name}_chance"] = chances[k].ravel()
    if signal_to_noise.has_signal_shares(study.data):
        shares = study.signal_shares()
        numbers |= {name: shares[name].values.ravel() for name in ("signal_share", "position_share", "snr_db")}
    return pd.DataFrame(numbers), {name: is_above_chance[k].ravel() for k, name in enumerate(RATES)}


def _stack_rates(study: Study) -> Floats:
    """Return all rates: (rate, layer, head)."""
    pairs_by_distance = study.data["distance"].variable
    near_share = divide_sums(
        pairs_by_distance.isel(distance=slice(NEIGHBORS)).sum("distance"), pairs_by_distance.sum("distance")
    )
    return np.stack([near_share.values if name == NEAR else study.rate(name).values for name in RATES])


def _stack_chances(study: Study) -> Floats:
    """Return the rates expected by chance: (rate, layer, head)."""
    data = study.data
    texts_by_tokens, tokens = data["window_tokens"].values, data["tokens"].values
    distances = np.arange(1, NEIGHBORS + 1)[:, None]  # a window of n tokens has n − d pairs that are d tokens apart
    near_share = divide_sums(
        xr.Variable((), (texts_by_tokens * (tokens - distances).clip(min=0)).sum()), data["all_pairs"].variable
    )
    chances = (near_share if name == NEAR else study.chance(name) for name in RATES)
    return np.stack([np.broadcast_to(chance.values, data["pairs"].shape) for chance in chances])


def _divide(pairs: Any, total: int) -> Floats:
    shares: Floats = pairs.ravel() / total if total else np.full(pairs.size, np.nan)
    return shares


def _compute_log_odds(shares: Floats) -> Floats:
    clipped = np.clip(shares, EXTREME, 1 - EXTREME)
    odds: Floats = np.log(clipped / (1 - clipped))
    return odds


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def _format_tokens(distance: float) -> str:
    return f"{distance:.0f}" if distance >= 9.95 else f"{distance:.1f}"

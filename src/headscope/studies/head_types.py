"""Classify heads by comparing their rates with chance: one head type per head.

A head type requires an effect that is both large and certain. Large: the odds of a rate are at least a fixed multiple
of the odds expected by chance (for mean distances, the mean itself is compared). Certain: the rate exceeds chance by
more than `Z` jackknife standard errors of that difference. The *strength* of an effect is
log(odds ratio) / log(required odds ratio), so 1 is just enough for every type. Without enough texts no head has a type.
docs/head-types.md says where the thresholds come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headscope.array_types import Bools, Floats
from headscope.corpus.windows import BLOCKS
from headscope.studies.jackknife import MIN_BLOCKS
from headscope.studies.rates import NEAR_SHARE, NEIGHBORS
from headscope.studies.sample_size import MIN_TEXTS, TOO_FEW_TEXTS

Z = 5
"""Required standard errors above chance. By Student's t over 20 blocks, one rate in 25,000 reaches this by chance."""
EXTREME = 0.001
"""Shares are clipped to [EXTREME, 1 - EXTREME], so that odds stay finite."""
FEW_PAIRS = 2
"""Least number of pairs per text; the largest similarity of a text alone is one pair."""
MANY_PAIRS = 0.1
"""Least share of all pairs of the texts that a diffuse head has."""


@dataclass(frozen=True)
class HeadType:
    """A head type and its definition.

    Examples
    --------
    >>> from headscope.studies.head_types import HEAD_TYPES
    >>> HEAD_TYPES[1].name, HEAD_TYPES[1].description
    ('local', 'Its pairs are neighbours.')
    """

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
        NEAR_SHARE,
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
UNKNOWN = HeadType(
    TOO_FEW_TEXTS,
    "The study has too few texts to say of any head what it is.",
    f"Fewer than {MIN_TEXTS} texts, or fewer than {MIN_BLOCKS} of {BLOCKS} blocks of documents that hold texts.",
)
HEAD_TYPES = (*(preference.head_type for preference in PREFERENCES), DIFFUSE, SILENT, UNDECIDED, UNKNOWN)
"""Every head has exactly one of these. All heads of a study are of the last one, or none."""
NAMES = tuple(head_type.name for head_type in HEAD_TYPES)
LETTERS = ("R", "L", "S", "1", "F", "d", "–", "?", "·")
"""a letter for each of `NAMES`, in the cells of maps"""
TYPE_COLUMNS = ("head_type", "also", "description", "strength")


def classify_heads(table: pd.DataFrame, is_certain: Mapping[str, Bools], missing: str = "") -> pd.DataFrame:
    """Return a table of heads with their types in the columns head_type, also, description and strength.

    Args:
        table: One row per head, with the rates of `PREFERENCES` and what chance gives (`<rate>_chance`).
        is_certain: For each rate, whether it is above chance with certainty (head,).
        missing: How many texts there are and how many are needed, if there are too few for any type.
    """
    strengths = {
        p: p.compute_strength(table[p.rate].to_numpy(), table[f"{p.rate}_chance"].to_numpy()) for p in PREFERENCES
    }
    large = {p: p.is_large(table, strengths[p]) for p in PREFERENCES}
    choices = []
    for k, (_, head) in enumerate(table.iterrows()):
        measurable = [p for p in PREFERENCES if not math.isnan(strengths[p][k])]
        effects = [
            _Effect(p, float(strengths[p][k]), bool(large[p][k]), bool(is_certain[p.rate][k])) for p in measurable
        ]
        effects.sort(key=lambda effect: -effect.strength)
        choices.append(_make_choice(UNKNOWN.name, missing) if missing else _choose_head_type(head, effects))
    return table.assign(**{column: [head[column] for head in choices] for column in TYPE_COLUMNS})


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


def _compute_log_odds(shares: Floats) -> Floats:
    clipped = np.clip(shares, EXTREME, 1 - EXTREME)
    odds: Floats = np.log(clipped / (1 - clipped))
    return odds


def _format_percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def _format_tokens(distance: float) -> str:
    return f"{distance:.0f}" if distance >= 9.95 else f"{distance:.1f}"

"""Classify heads by what their outputs are similar for: from their high pairs, against chance.

Large: the odds of a rate are at least a fixed multiple of the odds expected by chance (for mean distances, the mean
itself is compared). Certain: the rate exceeds chance by more than `Z` jackknife standard errors of that difference. The
*strength* of an effect is log(odds ratio) / log(required odds ratio), so 1 is just enough for every type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from headscope.array_types import Bools, Floats
from headscope.studies.rates import NEAR_SHARE, NEIGHBORS
from headscope.studies.type_criteria import (
    UNKNOWN,
    Choice,
    HeadType,
    Z,
    compute_strength,
    format_percent,
    format_tokens,
)

FEW_PAIRS = 2
"""Least number of pairs per text; the largest similarity of a text alone is one pair."""
MOST_TEXTS = 0.5
"""A token is named as the head's own if it is the dominant token in more than this share of the texts."""
SOME_TEXTS = 0.2
"""It is mentioned if it is that in at least this share."""
MANY_PAIRS = 0.1
"""Least share of all pairs of the texts that a diffuse head has."""


@dataclass(frozen=True)
class _Preference:
    """A head type that is decided by one rate."""

    name: str
    letter: str
    rate: str
    times: float
    """required multiple of the odds by chance (for mean distances: of the mean)"""
    meaning: str
    measured: str
    """description of the rate, for the criterion"""
    template: str
    """description of one head, with the fields {rate}, {chance}, {apart}, {chance_apart} and {token}"""
    max_distance_ratio: float = math.inf
    """largest allowed ratio of the head's mean distance to that expected by chance"""

    @property
    def head_type(self) -> HeadType:
        odds = "the odds of " if self._uses_odds else ""
        criterion = f"at least {self.times:g} times {odds}chance, and more than {Z} standard errors above it"
        if math.isfinite(self.max_distance_ratio):
            criterion += f"; and a mean distance of at most {self.max_distance_ratio:g} times chance"
        return HeadType(self.name, self.letter, self.meaning, f"{self.measured}: {criterion}.")

    @property
    def _uses_odds(self) -> bool:
        return self.rate != "mean_distance"

    def is_large(self, table: pd.DataFrame, strength: Floats) -> Bools:
        """Return for each head whether the effect is as large as the criterion requires."""
        with np.errstate(invalid="ignore"):
            return (strength >= 1) & ~(
                table["mean_distance"] > self.max_distance_ratio * table["mean_distance_chance"]
            ).to_numpy()

    def compute_strength(self, table: pd.DataFrame) -> Floats:
        """Return the strength of the effect of each head; NaN where it cannot be measured."""
        rate, chance = table[self.rate].to_numpy(), table[f"{self.rate}_chance"].to_numpy()
        return compute_strength(rate, chance, self.times, odds=self._uses_odds)

    def describe_head(self, head: pd.Series) -> str:
        format_value = format_percent if self._uses_odds else format_tokens
        return self.template.format(
            rate=format_value(head[self.rate]),
            chance=format_value(head[f"{self.rate}_chance"]),
            apart=format_tokens(head["mean_distance"]),
            chance_apart=format_tokens(head["mean_distance_chance"]),
            token=_describe_token(head),
        )


def _describe_token(head: pd.Series) -> str:
    """Return which token a head's outputs are similar to: its own name if it is that in most texts."""
    share = head.get("dominant_token_share", math.nan)
    if not share >= SOME_TEXTS:
        return "one token"
    token, texts = f"“{head['dominant_token']}”", f"{format_percent(share)} of the texts"
    return f"{token}, in {texts}" if share > MOST_TEXTS else f"one token, which is most often {token}, in {texts}"


PREFERENCES = (
    _Preference(
        "repeat-token",
        "R",
        "repeat_rate",
        6,
        "Equal tokens get similar outputs.",
        "Pairs of equal tokens",
        "for equal tokens ({rate}, chance {chance})",
    ),
    _Preference(
        "local",
        "L",
        NEAR_SHARE,
        8,
        "Tokens next to each other get similar outputs.",
        f"Pairs at most {NEIGHBORS} tokens apart",
        f"for neighbours at most {NEIGHBORS} tokens apart ({{rate}}, chance {{chance}}, "
        "on average {apart} apart, chance {chance_apart})",
        max_distance_ratio=0.5,
    ),
    _Preference(
        "within-sentence",
        "S",
        "same_sentence_rate",
        4,
        "Tokens of one sentence get similar outputs.",
        "Pairs within one sentence",
        "within a sentence ({rate}, chance {chance})",
    ),
    _Preference(
        "one-token",
        "1",
        "dominant_share",
        3,
        "In each text the output of one token is similar to those of many others.",
        "The share of a text's pairs that include its dominant token, against as many pairs drawn at random",
        "to that of {token} ({rate} of a text's pairs, chance {chance})",
    ),
    _Preference(
        "long-range",
        "F",
        "mean_distance",
        1.2,
        "Tokens far apart get similar outputs.",
        "The mean distance of its pairs",
        "for tokens far apart ({rate} tokens on average, chance {chance})",
    ),
)
DIFFUSE = HeadType(
    "diffuse",
    "d",
    "It writes nearly the same for many tokens, without any preference that is measured here.",
    f"At least {MANY_PAIRS:.0%} of all pairs are high, and every rate that can be measured is nearer to chance, above "
    "or below, than its criterion asks.".replace("%", " %"),
)
SILENT = HeadType(
    "silent",
    "–",
    "It has no high pairs, or almost none: nothing can be said of them.",
    f"Fewer than {FEW_PAIRS} high pairs per text.",
)
UNDECIDED = HeadType(
    "undecided",
    "?",
    "None of its preferences is both large and certain enough for a name, and yet its rates are not all near chance.",
    "None of the others.",
)
WRITES_TYPES = (*(preference.head_type for preference in PREFERENCES), DIFFUSE, SILENT, UNDECIDED, UNKNOWN)
"""Every head has exactly one of these. All heads of a study are of the last one, or none."""
DECIDING_RATES = {preference.name: preference.rate for preference in PREFERENCES}
"""the rate that a type is based on"""


def classify_outputs(table: pd.DataFrame, is_certain: Mapping[str, Bools]) -> list[Choice]:
    """Return what the outputs of each head are similar for.

    Args:
        table: One row per head, with the rates of `PREFERENCES` and what chance gives (`<rate>_chance`). With
            `dominant_token`, the token that a head's outputs are similar to is named.
        is_certain: For each rate, whether it is above chance with certainty (head,).
    """
    strengths = {preference: preference.compute_strength(table) for preference in PREFERENCES}
    large = {preference: preference.is_large(table, strengths[preference]) for preference in PREFERENCES}
    choices = []
    for k, (_, head) in enumerate(table.iterrows()):
        measurable = [p for p in PREFERENCES if not math.isnan(strengths[p][k])]
        effects = [
            _Effect(p, float(strengths[p][k]), bool(large[p][k]), bool(is_certain[p.rate][k])) for p in measurable
        ]
        effects.sort(key=lambda effect: -effect.strength)
        choices.append(_choose_type(head, effects))
    return choices


@dataclass(frozen=True)
class _Effect:
    """How strongly one rate of one head supports a head type."""

    preference: _Preference
    strength: float
    large: bool
    certain: bool


def _choose_type(head: pd.Series, effects: Sequence[_Effect]) -> Choice:
    """Choose a type from the effects, which are sorted from the strongest."""
    if not head["pairs_per_text"] >= FEW_PAIRS:
        words = f"{head['pairs_per_text']:.1f} high pairs per text" if head["pairs"] else "no high pairs"
        return Choice(SILENT.name, f"outputs hardly ever similar ({words})")
    fitting = [effect for effect in effects if effect.large and effect.certain]
    if fitting:
        words = " and ".join(effect.preference.describe_head(head) for effect in fitting)
        also = tuple(effect.preference.name for effect in fitting[1:])
        return Choice(fitting[0].preference.name, f"outputs similar {words}", also, fitting[0].strength)
    if head["pair_share"] >= MANY_PAIRS and all(abs(effect.strength) < 1 for effect in effects):
        share = format_percent(head["pair_share"])
        return Choice(DIFFUSE.name, f"outputs similar for many tokens ({share} of all pairs), no rate far from chance")
    if not effects or effects[0].strength <= 0:
        return Choice(UNDECIDED.name, "outputs similar, no rate above chance")
    nearest = effects[0]
    shortfall = "not certainly" if nearest.large else "not enough"
    return Choice(UNDECIDED.name, f"outputs similar, but {shortfall}, {nearest.preference.describe_head(head)}")

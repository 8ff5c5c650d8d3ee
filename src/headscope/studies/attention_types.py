"""Classify heads by what they attend to: from the attention scores of METHOD §7, against attention spread evenly.

A head attends to a *target* if the target receives much of its attention, many times what it would receive of even
attention, and with certainty. Targets are of two kinds. What a *relation* points to differs from query to query: the
previous token, the same token elsewhere. *Places* are the same for all queries: the first token, special tokens,
punctuation. There attention rests that a head has no better use for, so relations come before places, and within each
kind the target that receives most attention comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from headscope.array_types import Bools
from headscope.studies.type_criteria import (
    UNKNOWN,
    Choice,
    HeadType,
    Z,
    compute_strength,
    format_percent,
    format_tokens,
)

TIMES = 4
"""required multiple of the odds that even attention gives a target"""
MIN_SHARE = 0.2
"""least share of the attention that a target receives"""
MIN_SHARE_OF_TOKENS = 0.1
"""the same for targets that a head has to look for by the token that they hold"""
MAX_DISTANCE_RATIO = 0.5
"""largest ratio of a local head's mean distance to that of even attention"""
MIN_ENTROPY = 0.9
"""least entropy of a broad head, where 1 is even attention"""
DISTANCE, ENTROPY = "attention_distance", "attention_entropy"
OTHER_SPECIAL = "attends_other_special"
"""attention to special tokens without the first token, if that is special: the difference of two scores"""
NEXT_TO = ("previous-token", "next-token", "self")
"""targets that are near by definition, of which it is not said that they are local as well"""


@dataclass(frozen=True)
class _Target:
    """A head type that is decided by the share of attention that goes to one kind of token."""

    name: str
    letter: str
    score: str
    words: str
    """what receives the attention"""
    is_place: bool = False
    min_share: float = MIN_SHARE

    @property
    def head_type(self) -> HeadType:
        return HeadType(
            self.name,
            self.letter,
            f"It attends to {self.words}.",
            f"Its attention to {self.words}: at least {self.min_share:.0%}, at least {TIMES} times the odds of even "
            f"attention, and more than {Z} standard errors above it.".replace("%", " %"),
        )

    def describe_share(self, head: pd.Series) -> str:
        share, chance = head[self.score], head[f"{self.score}_chance"]
        return f"{self.words} ({format_percent(share)}, uniform {format_percent(chance)})"


TARGETS = (
    _Target("previous-token", "P", "attends_previous", "the previous token"),
    _Target("next-token", "N", "attends_next", "the next token"),
    _Target("self", "S", "attends_self", "the token itself"),
    _Target("duplicate-token", "D", "attends_duplicate", "the same token elsewhere", min_share=MIN_SHARE_OF_TOKENS),
    _Target(
        "induction",
        "I",
        "attends_induction",
        "what followed the same token before",
        min_share=MIN_SHARE_OF_TOKENS,
    ),
    _Target("first-token", "1", "attends_first", "the first token", is_place=True),
    _Target("special-token", "#", OTHER_SPECIAL, "special tokens other than the first", is_place=True),
    _Target("punctuation", "!", "attends_punctuation", "punctuation", is_place=True),
)
LOCAL = HeadType(
    "local",
    "L",
    "It attends to tokens that are near, without one place among them.",
    f"The mean distance of what it attends to: at most {MAX_DISTANCE_RATIO:g} times that of even attention, and more "
    f"than {Z} standard errors below it; and neither {', '.join(NEXT_TO[:-1])} nor {NEXT_TO[-1]}.",
)
BROAD = HeadType(
    "broad",
    "b",
    "It spreads its attention over nearly all tokens.",
    f"An entropy of at least {MIN_ENTROPY:g}, where 1 is even attention, and none of the above.",
)
MIXED = HeadType(
    "mixed",
    "?",
    "It attends to some tokens much more than to others, and none of the above fits.",
    "None of the others.",
)
UNMEASURED = HeadType("not measured", "–", "Its attention was not measured.", "All scores are missing.")
ATTENDS_TYPES = (
    *(target.head_type for target in TARGETS if not target.is_place),
    LOCAL,
    *(target.head_type for target in TARGETS if target.is_place),
    BROAD,
    MIXED,
    UNMEASURED,
    UNKNOWN,
)
"""Every head has exactly one of these."""
DECIDING_SCORES = {target.name: target.score for target in TARGETS} | {LOCAL.name: DISTANCE, BROAD.name: ENTROPY}
"""the score that a type is based on"""


@dataclass(frozen=True)
class _Effect:
    """How strongly one score of one head supports a type."""

    target: _Target
    share: float
    strength: float
    certain: bool

    @property
    def fits(self) -> bool:
        return self.share >= self.target.min_share and self.strength >= 1 and self.certain


def classify_attention(table: pd.DataFrame, is_certain: Mapping[str, Bools]) -> list[Choice]:
    """Return what each head attends to.

    Args:
        table: One row per head, with the scores of `TARGETS`, distance and entropy, and what even attention gives
            (`<score>_chance`).
        is_certain: For each score, whether it is above that with certainty (head,); for the distance, below.
    """
    strengths = {
        target: compute_strength(table[target.score].to_numpy(), table[f"{target.score}_chance"].to_numpy(), TIMES)
        for target in TARGETS
    }
    choices = []
    for k, (_, head) in enumerate(table.iterrows()):
        effects = [
            _Effect(t, float(head[t.score]), float(strengths[t][k]), bool(is_certain[t.score][k]))
            for t in TARGETS
            if not math.isnan(strengths[t][k])
        ]
        choices.append(_choose_type(head, effects, near=bool(is_certain[DISTANCE][k])))
    return choices


def _choose_type(head: pd.Series, effects: list[_Effect], *, near: bool) -> Choice:
    """Choose a type for a head.

    Args:
        head: Its row of the table.
        effects: Of the targets that could be measured.
        near: Whether its mean distance is below that of even attention with certainty.
    """
    if not effects and math.isnan(head[ENTROPY]):
        return Choice(UNMEASURED.name, "attention not measured")
    effects = sorted(effects, key=lambda effect: (effect.target.is_place, -effect.share))
    fitting = [effect for effect in effects if effect.fits]
    names = [effect.target.name for effect in fitting]
    words = [effect.target.describe_share(head) for effect in fitting]
    strengths = [effect.strength for effect in fitting]
    ratio = head[DISTANCE] / head[f"{DISTANCE}_chance"]
    if near and ratio <= MAX_DISTANCE_RATIO and not set(names) & set(NEXT_TO):
        place = sum(not effect.target.is_place for effect in fitting)
        names.insert(place, LOCAL.name)
        words.insert(place, f"near tokens ({_describe_distance(head)})")
        strengths.insert(place, math.log(ratio) / math.log(MAX_DISTANCE_RATIO) if ratio > 0 else math.inf)
    if names:
        return Choice(names[0], f"attends to {' and '.join(words)}", tuple(names[1:]), strengths[0])
    if head[ENTROPY] >= MIN_ENTROPY:
        return Choice(BROAD.name, f"attends to nearly all tokens (entropy {head[ENTROPY]:.2f} of 1)")
    above = [effect for effect in effects if effect.strength > 0]
    if not above:
        return Choice(MIXED.name, "attends to no kind of token more than uniform attention")
    most = max(above, key=lambda effect: effect.share)
    return Choice(MIXED.name, f"attends to several kinds of tokens, most to {most.target.describe_share(head)}")


def _describe_distance(head: pd.Series) -> str:
    return f"{format_tokens(head[DISTANCE])} away on average, uniform {format_tokens(head[f'{DISTANCE}_chance'])}"

"""The rates of a head: the sums that each is a ratio of, the sums of its chance level, and how it is displayed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headscope.array_types import Floats


@dataclass(frozen=True)
class RateWords:
    """How a rate is displayed."""

    label: str
    unit: str
    factor: float
    """from the stored number to the one shown"""
    description: str
    """what it means for a head, in one sentence"""
    short_label: str = field(default="", kw_only=True)
    """header of a narrow column; may have two lines"""


@dataclass(frozen=True)
class Rate(RateWords):
    """A ratio of two sums of a study."""

    numerator: str
    denominator: str
    chance_numerator: str
    """Empty: the distances of all pairs, which follow from the lengths of the windows (`sum_distances`)."""
    chance_denominator: str
    of_words: bool = False
    """whether it is about words and sentences: it is not measured on images, where it is NaN"""
    over_chance: bool = False
    """whether it is compared with chance as a ratio, not as a difference"""

    @property
    def sums(self) -> tuple[str, str]:
        """Numerator and denominator."""
        return self.numerator, self.denominator


RATES = {
    "repeat_rate": Rate(
        "repeat rate", "%", 100, "How many of a head's high pairs join two equal tokens.",
        "equal", "pairs", "all_equal", "all_pairs", of_words=True, short_label="equal\ntokens",
    ),
    "repeat_rate_in_sentence": Rate(
        "repeat rate in a sentence", "%", 100,
        "The same, of the high pairs whose two tokens lie in one sentence only.",
        "equal_same", "same", "all_equal_same", "all_same", of_words=True,
    ),
    "same_sentence_rate": Rate(
        "same-sentence rate", "%", 100, "How many of a head's high pairs lie within one sentence.",
        "same", "pairs", "all_same", "all_pairs", of_words=True, short_label="sen-\ntence",
    ),
    "mean_distance": Rate(
        "mean distance", "tokens", 1, "How far apart the two tokens of a high pair are, on average.",
        "distance_sum", "pairs", "", "all_pairs", over_chance=True, short_label="tokens\napart",
    ),
    "dominant_share": Rate(
        "dominant share", "%", 100,
        "How many of a text's high pairs include the one token that most of them include, on average over texts.",
        "dominant_share_sum", "texts_with_pairs", "shuffled_share_sum", "shuffled_share_texts",
        short_label="one\ntoken",
    ),
}  # fmt: skip
"""the rates of docs/method.md, which a study stores"""
NEIGHBORS = 2
"""Largest distance, in tokens, of two tokens that count as neighbours."""
NEAR_SHARE = "near_share"
HEAD_RATES: dict[str, RateWords] = {
    **RATES,
    NEAR_SHARE: RateWords(
        "share of neighbours", "%", 100,
        f"How many of a head's high pairs join tokens that are at most {NEIGHBORS} apart.",
        short_label="near-\nby",
    ),
}  # fmt: skip
"""every rate of the table of heads"""
OF_WORDS = tuple(name for name, rate in RATES.items() if rate.of_words)


def sum_distances(window_counts: Floats, tokens: Floats) -> Floats:
    """Return the sum of j−i over all pairs of tokens.

    Args:
        window_counts: Number of windows by their number of tokens, along the last axis.
        tokens: The numbers of tokens. A window of n tokens has distances that add up to n(n² − 1)/6.
    """
    sizes = np.asarray(tokens, dtype=np.float64)
    distances: Floats = np.asarray(window_counts) @ (sizes * (sizes**2 - 1) / 6)
    return distances

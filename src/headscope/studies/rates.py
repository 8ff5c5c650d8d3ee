"""Rates of heads, their chance levels, and their standard errors.

The rates of a head: the sums that each is a ratio of, the sums of its chance level, and how it is displayed.

Delete-one-block jackknife: the standard error of any number that is computed from sums in blocks of documents.

With G blocks that hold texts and the number `v_g` computed without block g, `SE² = (G−1)/G · Σ (v_g − mean v)²`. Blocks
are of whole documents, because windows of one document are alike: blocks of windows give errors that are too small.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.tally.quantities import ENTROPY, RECENT, SINK


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


def _make_score(
    name: str, label: str, short_label: str, description: str, *, unit: str = "%", factor: float = 100,
    of_words: bool = False,
) -> Rate:  # fmt: skip
    queries = f"{name}_queries"
    chance = queries if name == ENTROPY else f"{name}_chance_sum"
    return Rate(
        label, unit, factor, description, f"{name}_sum", queries, chance, queries, of_words=of_words,
        over_chance=name == "attention_distance", short_label=short_label,
    )  # fmt: skip


_SCORE_WORDS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "attends_previous": (
        "attention to the previous token", "previ-\nous", "How much a token attends to the token before it.", {},
    ),
    "attends_next": (
        "attention to the next token", "next", "How much a token attends to the token after it.", {},
    ),
    "attends_self": ("attention to itself", "itself", "How much a token attends to itself.", {}),
    "attends_first": (
        "attention to the first token", "first", "How much the other tokens attend to the first token of the text.", {},
    ),
    "attends_special": (
        "attention to special tokens", "spe-\ncial", "How much words attend to the tokenizer's special tokens.",
        {"of_words": True},
    ),
    "attends_punctuation": (
        "attention to punctuation", "punctu-\nation",
        "How much a token attends to other tokens that have no letter or digit.", {"of_words": True},
    ),
    "attends_duplicate": (
        "attention to duplicates", "dupli-\ncates",
        "How much a token that occurs again attends to its other occurrences.", {"of_words": True},
    ),
    "attends_induction": (
        "attention to what followed", "induc-\ntion",
        "How much a token that occurred before attends to the tokens that followed it there.", {"of_words": True},
    ),
    ENTROPY: (
        "entropy of attention", "en-\ntropy",
        "How evenly a token spreads its attention: 0 % on one token, 100 % evenly on all.", {},
    ),
    "attention_distance": (
        "attention distance", "distance", "How far away the tokens are that a token attends to, on average.",
        {"unit": "tokens", "factor": 1},
    ),
    "attends_sink": (
        "attention to sinks", "sinks", f"How much of the attention goes to the first {SINK} tokens, in long contexts.",
        {},
    ),
    "attends_recent": (
        "attention to recent tokens", "recent",
        f"How much of the attention goes to the last {RECENT} tokens, in long contexts.", {},
    ),
    "attends_distant": (
        "attention to distant tokens", "distant",
        "How much of the attention goes to what is between sinks and recent tokens, in long contexts.", {},
    ),
}  # fmt: skip
ATTENTION_SCORES = {
    name: _make_score(name, label, short, description, **options)
    for name, (label, short, description, options) in _SCORE_WORDS.items()
}
"""what heads look at, docs/method.md: stored like the rates, of the maps instead of the high pairs"""
ALL_RATES = {**RATES, **ATTENTION_SCORES}
"""everything that `Study.rate`, `Study.chance` and `Study.standard_error` know"""


def has_attention_scores(data: Container[Any]) -> bool:
    """Return whether a study contains the sums of attention scores: studies of old versions do not."""
    return f"{ENTROPY}_sum" in data


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


MIN_BLOCKS = 10
"""Least number of blocks with texts; with fewer, an error is itself too uncertain, and is NaN."""


def leave_out_blocks(blocks: Floats) -> Floats:
    """Return the sum over all blocks but one, for each block.

    Args:
        blocks: Of shape (blocks, …).
    """
    remaining: Floats = blocks.sum(axis=0) - blocks
    return remaining


def compute_jackknife_error(values: Floats) -> Floats:
    """Return the standard error; NaN for fewer than `MIN_BLOCKS` blocks, and where a value is NaN.

    Args:
        values: The values without each block, of shape (blocks, …). Blocks without texts are not among them.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < MIN_BLOCKS:
        return np.full(values.shape[1:], np.nan)
    spread = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return np.asarray(np.sqrt(spread * (len(values) - 1) / len(values)))

"""What is compared: each measure is a sum over another, block by block, with what no preference would give beside it.

All of them come from a study's sums in blocks, so that whatever is made of them has its delete-one-block jackknife
error. The definitions are those of the method page; here they are computed for all blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headscope.studies.labels import RATES
from headscope.studies.result import Study
from headscope.types import Floats, Ints

NEAR = "near_attention"
CROSS = "cross"
"""a stack whose queries and keys are of two texts, so that no key is near a query"""


@dataclass(frozen=True)
class Sums:
    """Parts and wholes by block, layer and head; and those of the chance level, which may be the same for all heads."""

    part: Floats
    whole: Floats
    chance_part: Floats
    chance_whole: Floats

    def rates(self) -> Floats:
        """By layer and head; NaN where nothing was counted."""
        return divided(self.part.sum(axis=0), self.whole.sum(axis=0))

    def chance(self) -> Floats:
        """What the rate would be without any preference."""
        return divided(self.chance_part.sum(axis=0), self.chance_whole.sum(axis=0))

    def rates_left_out(self) -> Floats:
        """The rates without each block in turn."""
        return divided(left_out(self.part), left_out(self.whole))

    def chance_left_out(self) -> Floats:
        """The chance level without each block in turn."""
        return divided(left_out(self.chance_part), left_out(self.chance_whole))


@dataclass(frozen=True)
class Measure:
    """One number of a head, how it is written, and how it is held against chance."""

    name: str
    label: str
    unit: str
    factor: float
    """from the stored number to the one shown"""
    about: str
    over: bool
    """whether it is divided by chance, or has it taken away"""
    sums: Callable[[Study], Sums]

    @property
    def against(self) -> str:
        return "over chance" if self.over else "minus chance"

    def relative(self, value: Floats, chance: Floats) -> Floats:
        """The value against chance, so that texts cut otherwise can stand beside each other."""
        return divided(value, np.broadcast_to(chance, value.shape)) if self.over else value - chance


def occupied(study: Study) -> Ints:
    """The blocks that hold texts."""
    return np.flatnonzero(study.data["texts_blocks"].values).astype(np.int64)


def divided(part: Floats, whole: Floats) -> Floats:
    """A ratio; NaN where there is nothing to divide by."""
    rate: Floats = np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) != 0)
    return rate


def left_out(blocks: Floats) -> Floats:
    """The sum over blocks without each of them in turn."""
    rest: Floats = blocks.sum(axis=0) - blocks
    return rest


def jackknife_error(left: Floats) -> Floats:
    """The delete-one-block standard error, from the values without each block; NaN below two blocks."""
    if len(left) < 2:
        return np.full(left.shape[1:], np.nan)
    spread = ((left - left.mean(axis=0)) ** 2).sum(axis=0)
    error: Floats = np.sqrt(spread * (len(left) - 1) / len(left))
    return error


def _in_blocks(study: Study, name: str) -> Floats:
    return np.asarray(study.data[f"{name}_blocks"].values[occupied(study)], dtype=np.float64)


def _for_all_heads(sums: Floats) -> Floats:
    return sums.reshape(len(sums), 1, 1)


def _of_rate(study: Study, name: str, chance_part: Floats, chance_whole: Floats) -> Sums:
    """The sums of a rate of the method page; of one that a study cannot measure at all, none."""
    part, whole = (_in_blocks(study, each) for each in RATES[name])
    if bool(study.rate(name).isnull().all()):
        part, whole = np.zeros_like(part), np.zeros_like(whole)
    return Sums(part, whole, chance_part, chance_whole)


def _ratio(name: str) -> Callable[[Study], Sums]:
    """A rate whose chance level is the same ratio over all pairs."""

    def sums(study: Study) -> Sums:
        every = (_for_all_heads(_in_blocks(study, f"all_{each}")) for each in RATES[name])
        return _of_rate(study, name, *every)

    return sums


def _distance(study: Study) -> Sums:
    tokens = np.asarray(study.data["tokens"].values, dtype=np.float64)
    apart = _in_blocks(study, "window_tokens") @ (tokens * (tokens**2 - 1) / 6)
    return _of_rate(study, "mean_distance", _for_all_heads(apart), _for_all_heads(_in_blocks(study, "all_pairs")))


def _dominant(study: Study) -> Sums:
    shuffled = (_in_blocks(study, name) for name in ("shuffled_share_sum", "shuffled_share_texts"))
    return _of_rate(study, "dominant_share", *shuffled)


def _near(study: Study) -> Sums:
    attention = _in_blocks(study, "attention_offset")
    near = np.abs(study.data["offset"].values) <= 1
    tokens = np.asarray(study.data["tokens"].values, dtype=np.float64)
    windows = _in_blocks(study, "window_tokens")
    even = _even_near(len(tokens), causal=bool(study.data.attrs.get("causal", 0)))
    part, whole = attention[..., near].sum(axis=-1), attention.sum(axis=-1)
    if study.data.attrs.get("stack") == CROSS:
        part, whole = np.zeros_like(part), np.zeros_like(whole)
    return Sums(part, whole, _for_all_heads(windows @ even), _for_all_heads(windows @ tokens))


def _even_near(lengths: int, *, causal: bool) -> Floats:
    """What evenly spread attention gives within ±1 token, summed over the queries of a window, by its length."""
    n = np.arange(lengths, dtype=np.float64)
    if not causal:  # 3n − 2 elements of 1/n each
        return np.where(n > 0, (3 * n - 2) / np.maximum(n, 1), 0.0)
    # Query i of 1…n sees i keys: itself and, but for the first, the one before.
    shares = np.where(n > 1, 2 / np.maximum(n, 1), (n == 1).astype(np.float64))
    return np.asarray(np.cumsum(shares))


MEASURES = {
    measure.name: measure
    for measure in (
        Measure(
            "repeat_rate",
            "repeat rate",
            "%",
            100,
            "How many of a head's high pairs join two equal tokens.",
            over=False,
            sums=_ratio("repeat_rate"),
        ),
        Measure(
            "repeat_rate_in_sentence",
            "repeat rate in a sentence",
            "%",
            100,
            "The same, of the high pairs whose two tokens lie in one sentence only.",
            over=False,
            sums=_ratio("repeat_rate_in_sentence"),
        ),
        Measure(
            "same_sentence_rate",
            "same-sentence rate",
            "%",
            100,
            "How many of a head's high pairs lie within one sentence.",
            over=False,
            sums=_ratio("same_sentence_rate"),
        ),
        Measure(
            "mean_distance",
            "mean distance",
            "tokens",
            1,
            "How far apart the two tokens of a high pair are, on average.",
            over=True,
            sums=_distance,
        ),
        Measure(
            "dominant_share",
            "dominant share",
            "%",
            100,
            "How many of a text's high pairs include the one token that most of them include, on average over texts.",
            over=False,
            sums=_dominant,
        ),
        Measure(
            NEAR,
            "attention within ±1",
            "%",
            100,
            "How much of a head's attention goes to the token itself and its two neighbours.",
            over=False,
            sums=_near,
        ),
    )
}
"""Everything compared head by head."""
OVER_DEPTH = ("repeat_rate", "same_sentence_rate", "mean_distance", "dominant_share", NEAR)
"""what is followed over depth; the repeat rate within sentences goes with the repeat rate"""

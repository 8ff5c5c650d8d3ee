"""The table of all sums of a study (METHOD §3): name, axes and kind of each.

Everything but the N×N maps is kept separately for each of the 20 blocks of documents, so that any number derived from
the sums has a jackknife standard error. A variable of a study is the sum over its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE_BINS = 50
"""number of bins on [0, 1]"""
VALUE_BINS = 200
"""number of bins on [−1, 1]"""
RECEIVERS = ("first token", "last special token", "sentence end", "comma", "itself", "neighbour", "rest")
"""What a key is to a query that attends to it. If several fit, the first counts."""
PAIR_KINDS = ("unrelated", "equal", "same sentence", "equal in a sentence", "neighbours")
"""Kinds of pairs of tokens. The first four, by token and sentence, are not neighbours; the last are unequal neighbours
in one sentence. Some pairs are of no kind."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the arrays. `maps` says whether N×N maps are kept."""

    layers: int
    heads: int
    length: int
    maps: bool = True

    def get_sizes(self) -> dict[str, int]:
        return {
            "layer": self.layers,
            "head": self.heads,
            "rate_bin": RATE_BINS,
            "value_bin": VALUE_BINS,
            "distance": self.length - 1,
            "offset": 2 * self.length - 1,
            "count": self.heads + 1,
            "receiver": len(RECEIVERS),
            "kind": len(PAIR_KINDS),
            "tokens": self.length + 1,
            "position_i": self.length,
            "position_j": self.length,
            "query": self.length,
            "key": self.length,
        }


@dataclass(frozen=True)
class Quantity:
    """One sum over texts: an int64 count or a float64 real."""

    name: str
    dims: tuple[str, ...]
    description: str
    real: bool = False
    sample: bool = False
    """summed only over the texts in the sample"""

    @property
    def is_map(self) -> bool:
        return self.dims[-1:] in (("position_j",), ("key",))

    @property
    def in_blocks(self) -> bool:
        return not self.is_map


LH = ("layer", "head")
QUANTITIES = (
    Quantity("texts", (), "windows counted"),
    Quantity("sample_texts", (), "windows in the sample", sample=True),
    Quantity("window_tokens", ("tokens",), "windows by their number of tokens"),
    Quantity("all_pairs", (), "all pairs i<j: the chance level's denominator"),
    Quantity("all_equal", (), "all pairs of equal tokens"),
    Quantity("all_same", (), "all pairs within one sentence"),
    Quantity("all_equal_same", (), "all pairs of equal tokens within one sentence"),
    Quantity("pairs", LH, "high pairs"),
    Quantity("equal", LH, "high pairs of equal tokens"),
    Quantity("same", LH, "high pairs within one sentence"),
    Quantity("equal_same", LH, "high pairs of equal tokens within one sentence"),
    Quantity("near_threshold", LH, "pairs within 1e-5 of the threshold, which floating-point order may decide"),
    Quantity("distance_sum", LH, "sum of j−i over high pairs"),
    Quantity("distance", (*LH, "distance"), "high pairs by j−i"),
    Quantity("repeat_rate_texts", (*LH, "rate_bin"), "texts by their own equal/pairs"),
    Quantity("repeat_rate_in_sentence_texts", (*LH, "rate_bin"), "texts by their own equal_same/same"),
    Quantity("same_sentence_rate_texts", (*LH, "rate_bin"), "texts by their own same/pairs"),
    Quantity(
        "dominant_share_texts", (*LH, "rate_bin"), "texts by the share of high pairs that include the dominant token"
    ),
    Quantity("dominant_share_sum", LH, "sum of that share over texts", real=True),
    Quantity("texts_with_pairs", LH, "texts in which the head has high pairs"),
    Quantity(
        "shuffled_share_sum", LH, "sum of the dominant share of as many pairs drawn at random", real=True, sample=True
    ),
    Quantity("shuffled_share_texts", LH, "texts in that sum", sample=True),
    Quantity(
        "distinct_dominants", ("layer", "count"), "texts by the number of different dominant tokens over the heads"
    ),
    Quantity("location", (*LH, "position_i", "position_j"), "high elements by position"),
    Quantity("value_histogram", (*LH, "value_bin"), "normalized values C/max(C), i<j", sample=True),
    Quantity("near_bin_edge", LH, "values within 1e-5 of an edge of that histogram", sample=True),
    Quantity(
        "similarity",
        ("layer", "position_i", "position_j"),
        "sum over texts and heads of C/max(C)",
        real=True,
        sample=True,
    ),
    Quantity("output_power", LH, "sum of the mean square length of what a head writes", real=True, sample=True),
    Quantity("sample_pairs", LH, "high pairs of the texts in the sample", sample=True),
    Quantity("explained", LH, "of these, pairs of equal tokens, of one sentence or of neighbours", sample=True),
    Quantity("shuffled_explained", LH, "how many would be if the text's places were shuffled", sample=True),
    Quantity("sentence_texts", (), "texts with pairs both within and across sentences", sample=True),
    Quantity("within_sum", LH, "half mean square distance within a sentence, by power", real=True, sample=True),
    Quantity("across_sum", LH, "half mean square distance across sentences, by power", real=True, sample=True),
    Quantity("shuffled_within_sum", LH, "the same within a sentence, places shuffled", real=True, sample=True),
    Quantity("shuffled_across_sum", LH, "the same across sentences, places shuffled", real=True, sample=True),
    Quantity("kind_share", ("kind",), "sum over texts of the share of pairs of each kind", real=True, sample=True),
    Quantity("apart_sum", (*LH, "kind"), "half square distance over power, by kind of pair", real=True, sample=True),
    Quantity("shuffled_apart_sum", (*LH, "kind"), "the same, places shuffled", real=True, sample=True),
    Quantity("block_texts", ("layer",), "texts that lines cut into blocks with pairs inside and outside", sample=True),
    Quantity("inside_energy_sum", LH, "mean square of C in one block, by square power", real=True, sample=True),
    Quantity("outside_energy_sum", LH, "mean square of C across blocks, by square power", real=True, sample=True),
    Quantity("shuffled_inside_energy_sum", LH, "the same in one block, places shuffled", real=True, sample=True),
    Quantity("shuffled_outside_energy_sum", LH, "the same across blocks, places shuffled", real=True, sample=True),
    Quantity("attention", (*LH, "query", "key"), "attention maps summed over texts", real=True),
    Quantity(
        "attention_without_lines",
        ("layer", "query", "key"),
        "head-summed maps, line columns zeroed",
        real=True,
        sample=True,
    ),
    Quantity(
        "attention_without_lines_and_diagonal",
        ("layer", "query", "key"),
        "head-summed maps, line columns and diagonal zeroed",
        real=True,
        sample=True,
    ),
    Quantity("attention_offset", (*LH, "offset"), "attention by key − query", real=True),
    Quantity(
        "attention_received",
        ("layer", "receiver"),
        "attention that goes to each receiver, over heads and queries",
        real=True,
    ),
    Quantity(
        "attention_spread",
        ("receiver",),
        "what each receiver would get from one head that spreads its attention evenly",
        real=True,
    ),
)
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}

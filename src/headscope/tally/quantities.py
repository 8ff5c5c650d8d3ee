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
CONTRASTS = ("all", "repeats", "equal", "same", "adjacent", "second", "equal in a sentence")
"""weights of the pairs of a text, see `tally.signal_shares`"""
HALVES = 2
"""number of groups of texts by which outputs are summed at each position"""
MAX_PLACES = 256
"""number of tokens of a window that its contrasts are about"""


@dataclass(frozen=True)
class Shape:
    """Sizes of the arrays."""

    layers: int
    heads: int
    length: int
    maps: bool = True
    """N×N maps are kept"""
    width: int = 0
    """width of the widest head; 0: outputs are not summed at each position, so that signal shares are not measured"""
    crosses: bool = False
    """attention goes to the tokens of another text, so that it has no offsets and no diagonal"""

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
            "contrast": len(CONTRASTS),
            "marked": len(CONTRASTS),
            "half": HALVES,
            "place": min(self.length, MAX_PLACES),
            "other_place": min(self.length, MAX_PLACES),
            "width": self.width,
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
        return not self.is_map and "half" not in self.dims


LH = ("layer", "head")
CLAIM_QUANTITIES = (
    Quantity("word_texts", (), "texts whose attention can go to words or punctuation", sample=True),
    Quantity("separator_share", (), "sum of the share of separators among these", real=True, sample=True),
    Quantity("separator_texts", ("layer",), "texts whose most attended word is a separator", sample=True),
    Quantity("column_texts", (), "texts of at least three tokens", sample=True),
    Quantity(
        "column_correlation_sum", ("layer",), "mean correlation of heads' attention columns", real=True, sample=True
    ),
    Quantity("line_attention_sum", ("layer",), "share of the attention in line columns", real=True, sample=True),
    Quantity("line_even_sum", ("layer",), "the same of even attention", real=True, sample=True),
    Quantity("diagonal_attention_sum", ("layer",), "share on the diagonal outside of lines", real=True, sample=True),
    Quantity("diagonal_even_sum", ("layer",), "the same of even attention", real=True, sample=True),
    Quantity("shuffled_distinct_dominants", ("layer", "count"), "distinct_dominants of random pairs", sample=True),
    Quantity("region_texts", ("layer",), "texts that lines cut into regions on and off the diagonal", sample=True),
    Quantity("region_chance_sum", ("layer",), "share of regions on the diagonal", real=True, sample=True),
    Quantity("diagonal_region_texts", LH, "texts whose strongest region is on the diagonal", sample=True),
    Quantity("shuffled_diagonal_region_texts", LH, "the same, places shuffled", sample=True),
    Quantity("delineated_texts", ("layer",), "texts with pairs within and across lines at one distance", sample=True),
    Quantity("delineated_inside_sum", LH, "mean C between lines, by power", real=True, sample=True),
    Quantity("delineated_across_sum", LH, "mean C across lines at the same distances", real=True, sample=True),
)
"""What only the claims of METHOD §6 need, defined in `claim_sums.py`."""
ENTROPY = "attention_entropy"
SCORES = (
    "attends_previous",
    "attends_next",
    "attends_self",
    "attends_first",
    "attends_special",
    "attends_punctuation",
    "attends_duplicate",
    "attends_induction",
    ENTROPY,
    "attention_distance",
    "attends_sink",
    "attends_recent",
    "attends_distant",
)
"""What a head looks at (METHOD §7): scores that are means over queries."""
CROSS_SCORES = ("attends_first", "attends_special", "attends_punctuation", ENTROPY)
"""scores that cross-attention has"""
SUMMED_SCORES = (*CROSS_SCORES, "attends_duplicate", "attends_induction", "attends_sink")
"""scores with sums of their own; those of the others follow from `attention_offset` and `far_sink_sum`"""
SINK = 4
"""number of first positions that are sinks: they take attention that a head has no other use for"""
RECENT = 64
"""number of tokens, the query the last of them, that are recent"""
FIRST_DISTANT = SINK + RECENT
"""first query that has sinks, recent tokens, and distant ones between them"""
ATTENTION_SCORE_QUANTITIES = (
    *(Quantity(f"{name}_sum", LH, f"sum of {name} over queries", real=True) for name in SUMMED_SCORES),
    Quantity("far_sink_sum", LH, f"attention to sinks at least {RECENT} tokens before the query", real=True),
    *(Quantity(f"{name}_queries", (), f"queries that count for {name}") for name in SCORES),
    *(
        Quantity(f"{name}_chance_sum", (), f"{name}_sum of evenly spread attention", real=True)
        for name in SCORES
        if name != ENTROPY
    ),
)
"""What attention scores are made of, over all texts; those of texts alone are in `attention_scores.py`."""
QUANTITIES = (
    Quantity("texts", (), "windows counted"),
    Quantity("sample_texts", (), "windows in the sample", sample=True),
    Quantity("window_tokens", ("tokens",), "windows by their number of tokens"),
    Quantity("sentence_tokens", ("tokens",), "sentences by their number of tokens in the window"),
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
    Quantity("contrast_sums", (*LH, "contrast"), "half square distances, weighted", real=True, sample=True),
    Quantity("contrast_products", ("contrast", "marked"), "the weights of marked pairs", real=True, sample=True),
    Quantity("pair_weights", ("contrast", "place", "other_place"), "weights by position", real=True, sample=True),
    Quantity("position_sums", ("half", *LH, "place", "width"), "outputs by half of the texts", real=True, sample=True),
    Quantity("position_counts", ("half", "place"), "tokens in that sum", sample=True),
    *CLAIM_QUANTITIES,
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
    *ATTENTION_SCORE_QUANTITIES,
)
CROSS_QUANTITIES = (Quantity("attention_texts", ("query", "key"), "texts whose maps have this element"),)
"""What only cross-attention has, whose maps are not square."""
ALL_QUANTITIES = (*QUANTITIES, *CROSS_QUANTITIES)
BY_NAME = {quantity.name: quantity for quantity in ALL_QUANTITIES}


OF_DIAGONALS = (
    "attention_offset",
    "attention_without_lines_and_diagonal",
    "diagonal_attention_sum",
    "diagonal_even_sum",
    *(quantity.name for quantity in ATTENTION_SCORE_QUANTITIES if not quantity.name.startswith(CROSS_SCORES)),
)
"""quantities that cross-attention does not have"""


def list_quantities(shape: Shape) -> list[Quantity]:
    """Return the quantities that are summed in arrays of this shape."""
    quantities = ALL_QUANTITIES if shape.crosses else QUANTITIES
    absent = (*(OF_DIAGONALS if shape.crosses else ()), *(() if shape.width else ("position_sums",)))
    return [q for q in quantities if (shape.maps or not q.is_map) and q.name not in absent]

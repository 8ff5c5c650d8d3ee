"""The eighteen claims of METHOD §6: what the paper reports, how a study measures it, and what the number would be
without the structure that is claimed (the null).

A claim is a list of conditions on numbers of the study; at least one of them compares with the null. The first, middle
and last layers that the paper mentions are the first quarter of the layers, those in the middle third, and the last
quarter. docs/findings.md explains every claim, criterion and null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headscope.studies import claim_attention as attention
from headscope.studies import claim_similarities as similarities
from headscope.studies.claim_statistics import (
    ALMOST_RANDOM,
    CLEARLY,
    FEW_VALUES,
    MANY_VALUES,
    MOST_HEADS,
    SHARED_COLUMNS,
    STRONG_CORRELATION,
    Measurement,
)
from headscope.studies.result import Study


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how it is measured."""

    number: int
    title: str
    paper: str
    paper_number: str
    """the number that the paper gives; empty if it gives none"""
    criterion: str
    measure: Callable[[Study], Measurement]
    of_words: bool = False
    """it is about words or sentences, which images do not have"""
    of_sample: bool = False
    """it is measured on the texts in the sample"""


CLAIMS = (
    Claim(
        1,
        "Each head's attention, summed over texts, is centred on the diagonal or one beside it",
        "summed maps are centred on the diagonal, or one token beside it (Fig. 2)",
        "all heads",
        "mean attention per element strongest at −1, 0 or +1, and at least twice even attention there, in at least "
        f"{MOST_HEADS:.0%} of all heads",
        attention.measure_local_attention,
    ),
    Claim(
        2,
        "In the first layers the most attended token is the first special token",
        "summing the attention, the most common token is [CLS] (Fig. 4)",
        "",
        "in more than half of the texts, and with at least twice the attention it would get if spread evenly",
        attention.measure_first_token,
    ),
    Claim(
        3,
        "In the last layers the most attended tokens are sentence separators",
        "attention is focused on “.” and “,” (Fig. 4)",
        "",
        "“.” or “,” in more than half of the texts, and with at least twice the attention they would get if spread "
        "evenly",
        attention.measure_separators,
        of_words=True,
    ),
    Claim(
        4,
        "The middle layers' attention is centred on the diagonal",
        "in the middle layers attention is more centralized along the diagonal (Fig. 4, layer 6)",
        "",
        "more attention within ±1 token in the middle layers than in the first and than in the last, and at least "
        "twice that of even attention",
        attention.measure_diagonal,
    ),
    Claim(
        5,
        "Most normalized similarities are below 0.1, few lie between 0.1 and 0.6",
        "the vast majority is below 0.1, with a large gap between 0.1 and 0.6 (not shown)",
        "“the vast majority”",
        f"at least {MANY_VALUES:.0%} below 0.1 and more than of unrelated outputs, at most {FEW_VALUES:.0%} between "
        "0.1 and 0.6",
        similarities.measure_value_gap,
        of_sample=True,
    ),
    Claim(
        6,
        "Heads differ in how often they relate equal tokens, and within one sentence they differ alike",
        "some heads recognize repeated tokens, others different ones; one sentence or all matters little (Fig. 6)",
        "",
        "repeat rates spread over heads by at least the chance rate and three standard errors, and correlate with "
        f"those within one sentence by at least {STRONG_CORRELATION}",
        similarities.measure_repeat_rates,
        of_words=True,
    ),
    Claim(
        7,
        "In the last layer every head's pairs are near each other, except at most one repeat-token head's",
        "all heads of layer 11 have a mean distance below 50 except head 8, which recognizes identical tokens (Fig. 7)",
        "below 50 tokens",
        f"every mean distance is at least {CLEARLY:.0%} shorter than that of all pairs, except at most that of the "
        "head with the highest repeat rate",
        similarities.measure_short_distances,
        of_words=True,
    ),
    Claim(
        8,
        "In the last layer every head prefers pairs of one sentence",
        "a strong preference for the same sentence, exceeding 33 % (Fig. 8)",
        "above 33 %",
        "every same-sentence rate is above chance among pairs at the head's own distances, and above 33 % (in "
        "proportion to chance for windows other than 128 tokens)",
        similarities.measure_same_sentence_rate,
        of_words=True,
    ),
    Claim(
        9,
        "A head's pairs centre on one token",
        "the vast majority of high elements include a single most common token (Fig. 11a)",
        "“the vast majority”",
        "in the median head more than half of the pairs include the dominant token, and more than of as many random "
        "pairs",
        similarities.measure_dominant_token,
        of_sample=True,
    ),
    Claim(
        10,
        "Heads of one layer choose different tokens",
        "each head tends to a distinct token for each text (Fig. 11b)",
        "",
        "in the last layer more different dominant tokens than half the number of heads and than with as many random "
        "pairs; and these are in at least twice as many pairs as of random ones",
        similarities.measure_different_tokens,
        of_sample=True,
    ),
    Claim(
        11,
        "Distances are long in the first layers, shortest in the middle, slightly longer at the end",
        "early layers are spread out, middle layers extremely short-range, the last slightly longer (Fig. 13)",
        "",
        "mean distance of the first layers above that of the last, and that above that of the middle, which is at "
        f"least {CLEARLY:.0%} below that of all pairs",
        similarities.measure_distances_over_layers,
    ),
    Claim(
        12,
        "Head behaviour does not depend on the text",
        "the behavior of the heads was independent of the text presented",
        "",
        f"over heads, every rate correlates at least {STRONG_CORRELATION} between two random halves of the corpus, "
        "corrected to the whole",
        similarities.measure_independence_of_text,
    ),
    Claim(
        13,
        "The heads of the last layers attend to the same columns",
        "nearly all heads of the last layers have similar attention maps, in columns (Fig. 4, 5)",
        "“nearly all heads”",
        f"the attention that positions receive correlates by at least {SHARED_COLUMNS} between heads of the last "
        "layers, and more than in other layers",
        attention.measure_shared_columns,
        of_sample=True,
    ),
    Claim(
        14,
        "The strongest similarities between attention lines lie on the diagonal of blocks",
        "each head has an area of high similarity in one of the squares, most commonly along the diagonal (Fig. 5)",
        "“most commonly”",
        "in more than half of the texts, and more often than by chance and than with the text's places shuffled",
        similarities.measure_strongest_region,
        of_sample=True,
    ),
    Claim(
        15,
        "Attention lines delineate similarity",
        "tokens with high attention delineate areas of common similarity (Fig. 5)",
        "",
        f"C between lines is at least {CLEARLY:.0%} larger than across a line at the same distance",
        similarities.measure_delineation,
        of_sample=True,
    ),
    Claim(
        16,
        "Lines and the diagonal hold the attention of the last layer",
        "summed maps lose their structure without the most influential columns and the diagonal (Fig. 3)",
        "",
        "lines, and the diagonal outside of them, each have at least twice their share of elements",
        attention.measure_lines_and_diagonal,
        of_sample=True,
    ),
    Claim(
        17,
        "The preference for one sentence grows over the layers",
        "similarity ends bound within sentences (Fig. 12, abstract)",
        "",
        "beyond chance at equal distances, more pairs of one sentence in the last layers than in the first, and in "
        f"the last at least {CLEARLY:.0%} above that chance",
        similarities.measure_growing_sentence_preference,
        of_words=True,
    ),
    Claim(
        18,
        "In the first layers, distances are almost random",
        "early layers relate tokens almost regardless of their range (Fig. 13)",
        "“almost random”",
        f"at most {ALMOST_RANDOM:.0%} of the first layers' pairs are at other distances than all pairs are, in the "
        f"other layers at least {CLEARLY:.0%} more",
        similarities.measure_random_early_distances,
    ),
)

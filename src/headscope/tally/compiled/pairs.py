"""What the high pairs of each head add up to: from similarities to counts, one head of one text at a time.

A few texts at once, so that their similarities (64 KB for a head and 128 tokens) are still in the cache.

C is symmetric, so three quarters of it are enough: its upper half of rows, and the right half of the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.similarity import NEAR
from headscope.tally.compiled.bits import WORD
from headscope.tally.compiled.compiling import compiled
from headscope.tally.compiled.high import at_most, count_high, find_largest, take_numbers
from headscope.tally.quantities import RATE_BINS, VALUE_BINS


@compiled()
def add_pairs(
    halves: Any, whole: Any, start: int, texts: Any, theta: float, sums: Any, places: Any, dominants: Any, broken: Any
) -> None:
    """Add similarities of the texts from `start` on to a layer's sums; say each head's dominant token in each text, by
    the place where that token is first met, or −1, and which heads write what is no finite number.

    `halves`: the first rows (text, head, i, j), and the others without the columns before their first row; the diagonal
    is set to 0. `whole` are both as integers of the same bits. `places` (head, i, word) get one for every pair, eight
    places in a word; empty where no maps are kept.
    """
    for head in range(halves[0].shape[1]):
        _add_head(halves, whole, start, texts, head, theta, sums, places[head], dominants, broken)


@compiled()
def _add_head(
    halves: Any, whole: Any, start: int, texts: Any, head: int, theta: float, sums: Any, places: Any, dominants: Any,
    broken: Any,
) -> None:  # fmt: skip
    upper, lower = halves
    length, words = upper.shape[3], texts.equal.shape[2]
    marks, seconds = np.zeros(words * WORD, np.uint8), np.zeros(words * WORD, np.uint8)
    planes = np.zeros((_digits(length), words), np.uint64)
    scores, ends, apart = np.empty(length, np.int64), np.empty(length, np.int64), np.empty(words * WORD, np.uint64)
    highest = np.empty(length, whole[0].dtype)
    most = highest.view(upper.dtype)
    for text in range(start, start + len(upper)):
        n, block = texts.lengths[text], texts.blocks[text]
        k = text - start
        # Text and head at once: taken one after the other, the compiler would not know them to be in one piece.
        own = upper[k, head], lower[k, head]
        if not _clear_diagonal(own, n):
            broken[head] = True
            continue
        top = np.float64(most[find_largest((whole[0][k, head], whole[1][k, head]), n, highest)])
        if top <= 0:
            continue
        near = most.dtype.type((theta - NEAR) * top), most.dtype.type((theta + NEAR) * top)
        pairs, equal, same, both, unsure = count_high(
            own, n, most, at_most(theta * top, most), near, texts.equal[text], texts.same[text], marks, planes,
            seconds, ends, places,
        )  # fmt: skip
        sums.near_threshold[block, head] += unsure
        if texts.sampled[text]:
            sums.near_bin_edge[block, head] += _see_values(own, n, top, sums.value_histogram[block, head])
            if sums.similarity.shape[1] > 1:
                _add_normalized(own, n, top, sums.similarity[head])
        if not pairs:
            continue
        sums.pairs[block, head] += pairs
        sums.equal[block, head] += equal
        sums.same[block, head] += same
        sums.equal_same[block, head] += both
        take_numbers(planes, apart)
        for distance in range(1, n):
            count = np.int64(apart[distance - 1])
            sums.distance_sum[block, head] += distance * count
            sums.distance[block, head, distance - 1] += count
        if same:
            sums.repeat_rate_in_sentence_texts[block, head, _bin(both, same)] += 1
        sums.repeat_rate_texts[block, head, _bin(equal, pairs)] += 1
        sums.same_sentence_rate_texts[block, head, _bin(same, pairs)] += 1
        scores[:n] = 0
        for i in range(n):
            scores[texts.firsts[text, i]] += ends[i]
        best = np.argmax(scores[:n])  # of equals the first
        dominants[text, head] = best
        sums.texts_with_pairs[block, head] += 1
        sums.dominant_share_sum[block, head] += scores[best] / pairs
        sums.dominant_share_texts[block, head, _bin(scores[best], pairs)] += 1
        if texts.sampled[text]:
            sums.shuffled_share_sum[block, head] += texts.chance[text, pairs] / pairs
            sums.shuffled_share_texts[block, head] += 1


@compiled()
def _clear_diagonal(halves: Any, n: int) -> bool:
    """Set C_ii to 0; False where one is no finite number. Where all are, so are all others (Cauchy–Schwarz)."""
    upper, lower = halves
    finite = True
    for i in range(n):
        half, k = (upper, i) if i < len(upper) else (lower, i - len(upper))
        finite &= np.isfinite(half[k, k])
        half[k, k] = 0
    return finite


@compiled()
def _after(halves: Any, i: int, n: int) -> Any:
    """The similarities of token i with those after it."""
    upper, lower = halves
    if i < len(upper):
        return upper[i, i + 1 : n]
    k = i - len(upper)
    return lower[k, k + 1 : n - len(upper)]


@compiled()
def _digits(number: int) -> int:
    """How many digits a number has in the binary system."""
    digits = 0
    while number >> digits:
        digits += 1
    return digits


@compiled()
def _bin(part: int, whole: int) -> int:
    return min(RATE_BINS * part // whole, RATE_BINS - 1)


@compiled()
def _see_values(halves: Any, n: int, largest: float, histogram: Any) -> int:
    """Add normalized values to a histogram; how many are so near an edge of it that rounding may decide."""
    near = 0
    bins = np.empty(n, np.uint8)
    found = np.zeros((2, VALUE_BINS), np.int64)
    for i in range(n - 1):
        row = _after(halves, i, n)
        near += _find_bins(row, largest, bins)
        # Neighbours are often of one bin, and one addition would wait for the other.
        for k in range(0, row.size - 1, 2):
            found[0, bins[k]] += 1
            found[1, bins[k + 1]] += 1
        if row.size % 2:
            found[0, bins[row.size - 1]] += 1
    histogram += found[0] + found[1]
    return near


# Loops over whole slices, which the compiler turns into instructions on several numbers at once.


@compiled(fast=True)
def _find_bins(row: Any, largest: float, bins: Any) -> int:
    """The bin of each value, and how many are near an edge between two."""
    scale, middle, last, near = VALUE_BINS / 2 / largest, VALUE_BINS / 2, VALUE_BINS - 1.0, 0
    for k in range(row.size):
        place = np.float64(row[k]) * scale + middle
        bins[k] = np.uint8(np.int32(min(max(place, 0.0), last)))
        edge = np.rint(place)
        near += (abs(place - edge) <= NEAR * (VALUE_BINS / 2)) & (edge > 0) & (edge < VALUE_BINS)
    return near


@compiled(fast=True)
def _add_scaled(row: Any, scale: float, kept: Any) -> None:
    for k in range(row.size):
        kept[k] += np.float64(row[k]) * scale


@compiled()
def _add_normalized(halves: Any, n: int, largest: float, similarity: Any) -> None:
    for i in range(n - 1):
        _add_scaled(_after(halves, i, n), 1 / largest, similarity[i, i + 1 : n])

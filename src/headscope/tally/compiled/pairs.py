"""What the high pairs of each head add up to: from similarities to counts, one head of one text at a time.

A few texts at once, so that their similarities (64 KB for a head and 128 tokens) are still in the cache.

C is symmetric, so three quarters of it are enough: its upper half of rows, and the right half of the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.similarity import NEAR
from headscope.tally.compiled.bits import WORD, first_one, ones, packed
from headscope.tally.compiled.compiling import compiled
from headscope.tally.quantities import RATE_BINS, VALUE_BINS


@compiled()
def see_pairs(
    upper: Any, lower: Any, whole: Any, start: int, texts: Any, theta: float, maps: bool, sums: Any, dominants: Any
) -> None:
    """Add similarities of the texts from `start` on to a layer's sums; say each head's dominant token in each text, by
    the place where that token is first met, or −1.

    `upper` (text, head, i, j) has the first rows; `lower` the others, without the columns before its first row; `whole`
    are both as integers of the same bits.
    """
    for head in range(upper.shape[1]):
        _see_head(upper, lower, whole, start, texts, head, theta, maps, sums, dominants)


@compiled()
def _see_head(
    upper: Any, lower: Any, whole: Any, start: int, texts: Any, head: int, theta: float, maps: bool, sums: Any,
    dominants: Any,
) -> None:  # fmt: skip
    length = upper.shape[3]
    found = np.zeros(texts.equal.shape[2] * WORD, np.uint8)
    scores, apart = np.empty(length, np.int64), np.empty(length, np.int64)
    highest = np.empty(length, whole[0].dtype)
    most = highest.view(upper.dtype)
    for text in range(start, start + len(upper)):
        n, block = texts.lengths[text], texts.blocks[text]
        k = text - start
        # Text and head at once: taken one after the other, the compiler would not know them to be in one piece.
        halves = upper[k, head], lower[k, head]
        top = np.float64(most[_find_largest((whole[0][k, head], whole[1][k, head]), n, highest)])
        if top <= 0:
            continue
        near = most.dtype.type((theta - NEAR) * top), most.dtype.type((theta + NEAR) * top)
        scores[:n] = 0
        apart[:n] = 0
        pairs, equal, same, both, unsure = _see_high(
            halves, n, most, _at_most(theta * top, most), near, texts.equal[text], texts.same[text],
            texts.firsts[text], found, scores, apart, sums.location[head],
        )  # fmt: skip
        sums.near_threshold[block, head] += unsure
        if texts.sampled[text]:
            sums.near_bin_edge[block, head] += _see_values(halves, n, top, sums.value_histogram[block, head])
            if maps:
                _add_normalized(halves, n, top, sums.similarity[head])
        sums.pairs[block, head] += pairs
        sums.equal[block, head] += equal
        sums.same[block, head] += same
        sums.equal_same[block, head] += both
        for distance in range(1, n):
            sums.distance_sum[block, head] += distance * apart[distance]
            sums.distance[block, head, distance - 1] += apart[distance]
        if same:
            sums.repeat_rate_in_sentence_texts[block, head, _bin(both, same)] += 1
        if not pairs:
            continue
        sums.repeat_rate_texts[block, head, _bin(equal, pairs)] += 1
        sums.same_sentence_rate_texts[block, head, _bin(same, pairs)] += 1
        best = np.argmax(scores[:n])  # of equals the first
        dominants[text, head] = best
        sums.texts_with_pairs[block, head] += 1
        sums.dominant_share_sum[block, head] += scores[best] / pairs
        sums.dominant_share_texts[block, head, _bin(scores[best], pairs)] += 1
        if texts.sampled[text]:
            sums.shuffled_share_sum[block, head] += texts.chance[text, pairs] / pairs
            sums.shuffled_share_texts[block, head] += 1


@compiled()
def _after(halves: Any, i: int, n: int) -> Any:
    """The similarities of token i with those after it."""
    upper, lower = halves
    if i < len(upper):
        return upper[i, i + 1 : n]
    k = i - len(upper)
    return lower[k, k + 1 : n - len(upper)]


@compiled()
def _find_largest(whole: Any, n: int, highest: Any) -> int:
    """The largest similarity of each token with one after it, or the diagonal's 0; and the row where it is largest.

    All as integers of the same bits. They are ordered as the numbers are, but for those below 0, which are below 0 too;
    and unlike a largest number, the compiler finds a largest integer among many at once.
    """
    best = 0
    highest[0] = 0
    for i in range(n - 1):
        highest[i] = _row_largest(_after(whole, i, n))
        if highest[i] > highest[best]:
            best = i
    return best


@compiled()
def _see_high(
    halves: Any, n: int, most: Any, threshold: Any, near: Any, equal: Any, same: Any, firsts: Any, found: Any,
    scores: Any, apart: Any, location: Any,
) -> Any:  # fmt: skip
    """Count the high pairs in all, of equal tokens, of one sentence, of both, and those near the threshold; add them to
    what includes each token (by the place where it is first met; a pair of equal tokens includes its token once), to
    how far they are apart, and to where they are."""
    pairs, equals, sames, boths, unsure = 0, 0, 0, 0, 0
    words = found.view(np.uint64)
    found[:] = 0
    for i in range(n - 1):
        found[i] = 0
        if most[i] < near[0]:
            found[i + 1 : n] = 0
            continue
        row = _after(halves, i, n)
        _above(row, threshold, found[i + 1 : n])
        unsure += _between(row, near[0], near[1])
        own, in_row = firsts[i], 0
        for w in range(i // WORD, equal.shape[1]):
            word = packed(words[w * 8 : w * 8 + 8])
            in_row += np.int64(ones(word))
            equals += np.int64(ones(word & equal[i, w]))
            sames += np.int64(ones(word & same[i, w]))
            boths += np.int64(ones(word & equal[i, w] & same[i, w]))
            while word:
                j = w * WORD + np.int64(first_one(word))
                word &= word - np.uint64(1)
                scores[firsts[j]] += firsts[j] != own
                apart[j - i] += 1
                if len(location):
                    location[i, j] += 1
        scores[own] += in_row
        pairs += in_row
    return pairs, equals, sames, boths, unsure


# Loops over whole slices, which the compiler turns into instructions on eight or more numbers at once.


@compiled(fast=True)
def _above(row: Any, threshold: Any, found: Any) -> None:
    for k in range(row.size):
        found[k] = row[k] > threshold


@compiled(fast=True)
def _row_largest(row: Any) -> Any:
    largest = row.dtype.type(0)
    for k in range(row.size):
        largest = max(largest, row[k])
    return largest


@compiled(fast=True)
def _between(row: Any, low: Any, high: Any) -> Any:
    count = np.int32(0)
    for k in range(row.size):
        count += np.int32((row[k] >= low) & (row[k] <= high))
    return count


@compiled()
def _at_most(bound: float, like: Any) -> Any:
    """The largest number of a type that is not above a bound, so that `>` means the same for both."""
    held = like.dtype.type(bound)
    return np.nextafter(held, like.dtype.type(-1)) if held > bound else held


@compiled()
def _bin(part: int, whole: int) -> int:
    return min(RATE_BINS * part // whole, RATE_BINS - 1)


@compiled()
def _see_values(halves: Any, n: int, largest: float, histogram: Any) -> int:
    """Add normalized values to a histogram; how many are so near an edge of it that rounding may decide."""
    near = 0
    for i in range(n - 1):
        for value in _after(halves, i, n):
            place = (np.float64(value) / largest + 1) * (VALUE_BINS / 2)
            histogram[min(max(np.int64(np.floor(place)), 0), VALUE_BINS - 1)] += 1
            edge = np.rint(place)
            near += (abs(place - edge) <= NEAR * (VALUE_BINS / 2)) & (edge > 0) & (edge < VALUE_BINS)
    return near


@compiled()
def _add_normalized(halves: Any, n: int, largest: float, similarity: Any) -> None:
    for i in range(n - 1):
        row, kept = _after(halves, i, n), similarity[i, i + 1 : n]
        for k in range(row.size):
            kept[k] += np.float64(row[k]) / largest

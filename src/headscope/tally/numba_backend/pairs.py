"""Sums over the high pairs of each head: from similarities to counts, one head of one text at a time.

A few texts are processed together, so that their similarities (64 KB for a head and 128 tokens) are still in the cache.

C is symmetric, so only three quarters of it are computed: the upper half of its rows, and the right half of the other
rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.similarity import NEAR
from headscope.tally.example_store import NEIGHBORS
from headscope.tally.numba_backend.bits import WORD
from headscope.tally.numba_backend.high import count_high, find_largest, pop_numbers, round_down
from headscope.tally.numba_backend.jit import compiled
from headscope.tally.quantities import RATE_BINS, VALUE_BINS


@compiled()
def add_pair_sums(
    halves: Any, int_halves: Any, start: int, texts: Any, theta: float, sums: Any, position_counts: Any, dominants: Any,
    nonfinite: Any, head_counts: Any,
) -> None:  # fmt: skip
    """Add the high pairs of the texts from `start` on to a layer's sums.

    Args:
        halves: the first rows of C (text, head, i, j), and the other rows without the columns before their first row;
            the diagonal is set to 0
        int_halves: the same as integers of the same bits
        position_counts: (head, i, word), numbers of pairs by position, eight bytes in a word; empty if no maps are kept
        dominants: (text, head), set to the first position of each head's dominant token, if it has high pairs
        nonfinite: (head,), set to True for heads whose outputs are NaN or infinite
        head_counts: (text, head, count), set to `examples.COUNTS` of each head
    """
    for head in range(halves[0].shape[1]):
        _add_head_sums(
            halves, int_halves, start, texts, head, theta, sums, position_counts[head], dominants, nonfinite,
            head_counts,
        )  # fmt: skip


@compiled()
def _add_head_sums(
    halves: Any, int_halves: Any, start: int, texts: Any, head: int, theta: float, sums: Any, position_counts: Any,
    dominants: Any, nonfinite: Any, head_counts: Any,
) -> None:  # fmt: skip
    upper, lower = halves
    length, words = upper.shape[3], texts.equal_bits.shape[2]
    marks, second_counts = np.zeros(words * WORD, np.uint8), np.zeros(words * WORD, np.uint8)
    planes = np.zeros((_count_digits(length), words), np.uint64)
    inclusions, pair_ends, distance_counts = (
        np.empty(length, np.int64),
        np.empty(length, np.int64),
        np.empty(words * WORD, np.uint64),
    )
    int_row_max = np.empty(length, int_halves[0].dtype)
    row_max = int_row_max.view(upper.dtype)
    for text in range(start, start + len(upper)):
        n, block = texts.lengths[text], texts.blocks[text]
        k = text - start
        # Index text and head at once: otherwise the compiler would not know that the array is contiguous.
        head_halves = upper[k, head], lower[k, head]
        if not _clear_diagonal(head_halves, n):
            nonfinite[head] = True
            continue
        largest = np.float64(row_max[find_largest((int_halves[0][k, head], int_halves[1][k, head]), n, int_row_max)])
        if largest <= 0:
            continue
        near_bounds = row_max.dtype.type((theta - NEAR) * largest), row_max.dtype.type((theta + NEAR) * largest)
        pairs, equal, same, both, near_count = count_high(
            head_halves, n, row_max, round_down(theta * largest, row_max), near_bounds, texts.equal_bits[text],
            texts.same_bits[text], marks, planes, second_counts, pair_ends, position_counts,
        )  # fmt: skip
        sums.near_threshold[block, head] += near_count
        if texts.sampled[text]:
            sums.near_bin_edge[block, head] += _count_values(head_halves, n, largest, sums.value_histogram[block, head])
            if sums.similarity.shape[1] > 1:
                _add_normalized(head_halves, n, largest, sums.similarity[head])
        if not pairs:
            continue
        sums.pairs[block, head] += pairs
        sums.equal[block, head] += equal
        sums.same[block, head] += same
        sums.equal_same[block, head] += both
        pop_numbers(planes, distance_counts)
        distance_sum = 0
        for distance in range(1, n):
            count = np.int64(distance_counts[distance - 1])
            distance_sum += distance * count
            sums.distance[block, head, distance - 1] += count
        sums.distance_sum[block, head] += distance_sum
        if same:
            sums.repeat_rate_in_sentence_texts[block, head, _get_rate_bin(both, same)] += 1
        sums.repeat_rate_texts[block, head, _get_rate_bin(equal, pairs)] += 1
        sums.same_sentence_rate_texts[block, head, _get_rate_bin(same, pairs)] += 1
        inclusions[:n] = 0
        for i in range(n):
            inclusions[texts.first_positions[text, i]] += pair_ends[i]
        best = np.argmax(inclusions[:n])  # the first of equal ones
        dominants[text, head] = best
        near = np.int64(distance_counts[: min(NEIGHBORS, n - 1)].sum())
        counts = (pairs, equal, same, near, inclusions[best], distance_sum)
        for k in range(len(counts)):
            head_counts[text, head, k] = counts[k]
        sums.texts_with_pairs[block, head] += 1
        sums.dominant_share_sum[block, head] += inclusions[best] / pairs
        sums.dominant_share_texts[block, head, _get_rate_bin(inclusions[best], pairs)] += 1
        if texts.sampled[text]:
            sums.shuffled_share_sum[block, head] += texts.random_dominant_counts[text, pairs] / pairs
            sums.shuffled_share_texts[block, head] += 1


@compiled()
def _clear_diagonal(halves: Any, n: int) -> bool:
    """Set C_ii to 0; return whether all C_ii are finite. If they are, all other elements are too (Cauchy–Schwarz)."""
    upper, lower = halves
    finite = True
    for i in range(n):
        half, k = (upper, i) if i < len(upper) else (lower, i - len(upper))
        finite &= np.isfinite(half[k, k])
        half[k, k] = 0
    return finite


@compiled()
def _get_row_after(halves: Any, i: int, n: int) -> Any:
    """Return the similarities of token i with the tokens after it."""
    upper, lower = halves
    if i < len(upper):
        return upper[i, i + 1 : n]
    k = i - len(upper)
    return lower[k, k + 1 : n - len(upper)]


@compiled()
def _count_digits(number: int) -> int:
    """Return the number of binary digits of a number."""
    digits = 0
    while number >> digits:
        digits += 1
    return digits


@compiled()
def _get_rate_bin(part: int, total: int) -> int:
    return min(RATE_BINS * part // total, RATE_BINS - 1)


@compiled()
def _count_values(halves: Any, n: int, largest: float, histogram: Any) -> int:
    """Add normalized values to a histogram; return how many are so close to a bin edge that rounding may decide their
    bin."""
    near_count = 0
    bins = np.empty(n, np.uint8)
    counts = np.zeros((2, VALUE_BINS), np.int64)
    for i in range(n - 1):
        row = _get_row_after(halves, i, n)
        near_count += _find_bins(row, largest, bins)
        # Two histograms: neighbouring values are often in the same bin, and one addition would wait for the other.
        for k in range(0, row.size - 1, 2):
            counts[0, bins[k]] += 1
            counts[1, bins[k + 1]] += 1
        if row.size % 2:
            counts[0, bins[row.size - 1]] += 1
    histogram += counts[0] + counts[1]
    return near_count


# Loops over whole slices, which the compiler vectorizes.


@compiled(fast=True)
def _find_bins(row: Any, largest: float, bins: Any) -> int:
    """Set the bin of each value; return how many values are near an edge between two bins."""
    scale, center, last_bin, near_count = VALUE_BINS / 2 / largest, VALUE_BINS / 2, VALUE_BINS - 1.0, 0
    for k in range(row.size):
        position = np.float64(row[k]) * scale + center
        bins[k] = np.uint8(np.int32(min(max(position, 0.0), last_bin)))
        edge = np.rint(position)
        near_count += (abs(position - edge) <= NEAR * (VALUE_BINS / 2)) & (edge > 0) & (edge < VALUE_BINS)
    return near_count


@compiled(fast=True)
def _add_scaled(row: Any, scale: float, sums: Any) -> None:
    for k in range(row.size):
        sums[k] += np.float64(row[k]) * scale


@compiled()
def _add_normalized(halves: Any, n: int, largest: float, similarity: Any) -> None:
    for i in range(n - 1):
        _add_scaled(_get_row_after(halves, i, n), 1 / largest, similarity[i, i + 1 : n])

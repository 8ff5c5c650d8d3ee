"""High pairs on the CPU: elements as bits, found and counted many at a time, then summed per head.

Sums over the high pairs of each head: from similarities to counts, one head of one text at a time.

A few texts are processed together, so that their similarities (64 KB for a head and 128 tokens) are still in the cache.

C is symmetric, so only three quarters of it are computed: the upper half of its rows, and the right half of the other
rows.

High elements as bits, 64 to a word, so that one instruction counts 64 of them.

The high pairs of one head in one text, found and counted many at a time, as bytes and bits.

A row of similarities becomes a row of bytes that are 0 or 1, and these become bits. Bytes are added to bytes, eight in
a word, to count how often each token is the second of a pair, and at which positions pairs are. Bits are counted by the
word. For the distances of pairs they are added to binary numbers in bit planes: a word holds one digit of 64 numbers.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

from headscope.similarity import NEAR
from headscope.tally.example_store import NEIGHBORS
from headscope.tally.numba_backend.jit import compiled
from headscope.tally.quantities import RATE_BINS, VALUE_BINS

WORD = 64


@intrinsic  # type: ignore[untyped-decorator]
def count_bits(typing_context: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return numba.types.uint64(numba.types.uint64), generate


@compiled()
def mark_equal(values: Any, n: int, bits: Any) -> None:
    """Set bit j of row i if i < j < n and values i and j are equal."""
    bits[:] = 0
    for i in range(n):
        for j in range(i + 1, n):
            if values[i] == values[j]:
                bits[i, j // WORD] |= numba.uint64(1) << numba.uint64(j % WORD)


@compiled()
def pack_lowest_bits(byte_words: Any) -> Any:
    """Return the lowest bits of 64 bytes, given as eight words, as one word.

    The product moves the lowest bit of each byte to a different bit of the top byte, so that they do not overlap.
    """
    word = np.uint64(0)
    for k in range(8):
        lowest = byte_words[k] & np.uint64(0x0101010101010101)
        word |= ((lowest * np.uint64(0x0102040810204080)) >> np.uint64(56)) << np.uint64(8 * k)
    return word


ALIGNMENT = 32
"""Rows start at a multiple of this number, so that the compiler's slow loops over a remainder run only at the end of a
window."""
MAX_BYTE = 255
"""number of rows, or of texts, whose counts fit into a byte"""
LOWEST_BITS, SECOND_BITS = np.uint64(0x0101010101010101), np.uint64(0x0202020202020202)


@compiled()
def get_row(halves: Any, i: int, n: int) -> Any:
    """Return the similarities of token i and the position of the first one, which is at or before position i + 1."""
    upper, lower = halves
    if i < len(upper):
        first = (i + 1) // ALIGNMENT * ALIGNMENT
        return upper[i, first:n], first
    k = i - len(upper)
    first = (k + 1) // ALIGNMENT * ALIGNMENT
    return lower[k, first : n - len(upper)], len(upper) + first


@compiled()
def find_largest(int_halves: Any, n: int, row_max: Any) -> int:
    """Set the largest similarity of each token with the tokens from some earlier position on, at least the diagonal's
    0; return the row of the largest.

    All are given as integers of the same bits. Integers are ordered as the numbers are, except negative ones, which
    stay below 0; and the compiler vectorizes a maximum over integers, unlike one over floating-point numbers.
    """
    best_row = 0
    row_max[0] = 0
    for i in range(n - 1):
        row_max[i] = find_max(get_row(int_halves, i, n)[0])
        if row_max[i] > row_max[best_row]:
            best_row = i
    return best_row


@compiled()
def count_high(
    halves: Any, n: int, row_max: Any, threshold: Any, near_bounds: Any, equal_bits: Any, same_bits: Any, marks: Any,
    planes: Any, second_counts: Any, pair_ends: Any, position_counts: Any,
) -> Any:  # fmt: skip
    """Count the high pairs: all, of equal tokens, of one sentence, of both; and the pairs near the threshold.

    Args:
        row_max: largest similarity of each row, at least 0
        near_bounds: lower and upper bound of what counts as near the threshold
        equal_bits, same_bits: (i, word), bits of the pairs of equal tokens and of one sentence
        marks, second_counts: buffers for one row
        planes: (digit, word), binary numbers of pairs by distance; added to
        pair_ends: set to the number of pairs of each token, pairs of equal tokens counted only for their second
        position_counts: (i, word), numbers of pairs by position, eight bytes in a word; added to
    """
    pairs, equal_pairs, same_pairs, both_pairs, near_count, rows_added = 0, 0, 0, 0, 0, 0
    mark_words, count_words = marks.view(np.uint64), second_counts.view(np.uint64)
    words = equal_bits.shape[1]
    bits = np.zeros(words + 1, np.uint64)
    marks[:] = 0
    second_counts[:] = 0
    pair_ends[:n] = 0
    for i in range(n - 1):
        if row_max[i] < near_bounds[0]:
            continue
        row, first = get_row(halves, i, n)
        first_word = (i + 1) // WORD
        mark(row, threshold, near_bounds[0], near_bounds[1], marks[first:n])
        marks[first_word * WORD : i + 1] = 0
        row_pairs, row_equal = 0, 0
        for w in range(first_word, words):
            for k in range(8 * w, 8 * w + 8):
                high = mark_words[k] & LOWEST_BITS
                count_words[k] += high
                near_count += np.int64(count_bits(mark_words[k] & SECOND_BITS))
                if len(position_counts):
                    position_counts[i, k] += high
            word = pack_lowest_bits(mark_words[8 * w : 8 * w + 8])
            bits[w] = word
            row_pairs += np.int64(count_bits(word))
            row_equal += np.int64(count_bits(word & equal_bits[i, w]))
            same_pairs += np.int64(count_bits(word & same_bits[i, w]))
            both_pairs += np.int64(count_bits(word & equal_bits[i, w] & same_bits[i, w]))
        pair_ends[i] += row_pairs - row_equal
        pairs += row_pairs
        equal_pairs += row_equal
        if row_pairs:
            _add_shifted(bits, i + 1, words, planes)
        rows_added += 1
        if rows_added == MAX_BYTE:
            _move_counts(second_counts, n, pair_ends)
            rows_added = 0
    _move_counts(second_counts, n, pair_ends)
    return pairs, equal_pairs, same_pairs, both_pairs, near_count


@compiled()
def _add_shifted(bits: Any, shift: int, words: int, planes: Any) -> None:
    """Add bits to binary numbers, the bit at position `shift` to the first number; `planes` (digit, word) hold the
    numbers."""
    first_word, bit_shift = shift // WORD, np.uint64(shift % WORD)
    for w in range(words - first_word):
        carry = bits[first_word + w] >> bit_shift
        if bit_shift:
            carry |= bits[first_word + w + 1] << (np.uint64(WORD) - bit_shift)
        digit = 0
        while carry:
            previous = planes[digit, w]
            planes[digit, w] = previous ^ carry
            carry &= previous
            digit += 1


@compiled()
def pop_numbers(planes: Any, numbers: Any) -> None:
    """Set `numbers` to the binary numbers in the planes, one for each bit of a plane, and clear the planes."""
    numbers[:] = 0
    for digit in range(planes.shape[0]):
        for w in range(planes.shape[1]):
            plane = planes[digit, w]
            if plane:
                _add_digit(plane, np.uint64(digit), numbers[w * WORD : (w + 1) * WORD])
    planes[:] = 0


@compiled(fast=True)
def _add_digit(plane: Any, digit: Any, numbers: Any) -> None:
    for bit in range(numbers.size):
        numbers[bit] += ((plane >> np.uint64(bit)) & np.uint64(1)) << digit


@compiled()
def _move_counts(byte_counts: Any, n: int, totals: Any) -> None:
    for k in range(n):
        totals[k] += np.int64(byte_counts[k])
    byte_counts[:] = 0


# Loops over whole slices, which the compiler vectorizes.


@compiled(fast=True)
def mark(row: Any, threshold: Any, low: Any, high: Any, marks: Any) -> None:
    """Set marks to 1 where a number is above the threshold, and add 2 where it lies from `low` to `high`."""
    for k in range(row.size):
        value = row[k]
        marks[k] = np.uint8(value > threshold) + (np.uint8(value >= low) & np.uint8(value <= high)) * np.uint8(2)


@compiled(fast=True)
def find_max(row: Any) -> Any:
    """Return the largest number, at least 0."""
    largest = row.dtype.type(0)
    for k in range(row.size):
        largest = max(largest, row[k])
    return largest


@compiled()
def round_down(bound: float, like: Any) -> Any:
    """Return the largest number of the type of `like` that is not above a bound, so that `>` means the same for
    both."""
    rounded = like.dtype.type(bound)
    return np.nextafter(rounded, like.dtype.type(-1)) if rounded > bound else rounded


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

"""The high pairs of one head in one text, found and counted many at a time, as bytes and bits.

A row of similarities becomes a row of bytes that are 0 or 1, and these become bits. Bytes are added to bytes, eight in
a word, to count how often each token is the second of a pair, and at which positions pairs are. Bits are counted by the
word. For the distances of pairs they are added to binary numbers in bit planes: a word holds one digit of 64 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.numba_backend.bits import WORD, count_bits, pack_lowest_bits
from headscope.tally.numba_backend.jit import compiled

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

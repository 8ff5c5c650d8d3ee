"""The high pairs of one head in one text: found many at once, and counted as bits and bytes, never one by one.

A row of similarities becomes a row of bytes that are 0 or 1, and these become bits. Bytes are added to bytes, eight in
a word: how often each token is the second of a pair, and where pairs are. Bits are counted by the word, and for the
distances of pairs added to binary numbers that lie across words, one digit of 64 numbers in each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.compiled.bits import WORD, first_bits, ones
from headscope.tally.compiled.compiling import compiled

STEP = 32
"""Rows are looked at from a multiple of so many numbers on: what is left over for the compiler's slow loops is then at
the end of a window alone."""
MOST = 255
"""of rows, or of texts, that fit into a byte"""
ONES, TWOS = np.uint64(0x0101010101010101), np.uint64(0x0202020202020202)


@compiled()
def row_of(halves: Any, i: int, n: int) -> Any:
    """Similarities of token i, and the place of the first of them: at or before that of the token after it."""
    upper, lower = halves
    if i < len(upper):
        first = (i + 1) // STEP * STEP
        return upper[i, first:n], first
    k = i - len(upper)
    first = (k + 1) // STEP * STEP
    return lower[k, first : n - len(upper)], len(upper) + first


@compiled()
def find_largest(whole: Any, n: int, highest: Any) -> int:
    """The largest similarity of each token with those from some token before it on, or the diagonal's 0; and the row
    where it is largest.

    All as integers of the same bits. They are ordered as the numbers are, but for those below 0, which are below 0 too;
    and unlike a largest number, the compiler finds a largest integer among many at once.
    """
    best = 0
    highest[0] = 0
    for i in range(n - 1):
        highest[i] = row_largest(row_of(whole, i, n)[0])
        if highest[i] > highest[best]:
            best = i
    return best


@compiled()
def count_high(
    halves: Any, n: int, most: Any, threshold: Any, near: Any, equal: Any, same: Any, marks: Any, planes: Any,
    seconds: Any, ends: Any, places: Any,
) -> Any:  # fmt: skip
    """Count the high pairs in all, of equal tokens, of one sentence, of both, and those near the threshold.

    Says of each token how many pairs it is in, pairs of equal tokens counted for their second alone (`ends`), and adds
    pairs to where they are (`places`, eight bytes in a word) and to how far apart their tokens are (`planes`). `marks`
    and `seconds` are room for a row.
    """
    pairs, equals, sames, boths, unsure, added = 0, 0, 0, 0, 0, 0
    eights, sums = marks.view(np.uint64), seconds.view(np.uint64)
    words = equal.shape[1]
    bits = np.zeros(words + 1, np.uint64)
    marks[:] = 0
    seconds[:] = 0
    ends[:n] = 0
    for i in range(n - 1):
        if most[i] < near[0]:
            continue
        row, first = row_of(halves, i, n)
        start = (i + 1) // WORD
        mark(row, threshold, near[0], near[1], marks[first:n])
        marks[start * WORD : i + 1] = 0
        in_row, alike = 0, 0
        for w in range(start, words):
            for e in range(8 * w, 8 * w + 8):
                high = eights[e] & ONES
                sums[e] += high
                unsure += np.int64(ones(eights[e] & TWOS))
                if len(places):
                    places[i, e] += high
            word = first_bits(eights[8 * w : 8 * w + 8])
            bits[w] = word
            in_row += np.int64(ones(word))
            alike += np.int64(ones(word & equal[i, w]))
            sames += np.int64(ones(word & same[i, w]))
            boths += np.int64(ones(word & equal[i, w] & same[i, w]))
        ends[i] += in_row - alike
        pairs += in_row
        equals += alike
        if in_row:
            _add_moved(bits, i + 1, words, planes)
        added += 1
        if added == MOST:
            _widen(seconds, n, ends)
            added = 0
    _widen(seconds, n, ends)
    return pairs, equals, sames, boths, unsure


@compiled()
def _add_moved(bits: Any, moved: int, words: int, planes: Any) -> None:
    """Add bits to binary numbers, those of place `moved` to the first; `planes` (digit, word) hold the numbers."""
    start, by = moved // WORD, np.uint64(moved % WORD)
    for w in range(words - start):
        carry = bits[start + w] >> by
        if by:
            carry |= bits[start + w + 1] << (np.uint64(WORD) - by)
        digit = 0
        while carry:
            held = planes[digit, w]
            planes[digit, w] = held ^ carry
            carry &= held
            digit += 1


@compiled()
def take_numbers(planes: Any, numbers: Any) -> None:
    """Binary numbers from their planes, which are then empty; one for each bit of a plane."""
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
def _widen(narrow: Any, n: int, wide: Any) -> None:
    for k in range(n):
        wide[k] += np.int64(narrow[k])
    narrow[:] = 0


# Loops over whole slices, which the compiler turns into instructions on eight or more numbers at once.


@compiled(fast=True)
def mark(row: Any, threshold: Any, low: Any, high: Any, marks: Any) -> None:
    """1 where a number is above the threshold, and 2 more where it lies from `low` to `high`."""
    for k in range(row.size):
        value = row[k]
        marks[k] = np.uint8(value > threshold) + (np.uint8(value >= low) & np.uint8(value <= high)) * np.uint8(2)


@compiled(fast=True)
def row_largest(row: Any) -> Any:
    """At least 0."""
    largest = row.dtype.type(0)
    for k in range(row.size):
        largest = max(largest, row[k])
    return largest


@compiled()
def at_most(bound: float, like: Any) -> Any:
    """The largest number of a type that is not above a bound, so that `>` means the same for both."""
    held = like.dtype.type(bound)
    return np.nextafter(held, like.dtype.type(-1)) if held > bound else held

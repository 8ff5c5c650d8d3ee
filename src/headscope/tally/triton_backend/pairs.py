"""Kernels of pairs: from the bits of high elements to counts.

Bits are symmetric, so counts of bits are twice the counts of pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.triton_backend.high import pack_bits

LAST: tl.constexpr = tl.constexpr((1 << 31) - 1)
"""the last possible position; positions are stored as the difference from it, so that earlier positions are larger
numbers"""


@triton.jit
def count_bits(word):
    """Return how many bits of a word are set."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def mark_equal(values, lengths, bits, N, WORDS, TILE: tl.constexpr):
    """Set bits (text, i, word) where two values of a text are equal."""
    text, row, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(lengths + text)
    i, j = row * TILE + tl.arange(0, TILE), column * TILE + tl.arange(0, TILE)
    row_values, column_values = tl.load(values + text * N + i, i < n, -1), tl.load(values + text * N + j, j < n, -2)
    marks = (row_values[:, None] == column_values[None, :]) & (i[:, None] != j[None, :])
    word = column * (TILE // 32) + tl.arange(0, TILE // 32)
    pointers = bits + (text * N + i[:, None]).to(tl.int64) * WORDS + word[None, :]
    tl.store(pointers, pack_bits(marks, TILE, TILE // 32), (i[:, None] < N) & (word[None, :] < WORDS))


@triton.jit
def split_counts(counts):
    """Split two counts of 16 bits each in one number into two counts of 32 bits each, in one number."""
    return (counts & 0xFFFF).to(tl.int64) | ((counts >> 16).to(tl.int64) << 32)


@triton.jit
def count_pairs(
    bits,
    equal,
    same,
    pair_ends,
    counts,
    heads,
    N,
    WORDS,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    ALL_WORDS: tl.constexpr,
):
    """Count some rows of one head's bits: for each position twice the pair ends it has, pairs of equal tokens counted
    half; and twice the counts, two in one number (32 bits each, 16 in a row): pairs and those of equal tokens, those of
    one sentence and those of both."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, text_head = tile * ROWS + tl.arange(0, ROWS), text * heads + head
    all_counts, same_counts = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
    for start in tl.static_range(0, ALL_WORDS, STEP):
        word = start + tl.arange(0, STEP)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        offsets = (text * N + i[:, None]) * WORDS + word[None, :]
        is_equal, is_same = tl.load(equal + offsets, inside, 0), tl.load(same + offsets, inside, 0)
        high = tl.load(bits + (text_head * N + i[:, None]) * WORDS + word[None, :], inside, 0)
        high_equal = high & is_equal
        all_counts += tl.sum(count_bits(high) | (count_bits(high_equal) << 16), 1)
        same_counts += tl.sum(count_bits(high & is_same) | (count_bits(high_equal & is_same) << 16), 1)
    tl.store(pair_ends + text_head * N + i, 2 * (all_counts & 0xFFFF) - (all_counts >> 16), i < N)
    tl.atomic_add(counts + text_head * 2, tl.sum(split_counts(all_counts)))
    tl.atomic_add(counts + text_head * 2 + 1, tl.sum(split_counts(same_counts)))


@triton.jit
def get_larger(first, second):
    """Return the larger number, as a function for scans."""
    return tl.maximum(first, second)


@triton.jit
def find_dominants(pair_ends, token_order, first_positions, lengths, dominants, heads, N, POSITIONS: tl.constexpr):
    """Find the token that the most of a head's high pairs include. Store in one number twice the number of these pairs
    (upper 32 bits), and how far before the last possible position it first occurs.

    A token's pairs are the pair ends at all its positions, which follow each other in the order of tokens: a running
    sum at the token's end less the running sum before the token.
    """
    head, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    index, n, text_head = tl.arange(0, POSITIONS), tl.load(lengths + text), text * heads + head
    position = tl.load(token_order + text * N + index, index < n, 0)
    first = tl.load(first_positions + text * N + index, index < n, 0)
    own_ends = tl.load(pair_ends + text_head * N + position, index < n, 0)
    running_sum = tl.cumsum(own_ends, 0)
    before = tl.associative_scan(tl.where(position == first, running_sum - own_ends, 0), 0, get_larger)
    result = ((running_sum - before).to(tl.int64) << 32) | (LAST - first)
    tl.store(dominants + text_head, tl.max(tl.where(index < n, result, 0)))


@triton.jit
def add_digit(plane, carry):
    """Add a carry to one digit of many binary numbers, a bit for each number; return the digit and the carry to the
    next digit."""
    return plane ^ carry, plane & carry


@triton.jit
def combine_digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7):
    """Combine the eight binary digits of numbers, each a word for 32 of them: (…, word) to (…, word, 32)."""
    bit = tl.arange(0, 32)[None, None, :]
    numbers = (plane_0[:, :, None] >> bit) & 1
    numbers |= ((plane_1[:, :, None] >> bit) & 1) << 1
    numbers |= ((plane_2[:, :, None] >> bit) & 1) << 2
    numbers |= ((plane_3[:, :, None] >> bit) & 1) << 3
    numbers |= ((plane_4[:, :, None] >> bit) & 1) << 4
    numbers |= ((plane_5[:, :, None] >> bit) & 1) << 5
    numbers |= ((plane_6[:, :, None] >> bit) & 1) << 6
    numbers |= ((plane_7[:, :, None] >> bit) & 1) << 7
    return numbers


@triton.jit
def add_positions(
    bits, order, parts, part_blocks, position_counts, distances, heads, stride, N, WORDS,
    ROWS: tl.constexpr, ROW_WORDS: tl.constexpr, STEPS: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """Count how often each element of some rows was high in the texts of one part: with `MAPS`, (part, head, i, j);
    otherwise by distance, added to the part's block (block, head, …).

    Numbers are added 32 at a time, as bit planes of their binary digits; a part has fewer than 64 texts. For distances,
    a row's words are shifted to begin behind the diagonal, so that `STEPS` times as many rows, up to four, can be added
    to each other.
    """
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, word = row * ROWS * STEPS + tl.arange(0, ROWS), tl.arange(0, ROW_WORDS)
    zero = tl.zeros((ROWS, ROW_WORDS), tl.int32)
    plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7 = (
        zero, zero, zero, zero, zero, zero, zero, zero,
    )  # fmt: skip
    for index in range(tl.load(parts + part), tl.load(parts + part + 1)):
        text = tl.load(order + index).to(tl.int64)
        for step in tl.static_range(0, STEPS):
            rows = i[:, None] + step * ROWS
            start = bits + ((text * heads + head) * N + rows) * WORDS
            if MAPS:
                carry = tl.load(start + word[None, :], (rows < N) & (word[None, :] < WORDS), 0)
            else:
                first, shift = (rows + 1) // 32 + word[None, :], (rows + 1) % 32
                low = tl.load(start + first, (rows < N) & (first < WORDS), 0).to(tl.uint32, bitcast=True)
                high = tl.load(start + first + 1, (rows < N) & (first + 1 < WORDS), 0).to(tl.uint32, bitcast=True)
                carry = ((low >> shift) | ((high << 1) << (31 - shift))).to(tl.int32, bitcast=True)
            plane_0, carry = add_digit(plane_0, carry)
            plane_1, carry = add_digit(plane_1, carry)
            plane_2, carry = add_digit(plane_2, carry)
            plane_3, carry = add_digit(plane_3, carry)
            plane_4, carry = add_digit(plane_4, carry)
            plane_5, carry = add_digit(plane_5, carry)
            if STEPS > 1:
                plane_6, carry = add_digit(plane_6, carry)
                plane_7 ^= carry
    counts = combine_digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7)
    j = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    if MAPS:
        pointers = position_counts + ((part * heads + head).to(tl.int64) * N + i[:, None, None]) * N + j[None, :, :]
        tl.store(pointers, counts, (i[:, None, None] < N) & (j[None, :, :] < N))
    else:
        pointers = distances + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + N + j
        tl.atomic_add(pointers, tl.sum(counts, 0).to(tl.int64), j < N - 1)

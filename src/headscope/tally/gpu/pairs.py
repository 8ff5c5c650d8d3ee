"""Kernels of pairs: from the bits of high elements to counts.

Bits are symmetric, so counts of them are twice the counts of pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.gpu.high import packed

LAST: tl.constexpr = tl.constexpr((1 << 31) - 1)
"""the last place there could be: a number that is the larger, the earlier a place, begins there"""


@triton.jit
def ones(word):
    """How many bits of a word are set."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def relate(values, lengths, bits, N, WORDS, TILE: tl.constexpr):
    """Bits (text, i, word) of which values of a text are equal to which others."""
    text, row, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(lengths + text)
    i, j = row * TILE + tl.arange(0, TILE), column * TILE + tl.arange(0, TILE)
    one, other = tl.load(values + text * N + i, i < n, -1), tl.load(values + text * N + j, j < n, -2)
    marks = (one[:, None] == other[None, :]) & (i[:, None] != j[None, :])
    word = column * (TILE // 32) + tl.arange(0, TILE // 32)
    place = bits + (text * N + i[:, None]).to(tl.int64) * WORDS + word[None, :]
    tl.store(place, packed(marks, TILE, TILE // 32), (i[:, None] < N) & (word[None, :] < WORDS))


@triton.jit
def apart(counts):
    """Two counts in one number, of 16 bits each, with 32 bits each."""
    return (counts & 0xFFFF).to(tl.int64) | ((counts >> 16).to(tl.int64) << 32)


@triton.jit
def count_pairs(
    bits, equal, same, ends, counts, heads, N, WORDS, ROWS: tl.constexpr, SOME: tl.constexpr, ALL: tl.constexpr
):
    """Of some rows of one head's bits: for each place twice the pair ends it has, pairs of equal tokens counted half;
    and twice the counts, two in one number (32 bits each, 16 in a row): pairs and those of equal tokens, those of one
    sentence and those of both."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, held = tile * ROWS + tl.arange(0, ROWS), text * heads + head
    some, both = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32)
    for start in tl.static_range(0, ALL, SOME):
        word = start + tl.arange(0, SOME)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        of_text = (text * N + i[:, None]) * WORDS + word[None, :]
        is_equal, is_same = tl.load(equal + of_text, inside, 0), tl.load(same + of_text, inside, 0)
        found = tl.load(bits + (held * N + i[:, None]) * WORDS + word[None, :], inside, 0)
        alike = found & is_equal
        some += tl.sum(ones(found) | (ones(alike) << 16), 1)
        both += tl.sum(ones(found & is_same) | (ones(alike & is_same) << 16), 1)
    tl.store(ends + held * N + i, 2 * (some & 0xFFFF) - (some >> 16), i < N)
    tl.atomic_add(counts + held * 2, tl.sum(apart(some)))
    tl.atomic_add(counts + held * 2 + 1, tl.sum(apart(both)))


@triton.jit
def larger(one, other):
    """Of two; scans want a function."""
    return tl.maximum(one, other)


@triton.jit
def find_dominants(ends, by_token, firsts, lengths, dominants, heads, N, PLACES: tl.constexpr):
    """The token that the most of a head's high pairs include: in one number twice how many (its upper 32 bits), and
    how far before the last possible place it is first met.

    A token's pairs are the pair ends of all its places, which follow each other in the order of tokens: a running sum
    less what it was before the token, at the token's end.
    """
    head, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at, n, held = tl.arange(0, PLACES), tl.load(lengths + text), text * heads + head
    place = tl.load(by_token + text * N + at, at < n, 0)
    first = tl.load(firsts + text * N + at, at < n, 0)
    own = tl.load(ends + held * N + place, at < n, 0)
    summed = tl.cumsum(own, 0)
    before = tl.associative_scan(tl.where(place == first, summed - own, 0), 0, larger)
    both = ((summed - before).to(tl.int64) << 32) | (LAST - first)
    tl.store(dominants + held, tl.max(tl.where(at < n, both, 0)))


@triton.jit
def plus(plane, carry):
    """One digit of many binary numbers, a bit set where the number has it, and what is carried to the next digit."""
    return plane ^ carry, plane & carry


@triton.jit
def digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7):
    """Numbers from their eight binary digits, each a word for 32 of them: (…, word) to (…, word, 32)."""
    bit = tl.arange(0, 32)[None, None, :]
    made = (plane_0[:, :, None] >> bit) & 1
    made |= ((plane_1[:, :, None] >> bit) & 1) << 1
    made |= ((plane_2[:, :, None] >> bit) & 1) << 2
    made |= ((plane_3[:, :, None] >> bit) & 1) << 3
    made |= ((plane_4[:, :, None] >> bit) & 1) << 4
    made |= ((plane_5[:, :, None] >> bit) & 1) << 5
    made |= ((plane_6[:, :, None] >> bit) & 1) << 6
    made |= ((plane_7[:, :, None] >> bit) & 1) << 7
    return made


@triton.jit
def add_places(
    bits, order, parts, part_blocks, places, distances, heads, stride, N, WORDS,
    ROWS: tl.constexpr, W: tl.constexpr, STEPS: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """How often each element of some rows was high in the texts of one part: with `MAPS`, (part, head, i, j); else by
    distance, added to the part's block (block, head, …).

    Numbers are added 32 at a time, as their binary digits; a part has fewer than 64 texts. For distances a row's words
    are moved to begin behind the diagonal, so that `STEPS` times as many rows, up to four, can be added to each other.
    """
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, word = row * ROWS * STEPS + tl.arange(0, ROWS), tl.arange(0, W)
    zero = tl.zeros((ROWS, W), tl.int32)
    plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7 = (
        zero, zero, zero, zero, zero, zero, zero, zero,
    )  # fmt: skip
    for at in range(tl.load(parts + part), tl.load(parts + part + 1)):
        text = tl.load(order + at).to(tl.int64)
        for step in tl.static_range(0, STEPS):
            rows = i[:, None] + step * ROWS
            start = bits + ((text * heads + head) * N + rows) * WORDS
            if MAPS:
                carry = tl.load(start + word[None, :], (rows < N) & (word[None, :] < WORDS), 0)
            else:
                first, moved = (rows + 1) // 32 + word[None, :], (rows + 1) % 32
                low = tl.load(start + first, (rows < N) & (first < WORDS), 0).to(tl.uint32, bitcast=True)
                high = tl.load(start + first + 1, (rows < N) & (first + 1 < WORDS), 0).to(tl.uint32, bitcast=True)
                carry = ((low >> moved) | ((high << 1) << (31 - moved))).to(tl.int32, bitcast=True)
            plane_0, carry = plus(plane_0, carry)
            plane_1, carry = plus(plane_1, carry)
            plane_2, carry = plus(plane_2, carry)
            plane_3, carry = plus(plane_3, carry)
            plane_4, carry = plus(plane_4, carry)
            plane_5, carry = plus(plane_5, carry)
            if STEPS > 1:
                plane_6, carry = plus(plane_6, carry)
                plane_7 ^= carry
    added = digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5, plane_6, plane_7)
    j = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    if MAPS:
        place = places + ((part * heads + head).to(tl.int64) * N + i[:, None, None]) * N + j[None, :, :]
        tl.store(place, added, (i[:, None, None] < N) & (j[None, :, :] < N))
    else:
        of_block = distances + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + N + j
        tl.atomic_add(of_block, tl.sum(added, 0).to(tl.int64), j < N - 1)

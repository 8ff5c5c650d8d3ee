"""Kernels of pairs: from outputs to high elements as bits, 32 to a word, and from bits to counts.

Bits are symmetric, (text, head, i, word of j), so counts of them are twice the counts of pairs. In windows longer than
a tile C is computed twice, for its largest element and then for those above the threshold: cheaper than to keep it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ones(word):
    """How many bits of a word are set."""
    word = word.to(tl.uint32, bitcast=True)
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def packed(marks, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Marks (row, column) as words of 32 bits, (row, word)."""
    apart = tl.reshape(marks.to(tl.int32), (ROWS, WORDS, 32))
    return tl.sum(apart << tl.arange(0, 32)[None, None, :], 2)


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
def written_by(output, text, head, heads, places, n, N, wide, WIDTH: tl.constexpr):
    """What a head writes for some places of a text, 0 on padding."""
    start = output + (text * N * heads + head) * WIDTH
    return tl.load(
        start + places[:, None] * heads * WIDTH + wide[None, :], (places[:, None] < n) & (wide[None, :] < WIDTH), 0.0
    )


@triton.jit
def bound_of(top, THETA: tl.constexpr):
    """The largest single-precision number that is not above θ·top, so that `>` means the same as for the exact one."""
    exact = top.to(tl.float64) * THETA
    bound = exact.to(tl.float32)
    below = (bound.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    return tl.where(bound.to(tl.float64) > exact, below, bound)


@triton.jit
def how_many_near(matrix, top, THETA: tl.constexpr, NEAR: tl.constexpr):
    """How many elements of each row are near the threshold. Padding and the diagonal are 0, and near only where all is
    0: there nothing is."""
    return tl.sum((tl.abs(matrix - top * THETA) <= tl.where(top > 0, top * NEAR, -1.0)).to(tl.int32), 1)


@triton.jit
def find_all(
    output, lengths, largest, bits, near, heads, N, WORDS,
    WIDTH: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What `find_largest` and `find_high` do, at once, for windows of one tile and some heads: C is computed once."""
    text = tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + text)
    i, wide, word = tl.arange(0, TILE), tl.arange(0, D), tl.arange(0, TILE // 32)
    start = tl.program_id(0) * HEADS
    for head in range(start, tl.minimum(start + HEADS, heads)):
        held = text * heads + head
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH)
        matrix = tl.dot(one, tl.trans(one), input_precision=PRECISION)
        matrix = tl.where(i[:, None] == i[None, :], 0.0, matrix)
        # 0 times what is no finite number is no number.
        nothing = tl.dot(one, tl.zeros((D, 16), one.dtype), input_precision=PRECISION)
        broken = tl.max(tl.max((nothing != 0.0).to(tl.int32), 1)) > 0
        top = tl.where(broken, float("inf"), tl.maximum(tl.max(tl.max(matrix, 1)), 0.0))
        found = packed(matrix > bound_of(top, THETA), TILE, TILE // 32)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        tl.store(bits + (held * N + i[:, None]) * WORDS + word[None, :], found, inside)
        tl.store(largest + held, top)
        tl.store(near + held, tl.sum(how_many_near(matrix, top, THETA, NEAR)))


@triton.jit
def find_largest(
    output, lengths, largest, heads, N, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The largest similarity of one head in one text, at least the diagonal's 0, from some rows of C; infinite where
    what the head writes is no number."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = tl.load(lengths + text)
    i, wide = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    if tile * ROWS < n:
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH)
        # 0 times what is no finite number is no number; every place is among the rows of some tile.
        broken = tl.sum(one.to(tl.float32) * 0.0, 1) != 0.0
        most = tl.where(broken, float("inf"), 0.0)
        # Tiles below the diagonal hold nothing that those above do not.
        for column in range(tile * ROWS // COLUMNS, TILES):
            j = column * COLUMNS + tl.arange(0, COLUMNS)
            other = written_by(output, text, head, heads, j, n, N, wide, WIDTH)
            matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
            most = tl.maximum(most, tl.max(tl.where(i[:, None] == j[None, :], 0.0, matrix), 1))
        tl.atomic_max(largest + text * heads + head, tl.max(most))


@triton.jit
def find_high(
    output, lengths, largest, bits, near, heads, N, WORDS, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The high elements of some rows of C as bits, and how many elements are near the threshold."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    held = text * heads + head
    n = tl.load(lengths + text)
    top = tl.load(largest + held)
    bound = bound_of(top, THETA)
    i, wide = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    one = written_by(output, text, head, heads, i, n, N, wide, WIDTH)
    count = tl.zeros((ROWS,), tl.int32)
    for column in range(0, TILES):
        j, word = column * COLUMNS + tl.arange(0, COLUMNS), column * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
        other = written_by(output, text, head, heads, j, n, N, wide, WIDTH)
        matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
        matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
        count += how_many_near(matrix, top, THETA, NEAR)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        found = packed(matrix > bound, ROWS, COLUMNS // 32)
        tl.store(bits + (held * N + i[:, None]) * WORDS + word[None, :], found, inside)
    tl.atomic_add(near + held, tl.sum(count))


@triton.jit
def count_pairs(
    bits, equal, same, ends, counts, heads, N, WORDS, ROWS: tl.constexpr, SOME: tl.constexpr, ALL: tl.constexpr
):
    """Of some rows of one head's bits: for each place twice the pair ends it has, pairs of equal tokens counted half;
    and twice the counts, two in one number (32 bits each): pairs and those of equal tokens, those of one sentence and
    those of both."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, held = tile * ROWS + tl.arange(0, ROWS), text * heads + head
    some, both = tl.zeros((ROWS,), tl.int64), tl.zeros((ROWS,), tl.int64)
    for start in tl.static_range(0, ALL, SOME):
        word = start + tl.arange(0, SOME)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        of_text = (text * N + i[:, None]) * WORDS + word[None, :]
        is_equal, is_same = tl.load(equal + of_text, inside, 0), tl.load(same + of_text, inside, 0)
        found = tl.load(bits + (held * N + i[:, None]) * WORDS + word[None, :], inside, 0)
        alike = found & is_equal
        some += tl.sum(ones(found).to(tl.int64) | (ones(alike).to(tl.int64) << 32), 1)
        both += tl.sum(ones(found & is_same).to(tl.int64) | (ones(alike & is_same).to(tl.int64) << 32), 1)
    tl.store(ends + held * N + i, (2 * (some & 0xFFFFFFFF) - (some >> 32)).to(tl.int32), i < N)
    tl.atomic_add(counts + held * 2, tl.sum(some))
    tl.atomic_add(counts + held * 2 + 1, tl.sum(both))


@triton.jit
def find_dominants(ids, lengths, ends, most, where, heads, N, H: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr):
    """For every head of one text, the token that the most high pairs include: twice their number, and the place where
    it is first met.

    A token's pairs are the pair ends of all its places: one product of equal tokens with ends, for all heads at once.
    """
    text = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + text)
    tile, head = tl.arange(0, TILE), tl.arange(0, H)
    best, place = tl.full((H,), -1.0, tl.float32), tl.zeros((H,), tl.int32)
    for row in range(0, TILES):
        i = row * TILE + tile
        mine = tl.load(ids + text * N + i, i < n, -1)
        scores = tl.zeros((TILE, H), tl.float32)
        for column in range(0, TILES):
            j = column * TILE + tile
            other = tl.load(ids + text * N + j, j < n, -2)
            equal = (mine[:, None] == other[None, :]).to(tl.float16)
            held = tl.load(
                ends + (text * heads + head[None, :]) * N + j[:, None], (j[:, None] < n) & (head[None, :] < heads), 0
            )
            scores += tl.dot(equal, held.to(tl.float16))
        scores = tl.where(i[:, None] < n, scores, -1.0)
        higher, found = tl.max(scores, 0), tl.argmax(scores, 0, tie_break_left=True)
        place = tl.where(higher > best, row * TILE + found, place)
        best = tl.maximum(best, higher)
    tl.store(most + text * heads + head, best.to(tl.int32), head < heads)
    tl.store(where + text * heads + head, place, head < heads)


@triton.jit
def plus(plane, carry):
    """One digit of many binary numbers, a bit set where the number has it, and what is carried to the next digit."""
    return plane ^ carry, plane & carry


@triton.jit
def digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5):
    """Numbers from their six binary digits, each a word for 32 of them: (…, word) to (…, word, 32)."""
    bit = tl.arange(0, 32)[None, None, :]
    made = (plane_0[:, :, None] >> bit) & 1
    made |= ((plane_1[:, :, None] >> bit) & 1) << 1
    made |= ((plane_2[:, :, None] >> bit) & 1) << 2
    made |= ((plane_3[:, :, None] >> bit) & 1) << 3
    made |= ((plane_4[:, :, None] >> bit) & 1) << 4
    made |= ((plane_5[:, :, None] >> bit) & 1) << 5
    return made


@triton.jit
def add_places(
    bits, order, parts, part_blocks, places, distances, heads, stride, N, WORDS,
    ROWS: tl.constexpr, W: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """How often each element of some rows was high in the texts of one part: with `MAPS`, (part, head, i, j); else by
    distance, added to the part's block (block, head, …).

    Numbers are added 32 at a time, as their binary digits; a part has fewer than 64 texts. For distances a row's words
    are moved to begin behind the diagonal.
    """
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, word = row * ROWS + tl.arange(0, ROWS), tl.arange(0, W)
    inside = (i[:, None] < N) & (word[None, :] < WORDS)
    first, moved = (i[:, None] + 1) // 32 + word[None, :], (i[:, None] + 1) % 32
    zero = tl.zeros((ROWS, W), tl.int32)
    plane_0, plane_1, plane_2, plane_3, plane_4, plane_5 = zero, zero, zero, zero, zero, zero
    for at in range(tl.load(parts + part), tl.load(parts + part + 1)):
        text = tl.load(order + at).to(tl.int64)
        start = bits + ((text * heads + head) * N + i[:, None]) * WORDS
        if MAPS:
            carry = tl.load(start + word[None, :], inside, 0)
        else:
            low = tl.load(start + first, (i[:, None] < N) & (first < WORDS), 0).to(tl.uint32, bitcast=True)
            high = tl.load(start + first + 1, (i[:, None] < N) & (first + 1 < WORDS), 0).to(tl.uint32, bitcast=True)
            carry = ((low >> moved) | ((high << 1) << (31 - moved))).to(tl.int32, bitcast=True)
        plane_0, carry = plus(plane_0, carry)
        plane_1, carry = plus(plane_1, carry)
        plane_2, carry = plus(plane_2, carry)
        plane_3, carry = plus(plane_3, carry)
        plane_4, carry = plus(plane_4, carry)
        plane_5 ^= carry
    added = digits(plane_0, plane_1, plane_2, plane_3, plane_4, plane_5)
    j = word[:, None] * 32 + tl.arange(0, 32)[None, :]
    if MAPS:
        place = places + ((part * heads + head).to(tl.int64) * N + i[:, None, None]) * N + j[None, :, :]
        tl.store(place, added, (i[:, None, None] < N) & (j[None, :, :] < N))
    else:
        of_block = distances + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + N + j
        tl.atomic_add(of_block, tl.sum(added, 0).to(tl.int64), j < N - 1)

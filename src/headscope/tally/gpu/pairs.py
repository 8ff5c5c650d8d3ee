"""Kernels of pairs: from outputs to high elements as bits, 32 to a word, and from bits to counts.

Bits are symmetric, (text, head, i, word of j), so counts of them are twice the counts of pairs. C is computed twice,
for its largest element and then for those above the threshold: that is cheaper than to keep it.
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
def find_largest(
    output, lengths, largest, heads, N, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The largest similarity of one head in one text, at least the diagonal's 0, from one tile of C; infinite where
    what the head writes is no number."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = tl.load(lengths + text)
    i, j = tile // TILES * ROWS + tl.arange(0, ROWS), tile % TILES * COLUMNS + tl.arange(0, COLUMNS)
    # Tiles below the diagonal hold nothing that those above do not.
    if (tile // TILES * ROWS < tile % TILES * COLUMNS + COLUMNS) & (tile // TILES * ROWS < n):
        wide = tl.arange(0, D)
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH)
        other = written_by(output, text, head, heads, j, n, N, wide, WIDTH)
        matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
        matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
        # 0 times what is no finite number is no number; every place is among the rows of some tile.
        broken = tl.sum(one.to(tl.float32) * 0.0, 1) != 0.0
        most = tl.where(broken, float("inf"), tl.max(matrix, 1))
        tl.atomic_max(largest + text * heads + head, tl.maximum(tl.max(most), 0.0))


@triton.jit
def find_high(
    output, lengths, equal, same, largest, bits, ends, counts, heads, N, WORDS, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The high elements of one tile of C: bits; for each place twice the pair ends it has, pairs of equal tokens
    counted half; and twice the counts, several in one number: pairs, those of equal tokens, those near the threshold
    (21 bits each); those of one sentence, and of both (32 bits each)."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    held = text * heads + head
    n = tl.load(lengths + text)
    top = tl.load(largest + held)
    i, j = tile // TILES * ROWS + tl.arange(0, ROWS), tile % TILES * COLUMNS + tl.arange(0, COLUMNS)
    word = tile % TILES * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
    wide = tl.arange(0, D)
    one = written_by(output, text, head, heads, i, n, N, wide, WIDTH)
    other = written_by(output, text, head, heads, j, n, N, wide, WIDTH)
    matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
    matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
    # The largest number that is not above the threshold, so that `>` means the same as for the exact one.
    exact = top.to(tl.float64) * THETA
    threshold = exact.to(tl.float32)
    below = (threshold.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    threshold = tl.where(threshold.to(tl.float64) > exact, below, threshold)
    found = packed(matrix > threshold, ROWS, COLUMNS // 32)
    # Padding and the diagonal are 0, which is near the threshold only where that is 0 too. Few tiles have any.
    near = tl.zeros((ROWS,), tl.int32)
    apart = tl.abs(matrix - top * THETA)
    if (tl.min(apart) <= top * NEAR) & (top > 0):
        near = tl.sum((apart <= top * NEAR).to(tl.int32), 1)
    inside = (i[:, None] < N) & (word[None, :] < WORDS)
    of_text = (text * N + i[:, None]) * WORDS + word[None, :]
    is_equal, is_same = tl.load(equal + of_text, inside, 0), tl.load(same + of_text, inside, 0)
    pairs, alike = tl.sum(ones(found), 1), tl.sum(ones(found & is_equal), 1)
    close, both = tl.sum(ones(found & is_same), 1), tl.sum(ones(found & is_equal & is_same), 1)
    first = pairs.to(tl.int64) | (alike.to(tl.int64) << 21) | (near.to(tl.int64) << 42)
    second = close.to(tl.int64) | (both.to(tl.int64) << 32)
    tl.atomic_add(counts + held * 2, tl.sum(first))
    tl.atomic_add(counts + held * 2 + 1, tl.sum(second))
    tl.atomic_add(ends + held * N + i, 2 * pairs - alike, i < N)
    tl.store(bits + (held * N + i[:, None]) * WORDS + word[None, :], found, inside)


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
def add_places(bits, order, parts, places, heads, N, WORDS, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """How often each element was high in the texts of one part: (part, head, i, j)."""
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, j = row * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (i[:, None] < N) & (j[None, :] < N)
    added = tl.zeros((ROWS, COLUMNS), tl.int32)
    for at in range(tl.load(parts + part), tl.load(parts + part + 1)):
        text = tl.load(order + at).to(tl.int64)
        word = tl.load(bits + ((text * heads + head) * N + i[:, None]) * WORDS + j[None, :] // 32, inside, 0)
        added += (word >> (j[None, :] % 32)) & 1
    tl.store(places + ((part * heads + head).to(tl.int64) * N + i[:, None]) * N + j[None, :], added, inside)

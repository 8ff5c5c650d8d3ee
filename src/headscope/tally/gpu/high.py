"""Kernels of high elements: from outputs to bits, 32 to a word, (text, head, i, word of j).

In windows longer than a tile C is computed twice, for its largest element and then for those above the threshold:
cheaper than to keep it. Both times only on the diagonal and above; bits are mirrored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.gpu.attention import rows_of


@triton.jit
def packed(marks, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Marks (row, column) as words of 32 bits, (row, word)."""
    bit = 1 << (tl.arange(0, WORDS * 32) % 32)
    return tl.sum(tl.reshape(tl.where(marks, bit[None, :], 0), (ROWS, WORDS, 32)), 2)


@triton.jit
def written_by(output, text, head, heads, places, n, N, wide, WIDTH: tl.constexpr, WHOLE: tl.constexpr = False):
    """What a head writes for some places of a text, 0 on padding."""
    return rows_of(output + (text * N * heads + head) * WIDTH, places, heads * WIDTH, wide, n, WIDTH, WHOLE)


@triton.jit
def similar(
    output, text, head, heads, i, j, n, N, WIDTH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, WHOLE: tl.constexpr = False,
):  # fmt: skip
    """A tile of C, rows i and columns j, the diagonal as any other element; `WIDE` of the D numbers of a vector at a
    time."""
    matrix = tl.zeros((i.shape[0], j.shape[0]), tl.float32)
    for start in tl.static_range(0, D, WIDE):
        wide = start + tl.arange(0, WIDE)
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH, WHOLE)
        other = written_by(output, text, head, heads, j, n, N, wide, WIDTH, WHOLE)
        matrix = tl.dot(one, tl.trans(other), matrix, input_precision=PRECISION)
    return matrix


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
    top = tl.where(top < float("inf"), top, 0.0)
    return tl.sum((tl.abs(matrix - top * THETA) <= tl.where(top > 0, top * NEAR, -1.0)).to(tl.int32), 1)


@triton.jit
def least_largest(written, PRECISION: tl.constexpr):
    """What the largest similarity is at least: the diagonal's 0, or infinite where what was written is no finite
    number. 0 times it is then no number, and a product costs less than to look at each."""
    nothing = tl.dot(written, tl.zeros((written.shape[1], 16), written.dtype), input_precision=PRECISION)
    return tl.where(tl.max(tl.max((nothing != 0.0).to(tl.int32), 1)) > 0, float("inf"), 0.0)


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
        top = tl.maximum(least_largest(one, PRECISION), tl.max(tl.max(matrix, 1)))
        found = packed(matrix > bound_of(top, THETA), TILE, TILE // 32)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        tl.store(bits + (held * N + i[:, None]) * WORDS + word[None, :], found, inside)
        tl.store(largest + held, top)
        tl.store(near + held, tl.sum(how_many_near(matrix, top, THETA, NEAR)))


@triton.jit
def find_largest(
    output, lengths, largest, heads, N, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The largest similarity of one head in one text, at least the diagonal's 0, from some rows of C; infinite where
    what the head writes is no number."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = N
    if not WHOLE:
        n = tl.load(lengths + text)
    i, wide = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    if tile * ROWS < n:
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH, WHOLE)
        least = least_largest(one, PRECISION)
        for start in tl.static_range(WIDE, D, WIDE):
            more = written_by(output, text, head, heads, i, n, N, start + wide, WIDTH, WHOLE)
            least = tl.maximum(least, least_largest(more, PRECISION))
        most = tl.full((ROWS,), least, tl.float32)
        # Tiles below the diagonal hold nothing that those above do not.
        for column in range(tile * ROWS // COLUMNS, TILES):
            j = column * COLUMNS + tl.arange(0, COLUMNS)
            if WIDE < D:
                matrix = similar(output, text, head, heads, i, j, n, N, WIDTH, D, WIDE, PRECISION, WHOLE)
            else:
                other = written_by(output, text, head, heads, j, n, N, wide, WIDTH, WHOLE)
                matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
            if column * COLUMNS < (tile + 1) * ROWS:
                matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
            most = tl.maximum(most, tl.max(matrix, 1))
        tl.atomic_max(largest + text * heads + head, tl.max(most))


@triton.jit
def find_high(
    output, lengths, largest, bits, near, heads, N, WORDS, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The high elements of some rows of C as bits, from the rows' own tile on, and how many elements are near the
    threshold; `mirror` adds the bits before."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    held = text * heads + head
    n = N
    if not WHOLE:
        n = tl.load(lengths + text)
    top = tl.load(largest + held)
    bound = bound_of(top, THETA)
    i, wide = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    if WIDE == D:
        one = written_by(output, text, head, heads, i, n, N, wide, WIDTH, WHOLE)
    count = tl.zeros((ROWS,), tl.int32)
    for column in range(tile * ROWS // COLUMNS, TILES):
        j, word = column * COLUMNS + tl.arange(0, COLUMNS), column * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
        if WIDE < D:
            matrix = similar(output, text, head, heads, i, j, n, N, WIDTH, D, WIDE, PRECISION, WHOLE)
        else:
            other = written_by(output, text, head, heads, j, n, N, wide, WIDTH, WHOLE)
            matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
        times = 2  # there is the same below the diagonal
        if column * COLUMNS < (tile + 1) * ROWS:
            matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
            times = 1
        count += times * how_many_near(matrix, top, THETA, NEAR)
        found = packed(matrix > bound, ROWS, COLUMNS // 32)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        tl.store(bits + (held * N + i[:, None]) * WORDS + word[None, :], found, inside)
    tl.atomic_add(near + held, tl.sum(count))


@triton.jit
def exchanged(words, row, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """Squares of 32 × 32 bits, rows first, with the quarters of each square of 2 · SHIFT mirrored; MASK are the bits
    of their left halves."""
    other = tl.gather(words, row ^ SHIFT, 0)
    upper = (words & MASK) | ((other & MASK) << SHIFT)
    lower = (words & ~MASK) | ((other >> SHIFT) & MASK)
    return tl.where((row & SHIFT) == 0, upper, lower)


@triton.jit
def mirror(bits, heads, N, WORDS, TILES, ACROSS: tl.constexpr):
    """A tile of one head's bits below the diagonal's tiles, from the one above; tiles are `ACROSS` words wide."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    below, before = tile // TILES, tile % TILES
    if before < below:
        row, square = tl.arange(0, 32)[:, None], tl.arange(0, ACROSS * ACROSS)[None, :]
        from_row, word = (before * ACROSS + square // ACROSS) * 32 + row, below * ACROSS + square % ACROSS
        start = bits + (text * heads + head) * N * WORDS
        words = tl.load(start + from_row * WORDS + word, word < WORDS, 0)
        row = tl.broadcast_to(row, (32, ACROSS * ACROSS))
        words = exchanged(words, row, 16, 0x0000FFFF)
        words = exchanged(words, row, 8, 0x00FF00FF)
        words = exchanged(words, row, 4, 0x0F0F0F0F)
        words = exchanged(words, row, 2, 0x33333333)
        words = exchanged(words, row, 1, 0x55555555)
        # Squares side by side, as they are stored.
        words = tl.trans(tl.reshape(words, (32, ACROSS, ACROSS)), (0, 2, 1))
        one = tl.arange(0, ACROSS)
        to_row = (below * ACROSS + one[None, :, None]) * 32 + tl.arange(0, 32)[:, None, None]
        tl.store(start + to_row * WORDS + before * ACROSS + one[None, None, :], words, to_row < N)

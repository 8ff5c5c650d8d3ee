"""Kernels of high elements: from outputs to bits, 32 to a word, (text, head, i, word of j).

In windows longer than a tile, C is computed twice, for its largest element and then for the elements above the
threshold: that is cheaper than storing it. Both times only on the diagonal and above; bits are mirrored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.triton_backend.attention import load_rows


@triton.jit
def pack_bits(marks, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Pack marks (row, column) into words of 32 bits, (row, word)."""
    bit = 1 << (tl.arange(0, WORDS * 32) % 32)
    return tl.sum(tl.reshape(tl.where(marks, bit[None, :], 0), (ROWS, WORDS, 32)), 2)


@triton.jit
def load_outputs(output, text, head, heads, positions, n, N, dims, WIDTH: tl.constexpr, UNMASKED: tl.constexpr = False):
    """Load the outputs of a head at some positions of a text, 0 on padding."""
    return load_rows(output + (text * N * heads + head) * WIDTH, positions, heads * WIDTH, dims, n, WIDTH, UNMASKED)


@triton.jit
def compute_similarities(
    output, text, head, heads, i, j, n, N, WIDTH: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    PRECISION: tl.constexpr, UNMASKED: tl.constexpr = False,
):  # fmt: skip
    """Compute a tile of C, rows i and columns j, including the diagonal; `STEP` of the D dimensions of a vector at a
    time."""
    matrix = tl.zeros((i.shape[0], j.shape[0]), tl.float32)
    for start in tl.static_range(0, D, STEP):
        dims = start + tl.arange(0, STEP)
        rows = load_outputs(output, text, head, heads, i, n, N, dims, WIDTH, UNMASKED)
        columns = load_outputs(output, text, head, heads, j, n, N, dims, WIDTH, UNMASKED)
        matrix = tl.dot(rows, tl.trans(columns), matrix, input_precision=PRECISION)
    return matrix


@triton.jit
def compute_threshold(largest, THETA: tl.constexpr):
    """Return the largest single-precision number that is not above θ·largest, so that `>` means the same as for the
    exact threshold."""
    exact = largest.to(tl.float64) * THETA
    bound = exact.to(tl.float32)
    below = (bound.to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)
    return tl.where(bound.to(tl.float64) > exact, below, bound)


@triton.jit
def count_near(matrix, largest, THETA: tl.constexpr, NEAR: tl.constexpr):
    """Count the elements of each row that are near the threshold. Padding and the diagonal are 0, which is near the
    threshold only if everything is 0; then none is counted."""
    largest = tl.where(largest < float("inf"), largest, 0.0)
    return tl.sum((tl.abs(matrix - largest * THETA) <= tl.where(largest > 0, largest * NEAR, -1.0)).to(tl.int32), 1)


@triton.jit
def get_initial_largest(vectors, PRECISION: tl.constexpr):
    """Return a lower bound of the largest similarity: the diagonal's 0, or infinity if an output is NaN or infinite. 0
    times such an output is NaN, and a product is cheaper than testing each number."""
    zeros = tl.dot(vectors, tl.zeros((vectors.shape[1], 16), vectors.dtype), input_precision=PRECISION)
    return tl.where(tl.max(tl.max((zeros != 0.0).to(tl.int32), 1)) > 0, float("inf"), 0.0)


@triton.jit
def find_all(
    output, lengths, largest, bits, near, heads, N, WORDS,
    WIDTH: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute `find_largest` and `find_high` at once, for windows of one tile and some heads: C is computed once."""
    text = tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + text)
    i, dims, word = tl.arange(0, TILE), tl.arange(0, D), tl.arange(0, TILE // 32)
    start = tl.program_id(0) * HEADS
    for head in range(start, tl.minimum(start + HEADS, heads)):
        text_head = text * heads + head
        rows = load_outputs(output, text, head, heads, i, n, N, dims, WIDTH)
        matrix = tl.dot(rows, tl.trans(rows), input_precision=PRECISION)
        matrix = tl.where(i[:, None] == i[None, :], 0.0, matrix)
        text_largest = tl.maximum(get_initial_largest(rows, PRECISION), tl.max(tl.max(matrix, 1)))
        words = pack_bits(matrix > compute_threshold(text_largest, THETA), TILE, TILE // 32)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        tl.store(bits + (text_head * N + i[:, None]) * WORDS + word[None, :], words, inside)
        tl.store(largest + text_head, text_largest)
        tl.store(near + text_head, tl.sum(count_near(matrix, text_largest, THETA, NEAR)))


@triton.jit
def find_largest(
    output, lengths, largest, heads, N, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Find the largest similarity of one head in one text, at least the diagonal's 0, from some rows of C; infinity if
    an output is NaN or infinite."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = N
    if not UNMASKED:
        n = tl.load(lengths + text)
    i, dims = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)
    if tile * ROWS < n:
        rows = load_outputs(output, text, head, heads, i, n, N, dims, WIDTH, UNMASKED)
        least = get_initial_largest(rows, PRECISION)
        for start in tl.static_range(STEP, D, STEP):
            more_dims = load_outputs(output, text, head, heads, i, n, N, start + dims, WIDTH, UNMASKED)
            least = tl.maximum(least, get_initial_largest(more_dims, PRECISION))
        row_max = tl.full((ROWS,), least, tl.float32)
        # C is symmetric: tiles below the diagonal can be skipped.
        for column in range(tile * ROWS // COLUMNS, TILES):
            j = column * COLUMNS + tl.arange(0, COLUMNS)
            if STEP < D:
                matrix = compute_similarities(
                    output, text, head, heads, i, j, n, N, WIDTH, D, STEP, PRECISION, UNMASKED
                )
            else:
                columns = load_outputs(output, text, head, heads, j, n, N, dims, WIDTH, UNMASKED)
                matrix = tl.dot(rows, tl.trans(columns), input_precision=PRECISION)
            if column * COLUMNS < (tile + 1) * ROWS:
                matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
            row_max = tl.maximum(row_max, tl.max(matrix, 1))
        tl.atomic_max(largest + text * heads + head, tl.max(row_max))


@triton.jit
def find_high(
    output, lengths, largest, bits, near, heads, N, WORDS, TILES,
    WIDTH: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    THETA: tl.constexpr, NEAR: tl.constexpr, PRECISION: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Find the high elements of some rows of C as bits, from the rows' own tile on, and count the elements near the
    threshold; `transpose_bits` adds the bits before."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    text_head = text * heads + head
    n = N
    if not UNMASKED:
        n = tl.load(lengths + text)
    text_largest = tl.load(largest + text_head)
    threshold = compute_threshold(text_largest, THETA)
    i, dims = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)
    if STEP == D:
        rows = load_outputs(output, text, head, heads, i, n, N, dims, WIDTH, UNMASKED)
    count = tl.zeros((ROWS,), tl.int32)
    for column in range(tile * ROWS // COLUMNS, TILES):
        j, word = column * COLUMNS + tl.arange(0, COLUMNS), column * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
        if STEP < D:
            matrix = compute_similarities(output, text, head, heads, i, j, n, N, WIDTH, D, STEP, PRECISION, UNMASKED)
        else:
            columns = load_outputs(output, text, head, heads, j, n, N, dims, WIDTH, UNMASKED)
            matrix = tl.dot(rows, tl.trans(columns), input_precision=PRECISION)
        weight = 2  # the tile and its mirror image below the diagonal
        if column * COLUMNS < (tile + 1) * ROWS:
            matrix = tl.where(i[:, None] == j[None, :], 0.0, matrix)
            weight = 1
        count += weight * count_near(matrix, text_largest, THETA, NEAR)
        words = pack_bits(matrix > threshold, ROWS, COLUMNS // 32)
        inside = (i[:, None] < N) & (word[None, :] < WORDS)
        tl.store(bits + (text_head * N + i[:, None]) * WORDS + word[None, :], words, inside)
    tl.atomic_add(near + text_head, tl.sum(count))


@triton.jit
def swap_quarters(words, row, SHIFT: tl.constexpr, MASK: tl.constexpr):
    """Transpose the quarters of each square of 2 · SHIFT bits in squares of 32 × 32 bits, rows first; MASK holds the
    bits of their left halves."""
    other = tl.gather(words, row ^ SHIFT, 0)
    upper = (words & MASK) | ((other & MASK) << SHIFT)
    lower = (words & ~MASK) | ((other >> SHIFT) & MASK)
    return tl.where((row & SHIFT) == 0, upper, lower)


@triton.jit
def transpose_bits(bits, heads, N, WORDS, TILES, ACROSS: tl.constexpr):
    """Fill a tile of one head's bits below the diagonal's tiles from its mirror image above; tiles are `ACROSS` words
    wide."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    below, before = tile // TILES, tile % TILES
    if before < below:
        row, square = tl.arange(0, 32)[:, None], tl.arange(0, ACROSS * ACROSS)[None, :]
        from_row, word = (before * ACROSS + square // ACROSS) * 32 + row, below * ACROSS + square % ACROSS
        start = bits + (text * heads + head) * N * WORDS
        words = tl.load(start + from_row * WORDS + word, word < WORDS, 0)
        row = tl.broadcast_to(row, (32, ACROSS * ACROSS))
        words = swap_quarters(words, row, 16, 0x0000FFFF)
        words = swap_quarters(words, row, 8, 0x00FF00FF)
        words = swap_quarters(words, row, 4, 0x0F0F0F0F)
        words = swap_quarters(words, row, 2, 0x33333333)
        words = swap_quarters(words, row, 1, 0x55555555)
        # Order the squares as they are stored, side by side.
        words = tl.trans(tl.reshape(words, (32, ACROSS, ACROSS)), (0, 2, 1))
        square_index = tl.arange(0, ACROSS)
        to_row = (below * ACROSS + square_index[None, :, None]) * 32 + tl.arange(0, 32)[:, None, None]
        tl.store(start + to_row * WORDS + before * ACROSS + square_index[None, None, :], words, to_row < N)

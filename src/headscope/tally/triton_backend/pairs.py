"""Kernels of high pairs: from outputs to bits, from bits to counts, and histograms of the sample.

Kernels of pairs: from the bits of high elements to counts.

Bits are symmetric, so counts of bits are twice the counts of pairs.

Kernels of high elements: from outputs to bits, 32 to a word, (text, head, i, word of j).

In windows longer than a tile, C is computed twice, for its largest element and then for the elements above the
threshold: that is cheaper than storing it. Both times only on the diagonal and above; bits are mirrored.

Kernel of the sample: histograms of normalized similarities and their sum over heads.
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


@triton.jit
def count_values(
    output, largest, lengths, layers, histogram, edges, similarity_sums, texts, heads,
    N, WIDTH: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    BINS: tl.constexpr, NEAR: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a tile of every head's C/max(C), i < j, of one text in one layer: counts of values by bin (layer, text, head,
    256), of values near a bin edge (layer, text, head), and the sum over heads, added to (layer, i, j)."""
    layer_text = tl.program_id(0).to(tl.int64)
    layer, text = layer_text // texts, layer_text % texts
    tile = tl.program_id(1)
    n = tl.load(lengths + text)
    i = tile // TILES * TILE + tl.arange(0, TILE)
    j = tile % TILES * TILE + tl.arange(0, TILE)
    bins = tl.arange(0, 256)
    if tile // TILES > tile % TILES:
        return
    upper = (i[:, None] < j[None, :]) & (j[None, :] < n)
    head_sum = tl.zeros((TILE, TILE), tl.float32)
    for head in range(0, heads):
        text_largest = tl.load(largest + layer_text * heads + head)
        counted = upper & (tl.zeros((TILE, TILE), tl.float32) + text_largest > 0)
        matrix = compute_similarities(output, layer_text, head, heads, i, j, n, N, WIDTH, D, STEP, PRECISION)
        normalized = matrix / tl.where(text_largest > 0, text_largest, 1.0)
        head_sum += tl.where(counted, normalized, 0.0)
        position = (normalized + 1) * (BINS / 2)
        floor = tl.floor(position)
        edge = tl.floor(position + 0.5)
        near = counted & (tl.abs(position - edge) <= NEAR * (BINS / 2)) & (edge > 0) & (edge < BINS)
        tl.atomic_add(edges + layer_text * heads + head, tl.sum(near.to(tl.int32)))
        # Values that are not counted go to an unused bin.
        index = tl.where(counted, tl.minimum(tl.maximum(floor, 0.0), BINS - 1.0).to(tl.int32), 255)
        counts = tl.histogram(tl.reshape(index, (TILE * TILE,)), 256)
        tl.atomic_add(histogram + (layer_text * heads + head) * 256 + bins, counts)
    if MAPS:
        tl.atomic_add(similarity_sums + (layer * N + i[:, None]) * N + j[None, :], head_sum.to(tl.float64), upper)

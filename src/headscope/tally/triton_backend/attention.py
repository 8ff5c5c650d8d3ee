"""Attention kernels: the outputs of plain attention, and the sums of maps over texts.

Scores are in powers of two: `scaling` is the model's times log₂e, and `normals` hold log₂ of each row's sum. A program
sums the maps of one head over the texts of one part in its registers, so that no map of a single text is ever written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(start, rows, stride, columns, n, WIDTH: tl.constexpr, UNMASKED: tl.constexpr = False):
    """Load rows of a matrix, 0 from row n on. `UNMASKED`: all rows and columns of the tile exist."""
    if UNMASKED:
        return tl.load(start + rows[:, None] * stride + columns[None, :])
    return tl.load(
        start + rows[:, None] * stride + columns[None, :], (rows[:, None] < n) & (columns[None, :] < WIDTH), 0.0
    )


@triton.jit
def load_next_text(order, index, last):
    """Load the number of the next text of a part that ends before `last`, or of its last text again. Called one text
    early, because the loads of a text depend on it."""
    return tl.load(order + tl.minimum(index + 1, last - 1))


@triton.jit
def store_received(pointers, keys, share, rounded, weights, N):
    """Store what each key receives from some rows of a map, Σ weight · share; weights are 0 on padding.

    Sums across rows are slow. In half precision they are a product instead: of weights in three parts, together as
    exact as single precision, with shares as they were rounded for the product with the values.
    """
    if rounded.dtype == tl.float32:
        received = tl.sum(share * weights[:, None], 0)
    else:
        high = weights.to(rounded.dtype)
        middle = (weights - high.to(tl.float32)).to(rounded.dtype)
        low = (weights - high.to(tl.float32) - middle.to(tl.float32)).to(rounded.dtype)
        line = tl.arange(0, 16)[:, None]
        parts = tl.where(line == 0, high[None, :], tl.where(line == 1, middle[None, :], low[None, :]))
        received = tl.sum(tl.dot(tl.where(line < 3, parts, 0.0).to(rounded.dtype), rounded), 0)
    tl.store(pointers + keys, received, keys < N)


@triton.jit
def attend_short(
    query, key, value, output, normals, lengths, order, parts, scaling,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, heads,
    sums, received,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Compute `attend` and `add_maps` at once, for windows whose keys fit into one tile: some rows of one head, for all
    texts of one part. `UNMASKED`: no text has padding, and tiles hold nothing else."""
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles = tl.num_programs(0)
    rows, keys = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS)
    dims, value_dims = tl.arange(0, D), tl.arange(0, DV)
    key_head = head // GROUP
    map_sum = tl.zeros((ROWS, KEYS), tl.float32)
    first, last = tl.load(parts + part), tl.load(parts + part + 1)
    next_text = tl.load(order + first)
    for index in range(first, last):
        text = next_text.to(tl.int64)
        next_text = load_next_text(order, index, last)
        n = N
        if not UNMASKED:
            n = tl.load(lengths + text)
        q = load_rows(query + text * qb + head * qh, rows, qn, dims, n, WIDTH, UNMASKED)
        k = load_rows(key + text * kb + key_head * kh, keys, kn, dims, n, WIDTH, UNMASKED)
        v = load_rows(value + text * vb + key_head * vh, keys, vn, value_dims, n, VALUE_WIDTH, UNMASKED)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAUSAL:
            scores = tl.where((keys[None, :] < n) & (keys[None, :] <= rows[:, None]), scores, float("-inf"))
        elif not UNMASKED:  # noqa: SIM102
            if n < KEYS:
                scores = tl.where(keys[None, :] < n, scores, float("-inf"))
        row_max = tl.max(scores, 1) * scaling
        exponentials = tl.exp2(scores * scaling - row_max[:, None])
        total = tl.sum(exponentials, 1)
        inverse_totals = 1.0 / total
        rounded = exponentials.to(v.dtype)
        values = tl.dot(rounded, v, input_precision=PRECISION) * inverse_totals[:, None]
        pointers = output + ((text * N + rows[:, None]) * heads + head) * VALUE_WIDTH + value_dims[None, :]
        if UNMASKED:
            tl.store(pointers, values.to(output.dtype.element_ty))
        else:
            inside = (rows[:, None] < N) & (value_dims[None, :] < VALUE_WIDTH)
            tl.store(pointers, values.to(output.dtype.element_ty), inside)
            inverse_totals = tl.where(rows < n, inverse_totals, 0.0)
        tl.store(normals + (text * heads + head) * N + rows, row_max + tl.log2(total), rows < N)
        map_sum += exponentials * inverse_totals[:, None]
        store_received(
            received + ((text * heads + head) * tiles + tile) * N, keys, exponentials, rounded, inverse_totals, N
        )
    pointers = sums + ((part * heads + head).to(tl.int64) * N + rows[:, None]) * N + keys[None, :]
    tl.store(pointers, map_sum, (rows[:, None] < N) & (keys[None, :] < N))


@triton.jit
def attend(
    query, key, value, output, normals, lengths, scaling,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, heads,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Compute softmax(Q·Kᵀ)·V for some rows of one head of one text: outputs (text, position, head, width) and
    normals."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = N
    if not UNMASKED:
        n = tl.load(lengths + text)
    rows = tile * ROWS + tl.arange(0, ROWS)
    dims, value_dims = tl.arange(0, D), tl.arange(0, DV)
    q = load_rows(query + text * qb + head * qh, rows, qn, dims, n, WIDTH, UNMASKED)
    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, DV), tl.float32)
    key_head = head // GROUP
    last = n
    if CAUSAL:
        last = tl.minimum(n, (tile + 1) * ROWS)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = load_rows(key + text * kb + key_head * kh, keys, kn, dims, n, WIDTH, UNMASKED)
        v = load_rows(value + text * vb + key_head * vh, keys, vn, value_dims, n, VALUE_WIDTH, UNMASKED)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAUSAL:
            scores = tl.where((keys[None, :] < n) & (keys[None, :] <= rows[:, None]), scores, float("-inf"))
        elif not UNMASKED:
            scores = tl.where(keys[None, :] < n, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scaling)
        exponentials = tl.exp2(scores * scaling - new_max[:, None])
        decay = tl.exp2(row_max - new_max)
        total = total * decay + tl.sum(exponentials, 1)
        summed = summed * decay[:, None] + tl.dot(exponentials.to(v.dtype), v, input_precision=PRECISION)
        row_max = new_max
    pointers = output + ((text * N + rows[:, None]) * heads + head) * VALUE_WIDTH + value_dims[None, :]
    values = summed * (1.0 / total)[:, None]
    tl.store(pointers, values.to(output.dtype.element_ty), (rows[:, None] < N) & (value_dims[None, :] < VALUE_WIDTH))
    tl.store(normals + (text * heads + head) * N + rows, row_max + tl.log2(total), rows < N)


@triton.jit
def add_tile_diagonals(map_sum, pointers, offset, N, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Add the sums over the diagonals of a tile (key, query) to the sums by key − query; `offset` is key − query of its
    first element. The tile has no more keys than queries."""
    key, query = tl.arange(0, KEYS)[:, None], tl.arange(0, ROWS)
    # Rotate the queries of each key so that a diagonal becomes a column; what leaves at the end enters at the start.
    index = key + query[None, :]
    shifted = tl.gather(map_sum, index % ROWS, 1)
    offsets = offset - query
    inside = tl.sum(tl.where(index < ROWS, shifted, 0.0), 0)
    tl.atomic_add(pointers + offsets, inside.to(tl.float64), (offsets > -N) & (offsets < N))
    offsets += ROWS
    wrapped = tl.sum(tl.where(index < ROWS, 0.0, shifted), 0)
    tl.atomic_add(pointers + offsets, wrapped.to(tl.float64), (offsets > -N) & (offsets < N))


@triton.jit
def add_maps(
    query, key, normals, maps, lengths, order, parts, part_blocks, scaling,
    qb, qh, qn, kb, kh, kn, heads,
    sums, diagonals, stride, received,
    N, TILES, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, PRECOMPUTED: tl.constexpr,
    UNMASKED: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """Sum the maps of one head over the texts of one part, one tile of them. With `MAPS`, store the sums (part, head,
    query, key); otherwise add them by diagonal to the part's block. Also store what keys receive from the rows of a
    tile: (text, head, tile of rows, key).

    Maps are computed again from queries, keys and normals; or, `PRECOMPUTED`, loaded: (text, head, query, key). Tiles
    are transposed, (key, query): what a key receives is then a sum along a row of the tile, which is cheaper.
    """
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, column = tile % TILES * ROWS, tile // TILES * KEYS
    rows, keys = row + tl.arange(0, ROWS), column + tl.arange(0, KEYS)
    dims = tl.arange(0, D)
    map_sum = tl.zeros((KEYS, ROWS), tl.float32)
    first, last = tl.load(parts + part), tl.load(parts + part + 1)
    next_text = tl.load(order + first)
    for index in range(first, last):
        text = next_text.to(tl.int64)
        next_text = load_next_text(order, index, last)
        text_head = text * heads + head
        n = N
        if not UNMASKED:
            n = tl.load(lengths + text)
        valid = (keys[:, None] < n) & (rows[None, :] < n)
        if PRECOMPUTED:
            share = tl.load(maps + (text_head * N + rows[None, :]) * N + keys[:, None], valid, 0.0).to(tl.float32)
        else:
            q = load_rows(query + text * qb + head * qh, rows, qn, dims, n, WIDTH, UNMASKED)
            k = load_rows(key + text * kb + head // GROUP * kh, keys, kn, dims, n, WIDTH, UNMASKED)
            normal = tl.load(normals + text_head * N + rows, rows < n, 0.0)
            share = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scaling - normal[None, :])
            if CAUSAL:
                share = tl.where(valid & (keys[:, None] <= rows[None, :]), share, 0.0)
            elif not UNMASKED:  # noqa: SIM102
                if (row + ROWS > n) | (column + KEYS > n):
                    share = tl.where(valid, share, 0.0)
        map_sum += share
        tl.store(received + (text_head * TILES + tile % TILES) * N + keys, tl.sum(share, 1), keys < N)
    if MAPS:
        pointers = sums + ((part * heads + head).to(tl.int64) * N + rows[None, :]) * N + keys[:, None]
        tl.store(pointers, map_sum, (rows[None, :] < N) & (keys[:, None] < N))
    else:
        pointers = diagonals + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + N - 1
        add_tile_diagonals(map_sum, pointers, column - row, N, ROWS, KEYS)


@triton.jit
def add_received(parts, received, PARTS, N, KEYS: tl.constexpr):
    """Sum (text, part, key) over parts, in double precision: (text, key)."""
    text, keys = tl.program_id(1).to(tl.int64), tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    total = tl.zeros((KEYS,), tl.float64)
    for part in range(0, PARTS):
        total += tl.load(parts + (text * PARTS + part) * N + keys, keys < N, 0.0).to(tl.float64)
    tl.store(received + text * N + keys, total, keys < N)


@triton.jit
def add_near_attention(
    query, key, normals, maps, lengths, receiver_keys, near_attention, scaling,
    qb, qh, qn, kb, kh, kn, heads,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    PRECOMPUTED: tl.constexpr,
):  # fmt: skip
    """Add over heads what the receiver keys of a text receive from themselves and from their neighbours: (text, 2).

    `receiver_keys` (text, index) are their positions, −1 after the last one.
    """
    head, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + text)
    dims = tl.arange(0, D)
    neighbor = tl.zeros((KEYS,), tl.float32)
    itself = tl.zeros((KEYS,), tl.float32)
    start = 0
    more = True
    while more:
        index = start + tl.arange(0, KEYS)
        keys = tl.load(receiver_keys + text * N + index, index < N, -1)
        k = tl.load(
            key + text * kb + head // GROUP * kh + keys[:, None] * kn + dims[None, :],
            (keys[:, None] >= 0) & (dims[None, :] < WIDTH), 0.0,
        ).to(tl.float32)  # fmt: skip
        for step in tl.static_range(-1, 2):
            rows = keys + step
            valid = (keys >= 0) & (rows >= 0) & (rows < n)
            if PRECOMPUTED:
                share = tl.load(maps + ((text * heads + head) * N + rows) * N + keys, valid, 0.0).to(tl.float32)
            else:
                if CAUSAL:
                    valid = valid & (rows >= keys)
                q = tl.load(
                    query + text * qb + head * qh + rows[:, None] * qn + dims[None, :],
                    valid[:, None] & (dims[None, :] < WIDTH), 0.0,
                ).to(tl.float32)  # fmt: skip
                normal = tl.load(normals + (text * heads + head) * N + rows, valid, 0.0)
                share = tl.where(valid, tl.exp2(tl.sum(q * k, 1) * scaling - normal), 0.0)
            if step == 0:
                itself += share
            else:
                neighbor += share
        start += KEYS
        more = (tl.min(keys) >= 0) & (start < N)
    tl.atomic_add(near_attention + text * 2, tl.sum(itself).to(tl.float64))
    tl.atomic_add(near_attention + text * 2 + 1, tl.sum(neighbor).to(tl.float64))


@triton.jit
def add_diagonals(sums, part_blocks, diagonals, heads, stride, N, ROWS: tl.constexpr, OFFSETS: tl.constexpr):
    """Add the sums over the diagonals of maps (part, head, N, N) to the part's block: (block, head, 2N − 1), by column
    − row from −(N−1) on."""
    part, head = tl.program_id(0), tl.program_id(1)
    offsets = tl.program_id(2) * OFFSETS + tl.arange(0, OFFSETS)
    start = sums + (part * heads + head).to(tl.int64) * N * N
    total = tl.zeros((OFFSETS,), diagonals.dtype.element_ty)
    for first in range(0, N, ROWS):
        rows = first + tl.arange(0, ROWS)
        keys = rows[:, None] + offsets[None, :] - (N - 1)
        inside = (rows[:, None] < N) & (keys >= 0) & (keys < N)
        values = tl.load(start + rows[:, None] * N + keys, inside, 0)
        total += tl.sum(values.to(diagonals.dtype.element_ty), 0)
    pointers = diagonals + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + offsets
    tl.atomic_add(pointers, total, offsets < 2 * N - 1)


@triton.jit
def fold(sums, folded, parts, COUNT, SIZE: tl.constexpr):
    """Sum over parts, in the wider type of the result: (part, COUNT) to (COUNT)."""
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    total = tl.zeros((SIZE,), folded.dtype.element_ty)
    for part in range(0, parts):
        total += tl.load(sums + part * COUNT + index, index < COUNT, 0).to(folded.dtype.element_ty)
    tl.store(folded + index, total, index < COUNT)

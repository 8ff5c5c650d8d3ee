"""Kernels of attention: the outputs of plain attention, and what the maps of many texts add up to.

Scores are in powers of two: `scaling` is the model's times log₂e, and `normals` hold log₂ of each row's sum. A program
adds up the maps of one head over the texts of one part, in its registers: no map of a single text is ever written.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(start, places, stride, wide, n, WIDTH: tl.constexpr, WHOLE: tl.constexpr = False):
    """Some rows of a matrix, 0 from row n on; `WHOLE`: all of them are there, and as wide as they are asked for."""
    if WHOLE:
        return tl.load(start + places[:, None] * stride + wide[None, :])
    return tl.load(
        start + places[:, None] * stride + wide[None, :], (places[:, None] < n) & (wide[None, :] < WIDTH), 0.0
    )


@triton.jit
def text_after(order, at, last):
    """The next text of a part that ends before `last`, or its last one again. Asked for a text earlier than it is
    needed: what is read of it depends on it."""
    return tl.load(order + tl.minimum(at + 1, last - 1))


@triton.jit
def receive(place, keys, share, rounded, weights, N):
    """What each key gets from some rows of a map, Σ weight · share; weights are 0 on padding.

    Sums across rows are slow. In half precision they are a product: of weights in three parts, together as exact as
    single precision, with shares as they were rounded for the product with the values.
    """
    if rounded.dtype == tl.float32:
        got = tl.sum(share * weights[:, None], 0)
    else:
        high = weights.to(rounded.dtype)
        middle = (weights - high.to(tl.float32)).to(rounded.dtype)
        low = (weights - high.to(tl.float32) - middle.to(tl.float32)).to(rounded.dtype)
        line = tl.arange(0, 16)[:, None]
        parts = tl.where(line == 0, high[None, :], tl.where(line == 1, middle[None, :], low[None, :]))
        got = tl.sum(tl.dot(tl.where(line < 3, parts, 0.0).to(rounded.dtype), rounded), 0)
    tl.store(place + keys, got, keys < N)


@triton.jit
def attend_short(
    query, key, value, output, normals, lengths, order, parts, scaling,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, heads,
    sums, received,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """What `attend` and `add_maps` do, at once, for windows whose keys fit into one tile: some rows of one head, for
    all texts of one part. `WHOLE`: no text has padding, and tiles hold nothing else."""
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles = tl.num_programs(0)
    rows, keys = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS)
    wide, narrow = tl.arange(0, D), tl.arange(0, DV)
    own = head // GROUP
    added = tl.zeros((ROWS, KEYS), tl.float32)
    first, last = tl.load(parts + part), tl.load(parts + part + 1)
    following = tl.load(order + first)
    for at in range(first, last):
        text = following.to(tl.int64)
        following = text_after(order, at, last)
        n = N
        if not WHOLE:
            n = tl.load(lengths + text)
        q = rows_of(query + text * qb + head * qh, rows, qn, wide, n, WIDTH, WHOLE)
        k = rows_of(key + text * kb + own * kh, keys, kn, wide, n, WIDTH, WHOLE)
        v = rows_of(value + text * vb + own * vh, keys, vn, narrow, n, VALUE_WIDTH, WHOLE)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAUSAL:
            scores = tl.where((keys[None, :] < n) & (keys[None, :] <= rows[:, None]), scores, float("-inf"))
        elif not WHOLE:  # noqa: SIM102
            if n < KEYS:
                scores = tl.where(keys[None, :] < n, scores, float("-inf"))
        highest = tl.max(scores, 1) * scaling
        share = tl.exp2(scores * scaling - highest[:, None])
        total = tl.sum(share, 1)
        weights = 1.0 / total
        rounded = share.to(v.dtype)
        written = tl.dot(rounded, v, input_precision=PRECISION) * weights[:, None]
        place = output + ((text * N + rows[:, None]) * heads + head) * VALUE_WIDTH + narrow[None, :]
        if WHOLE:
            tl.store(place, written.to(output.dtype.element_ty))
        else:
            inside = (rows[:, None] < N) & (narrow[None, :] < VALUE_WIDTH)
            tl.store(place, written.to(output.dtype.element_ty), inside)
            weights = tl.where(rows < n, weights, 0.0)
        tl.store(normals + (text * heads + head) * N + rows, highest + tl.log2(total), rows < N)
        added += share * weights[:, None]
        receive(received + ((text * heads + head) * tiles + tile) * N, keys, share, rounded, weights, N)
    place = sums + ((part * heads + head).to(tl.int64) * N + rows[:, None]) * N + keys[None, :]
    tl.store(place, added, (rows[:, None] < N) & (keys[None, :] < N))


@triton.jit
def attend(
    query, key, value, output, normals, lengths, scaling,
    qb, qh, qn, kb, kh, kn, vb, vh, vn, heads,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """softmax(Q·Kᵀ)·V for some rows of one head of one text: outputs (text, place, head, width) and normals."""
    tile, head, text = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    n = N
    if not WHOLE:
        n = tl.load(lengths + text)
    rows = tile * ROWS + tl.arange(0, ROWS)
    wide, narrow = tl.arange(0, D), tl.arange(0, DV)
    q = rows_of(query + text * qb + head * qh, rows, qn, wide, n, WIDTH, WHOLE)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, DV), tl.float32)
    own = head // GROUP
    last = n
    if CAUSAL:
        last = tl.minimum(n, (tile + 1) * ROWS)
    for start in range(0, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        k = rows_of(key + text * kb + own * kh, keys, kn, wide, n, WIDTH, WHOLE)
        v = rows_of(value + text * vb + own * vh, keys, vn, narrow, n, VALUE_WIDTH, WHOLE)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if CAUSAL:
            scores = tl.where((keys[None, :] < n) & (keys[None, :] <= rows[:, None]), scores, float("-inf"))
        elif not WHOLE:
            scores = tl.where(keys[None, :] < n, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1) * scaling)
        share = tl.exp2(scores * scaling - higher[:, None])
        kept = tl.exp2(most - higher)
        total = total * kept + tl.sum(share, 1)
        summed = summed * kept[:, None] + tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
        most = higher
    place = output + ((text * N + rows[:, None]) * heads + head) * VALUE_WIDTH + narrow[None, :]
    written = summed * (1.0 / total)[:, None]
    tl.store(place, written.to(output.dtype.element_ty), (rows[:, None] < N) & (narrow[None, :] < VALUE_WIDTH))
    tl.store(normals + (text * heads + head) * N + rows, most + tl.log2(total), rows < N)


@triton.jit
def by_diagonal(added, place, offset, N, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Add a tile (key, query) up by diagonal, to the places of key − query; `offset` is that of its first element. It
    has no more keys than queries."""
    key, query = tl.arange(0, KEYS)[:, None], tl.arange(0, ROWS)
    # Key by key the queries are moved so that a diagonal becomes a column; what leaves at the end enters at the start.
    at = key + query[None, :]
    moved = tl.gather(added, at % ROWS, 1)
    apart = offset - query
    stayed = tl.sum(tl.where(at < ROWS, moved, 0.0), 0)
    tl.atomic_add(place + apart, stayed.to(tl.float64), (apart > -N) & (apart < N))
    apart += ROWS
    entered = tl.sum(tl.where(at < ROWS, 0.0, moved), 0)
    tl.atomic_add(place + apart, entered.to(tl.float64), (apart > -N) & (apart < N))


@triton.jit
def add_maps(
    query, key, normals, maps, lengths, order, parts, part_blocks, scaling,
    qb, qh, qn, kb, kh, kn, heads,
    sums, diagonals, stride, received,
    N, TILES, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr, GIVEN: tl.constexpr,
    WHOLE: tl.constexpr, MAPS: tl.constexpr,
):  # fmt: skip
    """Add up the maps of one head over the texts of one part, a tile of them: with `MAPS`, sums (part, head, query,
    key); else by diagonal, added to the part's block. And what keys receive from a tile's rows: (text, head, tile of
    rows, key).

    Maps are computed again from queries, keys and normals; or, `GIVEN`, are there already, (text, head, query, key).
    Tiles lie on their side, (key, query): what a key receives is then the sum of a line, which is the cheaper one.
    """
    tile, part, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, column = tile % TILES * ROWS, tile // TILES * KEYS
    rows, keys = row + tl.arange(0, ROWS), column + tl.arange(0, KEYS)
    wide = tl.arange(0, D)
    added = tl.zeros((KEYS, ROWS), tl.float32)
    first, last = tl.load(parts + part), tl.load(parts + part + 1)
    following = tl.load(order + first)
    for at in range(first, last):
        text = following.to(tl.int64)
        following = text_after(order, at, last)
        held = text * heads + head
        n = N
        if not WHOLE:
            n = tl.load(lengths + text)
        valid = (keys[:, None] < n) & (rows[None, :] < n)
        if GIVEN:
            share = tl.load(maps + (held * N + rows[None, :]) * N + keys[:, None], valid, 0.0).to(tl.float32)
        else:
            q = rows_of(query + text * qb + head * qh, rows, qn, wide, n, WIDTH, WHOLE)
            k = rows_of(key + text * kb + head // GROUP * kh, keys, kn, wide, n, WIDTH, WHOLE)
            normal = tl.load(normals + held * N + rows, rows < n, 0.0)
            share = tl.exp2(tl.dot(k, tl.trans(q), input_precision=PRECISION) * scaling - normal[None, :])
            if CAUSAL:
                share = tl.where(valid & (keys[:, None] <= rows[None, :]), share, 0.0)
            elif not WHOLE:  # noqa: SIM102
                if (row + ROWS > n) | (column + KEYS > n):
                    share = tl.where(valid, share, 0.0)
        added += share
        tl.store(received + (held * TILES + tile % TILES) * N + keys, tl.sum(share, 1), keys < N)
    if MAPS:
        place = sums + ((part * heads + head).to(tl.int64) * N + rows[None, :]) * N + keys[:, None]
        tl.store(place, added, (rows[None, :] < N) & (keys[:, None] < N))
    else:
        place = diagonals + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + N - 1
        by_diagonal(added, place, column - row, N, ROWS, KEYS)


@triton.jit
def add_received(parts, received, PARTS, N, KEYS: tl.constexpr):
    """Add up (text, part, key) over parts, in double precision: (text, key)."""
    text, keys = tl.program_id(1).to(tl.int64), tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    added = tl.zeros((KEYS,), tl.float64)
    for part in range(0, PARTS):
        added += tl.load(parts + (text * PARTS + part) * N + keys, keys < N, 0.0).to(tl.float64)
    tl.store(received + text * N + keys, added, keys < N)


@triton.jit
def look_beside(
    query, key, normals, maps, lengths, marked, beside, scaling,
    qb, qh, qn, kb, kh, kn, heads,
    N, GROUP: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    GIVEN: tl.constexpr,
):  # fmt: skip
    """What the marked keys of a text get from themselves and from their neighbours, added over heads: (text, 2).

    `marked` (text, place) are the places of such keys, −1 after the last of them.
    """
    head, text = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = tl.load(lengths + text)
    wide = tl.arange(0, D)
    neighbour = tl.zeros((KEYS,), tl.float32)
    itself = tl.zeros((KEYS,), tl.float32)
    start = 0
    more = True
    while more:
        at = start + tl.arange(0, KEYS)
        keys = tl.load(marked + text * N + at, at < N, -1)
        k = tl.load(
            key + text * kb + head // GROUP * kh + keys[:, None] * kn + wide[None, :],
            (keys[:, None] >= 0) & (wide[None, :] < WIDTH), 0.0,
        ).to(tl.float32)  # fmt: skip
        for step in tl.static_range(-1, 2):
            rows = keys + step
            there = (keys >= 0) & (rows >= 0) & (rows < n)
            if GIVEN:
                share = tl.load(maps + ((text * heads + head) * N + rows) * N + keys, there, 0.0).to(tl.float32)
            else:
                if CAUSAL:
                    there = there & (rows >= keys)
                q = tl.load(
                    query + text * qb + head * qh + rows[:, None] * qn + wide[None, :],
                    there[:, None] & (wide[None, :] < WIDTH), 0.0,
                ).to(tl.float32)  # fmt: skip
                normal = tl.load(normals + (text * heads + head) * N + rows, there, 0.0)
                share = tl.where(there, tl.exp2(tl.sum(q * k, 1) * scaling - normal), 0.0)
            if step == 0:
                itself += share
            else:
                neighbour += share
        start += KEYS
        more = (tl.min(keys) >= 0) & (start < N)
    tl.atomic_add(beside + text * 2, tl.sum(itself).to(tl.float64))
    tl.atomic_add(beside + text * 2 + 1, tl.sum(neighbour).to(tl.float64))


@triton.jit
def add_diagonals(sums, part_blocks, diagonals, heads, stride, N, ROWS: tl.constexpr, OFFSETS: tl.constexpr):
    """Add the sums over the diagonals of maps (part, head, N, N) to the part's block: (block, head, 2N − 1), by
    column − row from −(N−1) on."""
    part, head = tl.program_id(0), tl.program_id(1)
    offsets = tl.program_id(2) * OFFSETS + tl.arange(0, OFFSETS)
    start = sums + (part * heads + head).to(tl.int64) * N * N
    added = tl.zeros((OFFSETS,), diagonals.dtype.element_ty)
    for first in range(0, N, ROWS):
        rows = first + tl.arange(0, ROWS)
        keys = rows[:, None] + offsets[None, :] - (N - 1)
        inside = (rows[:, None] < N) & (keys >= 0) & (keys < N)
        values = tl.load(start + rows[:, None] * N + keys, inside, 0)
        added += tl.sum(values.to(diagonals.dtype.element_ty), 0)
    place = diagonals + tl.load(part_blocks + part) * stride + head * (2 * N - 1) + offsets
    tl.atomic_add(place, added, offsets < 2 * N - 1)


@triton.jit
def fold(sums, folded, parts, COUNT, SIZE: tl.constexpr):
    """Add up over parts: (part, COUNT) to (COUNT), in the wide type of the latter."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    added = tl.zeros((SIZE,), folded.dtype.element_ty)
    for part in range(0, parts):
        added += tl.load(sums + part * COUNT + at, at < COUNT, 0).to(folded.dtype.element_ty)
    tl.store(folded + at, added, at < COUNT)

"""Kernels of the sample: histograms of normalized similarities and their sum over heads; signal-to-noise sums."""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.triton_backend.high import compute_similarities, load_outputs


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


@triton.jit
def add_signal(
    output, mean, largest, lengths, labels, distances, high_counts, energies, texts, heads,
    N, WIDTH: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    THETA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a tile of every head's pairs i < j of one text in one layer to `signal.PairSums`.

    `labels` (8, text, N): token ids, sentences, positions and blocks, as they are and then shuffled.
    """
    text = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if tile // TILES > tile % TILES:
        return
    n = tl.load(lengths + text)
    i = tile // TILES * TILE + tl.arange(0, TILE)
    j = tile % TILES * TILE + tl.arange(0, TILE)
    upper = (i[:, None] < j[None, :]) & (j[None, :] < n)
    for head in range(0, heads):
        text_largest = tl.load(largest + text * heads + head)
        matrix, dot_products = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
        half = tl.zeros((TILE, TILE), tl.float32)
        for first in tl.static_range(0, D, STEP):
            dims = first + tl.arange(0, STEP)
            rows = load_outputs(output, text, head, heads, i, n, N, dims, WIDTH).to(tl.float32)
            columns = load_outputs(output, text, head, heads, j, n, N, dims, WIDTH).to(tl.float32)
            matrix = tl.dot(rows, tl.trans(columns), matrix, input_precision=PRECISION)
            means = tl.load(mean + (text * heads + head) * WIDTH + dims, dims < WIDTH, 0.0)
            rows = tl.where(i[:, None] < n, rows - means[None, :], 0.0)
            columns = tl.where(j[:, None] < n, columns - means[None, :], 0.0)
            dot_products = tl.dot(rows, tl.trans(columns), dot_products, input_precision=PRECISION)
            half += tl.sum(rows * rows, 1)[:, None] / 2 + tl.sum(columns * columns, 1)[None, :] / 2
        distance = tl.where(upper, tl.maximum(half - dot_products, 0.0), 0.0)
        square = tl.where(upper, matrix * matrix, 0.0)
        above = upper & (matrix > THETA * text_largest)
        text_head = text * heads + head
        tl.atomic_add(high_counts + text_head * 3, tl.sum(above.to(tl.int32)))
        tl.atomic_add(energies + text_head * 3, tl.sum(square).to(tl.float64))
        for shuffled in range(0, 2):
            start = labels + shuffled * 4 * texts * N + text * N
            equal, same, near, inside = _compute_relations(start, texts * N, i, j, n)
            pointers = distances + (text_head * 2 + shuffled) * 7
            _add(pointers, distance, ~equal & ~same & ~near)
            _add(pointers + 1, distance, equal & ~same & ~near)
            _add(pointers + 2, distance, ~equal & same & ~near)
            _add(pointers + 3, distance, equal & same & ~near)
            _add(pointers + 4, distance, ~equal & same & near)
            _add(pointers + 5, distance, same)
            _add(pointers + 6, distance, upper)
            _add(energies + text_head * 3 + 1 + shuffled, square, inside)
            explained = above & (equal | same | near)
            tl.atomic_add(high_counts + text_head * 3 + 1 + shuffled, tl.sum(explained.to(tl.int32)))


@triton.jit
def _compute_relations(labels, step, i, j, n):
    """Return which pairs are of equal tokens, of one sentence, neighbours, in one block."""
    equal = _load_labels(labels, i, n)[:, None] == _load_labels(labels, j, n)[None, :]
    same = _load_labels(labels + step, i, n)[:, None] == _load_labels(labels + step, j, n)[None, :]
    distance = _load_labels(labels + 2 * step, i, n)[:, None] - _load_labels(labels + 2 * step, j, n)[None, :]
    inside = _load_labels(labels + 3 * step, i, n)[:, None] == _load_labels(labels + 3 * step, j, n)[None, :]
    return equal, same, (distance == 1) | (distance == -1), inside


@triton.jit
def _load_labels(labels, positions, n):
    return tl.load(labels + positions, positions < n, 0)


@triton.jit
def _add(target, values, mask):
    tl.atomic_add(target, tl.sum(tl.where(mask, values, 0.0)).to(tl.float64))

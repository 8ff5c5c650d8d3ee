"""Kernel of the sample: histograms of normalized similarities and their sum over heads."""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.triton_backend.high import compute_similarities


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

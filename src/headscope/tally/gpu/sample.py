"""The kernel of the sample: histograms of normalized similarities, and their sum over heads."""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.gpu.pairs import written_by


@triton.jit
def see_values(
    output, largest, lengths, layers, histogram, edges, summed, texts, heads,
    N, WIDTH: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, BINS: tl.constexpr,
    NEAR: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one text in one layer, a tile of every head's C/max(C), i < j: values by bin (layer, text, head, 256), how
    many are near an edge (layer, text, head), and their sum over heads, added to (layer, i, j)."""
    held = tl.program_id(0).to(tl.int64)  # layer and text
    layer, text = held // texts, held % texts
    tile = tl.program_id(1)
    n = tl.load(lengths + text)
    i = tile // TILES * TILE + tl.arange(0, TILE)
    j = tile % TILES * TILE + tl.arange(0, TILE)
    wide, bins = tl.arange(0, D), tl.arange(0, 256)
    if tile // TILES > tile % TILES:
        return
    upper = (i[:, None] < j[None, :]) & (j[None, :] < n)
    added = tl.zeros((TILE, TILE), tl.float32)
    for head in range(0, heads):
        top = tl.load(largest + held * heads + head)
        counted = upper & (tl.zeros((TILE, TILE), tl.float32) + top > 0)
        one = written_by(output, held, head, heads, i, n, N, wide, WIDTH)
        other = written_by(output, held, head, heads, j, n, N, wide, WIDTH)
        matrix = tl.dot(one, tl.trans(other), input_precision=PRECISION)
        normal = matrix / tl.where(top > 0, top, 1.0)
        added += tl.where(counted, normal, 0.0)
        place = (normal + 1) * (BINS / 2)
        floor = tl.floor(place)
        edge = tl.floor(place + 0.5)
        near = counted & (tl.abs(place - edge) <= NEAR * (BINS / 2)) & (edge > 0) & (edge < BINS)
        tl.atomic_add(edges + held * heads + head, tl.sum(near.to(tl.int32)))
        # What is not counted goes to a bin of its own.
        index = tl.where(counted, tl.minimum(tl.maximum(floor, 0.0), BINS - 1.0).to(tl.int32), 255)
        found = tl.histogram(tl.reshape(index, (TILE * TILE,)), 256)
        tl.atomic_add(histogram + (held * heads + head) * 256 + bins, found)
    if MAPS:
        tl.atomic_add(summed + (layer * N + i[:, None]) * N + j[None, :], added.to(tl.float64), upper)

"""The kernels of the sample: histograms of normalized similarities and their sum over heads; signal and noise."""

from __future__ import annotations

import triton
import triton.language as tl

from headscope.tally.gpu.high import similar, written_by


@triton.jit
def see_values(
    output, largest, lengths, layers, histogram, edges, summed, texts, heads,
    N, WIDTH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    BINS: tl.constexpr, NEAR: tl.constexpr, MAPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one text in one layer, a tile of every head's C/max(C), i < j: values by bin (layer, text, head, 256), how
    many are near an edge (layer, text, head), and their sum over heads, added to (layer, i, j)."""
    held = tl.program_id(0).to(tl.int64)  # layer and text
    layer, text = held // texts, held % texts
    tile = tl.program_id(1)
    n = tl.load(lengths + text)
    i = tile // TILES * TILE + tl.arange(0, TILE)
    j = tile % TILES * TILE + tl.arange(0, TILE)
    bins = tl.arange(0, 256)
    if tile // TILES > tile % TILES:
        return
    upper = (i[:, None] < j[None, :]) & (j[None, :] < n)
    added = tl.zeros((TILE, TILE), tl.float32)
    for head in range(0, heads):
        top = tl.load(largest + held * heads + head)
        counted = upper & (tl.zeros((TILE, TILE), tl.float32) + top > 0)
        matrix = similar(output, held, head, heads, i, j, n, N, WIDTH, D, WIDE, PRECISION)
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


@triton.jit
def see_signal(
    output, mean, largest, lengths, labels, apart, high, energy, texts, heads,
    N, WIDTH: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
    THETA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of one text in one layer, what a tile of every head's pairs i < j adds to `signal.Raw`.

    `labels` (8, text, N): token ids, sentences, places and blocks, as they are and then shuffled.
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
        top = tl.load(largest + text * heads + head)
        matrix, products = tl.zeros((TILE, TILE), tl.float32), tl.zeros((TILE, TILE), tl.float32)
        half = tl.zeros((TILE, TILE), tl.float32)
        for first in tl.static_range(0, D, WIDE):
            wide = first + tl.arange(0, WIDE)
            one = written_by(output, text, head, heads, i, n, N, wide, WIDTH).to(tl.float32)
            other = written_by(output, text, head, heads, j, n, N, wide, WIDTH).to(tl.float32)
            matrix = tl.dot(one, tl.trans(other), matrix, input_precision=PRECISION)
            middle = tl.load(mean + (text * heads + head) * WIDTH + wide, wide < WIDTH, 0.0)
            one = tl.where(i[:, None] < n, one - middle[None, :], 0.0)
            other = tl.where(j[:, None] < n, other - middle[None, :], 0.0)
            products = tl.dot(one, tl.trans(other), products, input_precision=PRECISION)
            half += tl.sum(one * one, 1)[:, None] / 2 + tl.sum(other * other, 1)[None, :] / 2
        distance = tl.where(upper, tl.maximum(half - products, 0.0), 0.0)
        square = tl.where(upper, matrix * matrix, 0.0)
        above = upper & (matrix > THETA * top)
        at = text * heads + head
        tl.atomic_add(high + at * 3, tl.sum(above.to(tl.int32)))
        tl.atomic_add(energy + at * 3, tl.sum(square).to(tl.float64))
        for shuffled in range(0, 2):
            start = labels + shuffled * 4 * texts * N + text * N
            equal, same, near, inside = _related(start, texts * N, i, j, n)
            where = apart + (at * 2 + shuffled) * 7
            _add(where, distance, ~equal & ~same & ~near)
            _add(where + 1, distance, equal & ~same & ~near)
            _add(where + 2, distance, ~equal & same & ~near)
            _add(where + 3, distance, equal & same & ~near)
            _add(where + 4, distance, ~equal & same & near)
            _add(where + 5, distance, same)
            _add(where + 6, distance, upper)
            _add(energy + at * 3 + 1 + shuffled, square, inside)
            explained = above & (equal | same | near)
            tl.atomic_add(high + at * 3 + 1 + shuffled, tl.sum(explained.to(tl.int32)))


@triton.jit
def _related(labels, step, i, j, n):
    """Which pairs are of equal tokens, of one sentence, neighbours, in one block."""
    equal = _loaded(labels, i, n)[:, None] == _loaded(labels, j, n)[None, :]
    same = _loaded(labels + step, i, n)[:, None] == _loaded(labels + step, j, n)[None, :]
    between = _loaded(labels + 2 * step, i, n)[:, None] - _loaded(labels + 2 * step, j, n)[None, :]
    inside = _loaded(labels + 3 * step, i, n)[:, None] == _loaded(labels + 3 * step, j, n)[None, :]
    return equal, same, (between == 1) | (between == -1), inside


@triton.jit
def _loaded(labels, places, n):
    return tl.load(labels + places, places < n, 0)


@triton.jit
def _add(target, values, mask):
    tl.atomic_add(target, tl.sum(tl.where(mask, values, 0.0)).to(tl.float64))

"""Where to cut: the best segmentation of a row of pieces, exactly, by dynamic programming.

    K = Y·Yᵀ                                 similarity of the pieces; every row of Y has length 1
    G(a, b) = Σ_{i,j} K_ij / (L + ρ)         what the L = b − a pieces a … b−1 are worth as one segment
    P(L) = (c + κ·log(1 + L/ρ)) / g          what a segment of L pieces costs; g is the granularity

A segment's pieces are a subject in common and noise. G − P has the form of the evidence for that, with a Gaussian
subject marginalized: ρ is the noise's variance in units of the subject's, the logarithm what noise alone is worth.
With ρ = 0 and no price it would be the criterion of k-means, which is fond of segments of one piece. The cuts are those
that make Σ (G − P) largest, over all numbers of segments or among those of the number asked for.

Segments longer than a band are not looked at, so time and memory grow with the number of pieces and not its square.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from headscope.types import Floats, Ints

RHO = 6.0
COST, NOISE = 0.2, 0.6
"""ρ, c and κ were chosen on development documents of Choi's benchmark with 4, 10 and 20 segments and two models at once
(docs/segmentation.md): similarities of pieces have one scale, so the price need not follow the text."""
BAND = 256
"""pieces: the longest segment looked at, where no count asks for longer ones"""


def band_for(n: int, count: int | None = None) -> int:
    """The longest segment to look at among n pieces; of a known number of segments, four times the mean length."""
    return min(n, BAND if count is None else max(BAND, 4 * -(-n // count)))


def prices(band: int, granularity: float = 1.0) -> Floats:
    """(band): P of segments by their length less 1."""
    return np.asarray((COST + NOISE * np.log1p(np.arange(1, band + 1) / RHO)) / granularity)


def worths(vectors: Floats, band: int) -> Floats:
    """(band, n + 1): G of the segments that end before piece b, by their length less 1. −inf where there is none."""
    n = len(vectors)
    sums = np.zeros(band)  # Σ K over the segments that end before the last b, by length
    found = np.full((band, n + 1), -np.inf)
    lengths = np.arange(1, band + 1)
    for b in range(1, n + 1):
        reach = min(band, b)
        # With the new last piece: what it has in common with the pieces before it, twice, and with itself.
        row = (vectors[b - reach : b] @ vectors[b - 1]).astype(np.float64)[::-1]
        grown = 2 * np.cumsum(row) - row[0]
        sums[1:reach] = sums[: reach - 1]
        sums[0] = 0.0
        sums[:reach] += grown
        found[:reach, b] = sums[:reach] / (lengths[:reach] + RHO)
    return found


def cut(worth: Floats, price: Floats, count: int | None = None) -> Ints:
    """The best boundaries, of `count` segments or as many as pay."""
    net = worth - price[:, None]
    return _cut_freely(net) if count is None else _cut_into(net, count)


def _cut_into(worth: Floats, count: int) -> Ints:
    band, n = worth.shape[0], worth.shape[1] - 1
    best = np.full((count + 1, n + 1), -np.inf)
    back = np.zeros((count + 1, n + 1), dtype=np.int32)
    best[0, 0] = 0.0
    for b in range(1, n + 1):
        reach = min(band, b)
        # Columns: where the last segment starts, b − 1, b − 2, …
        options = best[:-1, b - reach : b][:, ::-1] + worth[:reach, b]
        chosen = options.argmax(axis=1)
        best[1:, b] = options[np.arange(count), chosen]
        back[1:, b] = b - 1 - chosen
    found = []
    b = n
    for k in range(count, 0, -1):
        b = int(back[k, b])
        found.append(b)
    return np.asarray(found[-2::-1], dtype=np.int64)


def _cut_freely(worth: Floats) -> Ints:
    band, n = worth.shape[0], worth.shape[1] - 1
    best = np.full(n + 1, -np.inf)
    back = np.zeros(n + 1, dtype=np.int64)
    best[0] = 0.0
    for b in range(1, n + 1):
        reach = min(band, b)
        options = best[b - reach : b][::-1] + worth[:reach, b]
        chosen = int(options.argmax())
        best[b] = options[chosen]
        back[b] = b - 1 - chosen
    found = []
    b = n
    while b > 0:
        b = int(back[b])
        found.append(b)
    return np.asarray(found[-2::-1], dtype=np.int64)


def strengths(worth: Floats, price: Floats, boundaries: Ints) -> Floats:
    """(n − 1): of every gap, what a boundary there adds in units of what it costs, given the boundaries beside it:

        (G(a, t) + G(t, b) − G(a, b)) / (P(t − a) + P(b − t) − P(b − a))

    For a boundary that is there, a and b are the next ones on its sides; for any other gap the ends of its segment.
    Where these are farther apart than the band is long, only that much of the text around the gap is looked at. Where
    the number of segments was found, boundaries are at 1 or above and other gaps at 1 or below.
    """
    n = worth.shape[1] - 1
    edges = [0, *boundaries.tolist(), n]
    found = np.zeros(max(n - 1, 0))
    for left, right in pairwise(edges):
        for t in range(left + 1, right):
            found[t - 1] = _strength(worth, price, left, t, right)
    for k, t in enumerate(boundaries.tolist(), start=1):
        found[t - 1] = _strength(worth, price, edges[k - 1], t, edges[k + 1])
    return found


def _strength(worth: Floats, price: Floats, a: int, t: int, b: int) -> float:
    band = len(price)
    if b - a > band:
        first = max(a, t - band // 2)
        b = min(b, first + band)
        a = max(a, b - band)
    gained = worth[t - a - 1, t] + worth[b - t - 1, b] - worth[b - a - 1, b]
    return float(gained / (price[t - a - 1] + price[b - t - 1] - price[b - a - 1]))

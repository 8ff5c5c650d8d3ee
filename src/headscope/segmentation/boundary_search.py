"""The best segmentation of a sequence of pieces, found exactly by dynamic programming.

    K = Y·Yᵀ                                 similarity of the pieces; every row of Y has length 1
    G(a, b) = Σ_{i,j} K_ij / (L + ρ)         worth of the L = b − a pieces a … b−1 as one segment
    P(L) = (c + κ·log(1 + L/ρ)) / g          price of a segment of L pieces; g is the granularity

The model: the pieces of a segment are a common subject plus noise. G − P has the form of the log evidence for it, with
a Gaussian subject marginalized: ρ is the variance of the noise relative to that of the subject, and the logarithm is
the evidence expected of noise alone. With ρ = 0 and no price it would be the criterion of k-means, which prefers
segments of one piece. The boundaries maximize Σ (G − P), over all numbers of segments or for a given number.

Segments are at most a band long, so time and memory are linear in the number of pieces instead of quadratic.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from headscope.array_types import Floats, Ints

RHO = 6.0
COST, NOISE = 0.2, 0.6
"""ρ, c and κ were chosen on development documents of Choi's benchmark with 4, 10 and 20 segments and two models at once
(docs/segmentation.md). They need not depend on the text, because similarities of pieces have a common scale."""
BAND = 256
"""longest segment in pieces, unless a given count requires longer ones"""


def choose_band(n: int, count: int | None = None) -> int:
    """Return the longest segment to consider among n pieces; for a given count, four times the mean length."""
    return min(n, BAND if count is None else max(BAND, 4 * -(-n // count)))


def compute_prices(band: int, granularity: float = 1.0) -> Floats:
    """Return P of segments by their length − 1 (band)."""
    return np.asarray((COST + NOISE * np.log1p(np.arange(1, band + 1) / RHO)) / granularity)


def compute_worths(vectors: Floats, band: int) -> Floats:
    """Return G of the segments that end before piece b, by length − 1 and b (band, n + 1); −inf if there is none."""
    n = len(vectors)
    sums = np.zeros(band)  # Σ K over the segments that end before the previous b, by length − 1
    worth = np.full((band, n + 1), -np.inf)
    lengths = np.arange(1, band + 1)
    for b in range(1, n + 1):
        reach = min(band, b)
        # A new last piece adds twice its similarities to the pieces before it, and once that to itself.
        row = (vectors[b - reach : b] @ vectors[b - 1]).astype(np.float64)[::-1]
        increments = 2 * np.cumsum(row) - row[0]
        sums[1:reach] = sums[: reach - 1]
        sums[0] = 0.0
        sums[:reach] += increments
        worth[:reach, b] = sums[:reach] / (lengths[:reach] + RHO)
    return worth


def cut(worth: Floats, price: Floats, count: int | None = None) -> Ints:
    """Return the best boundaries, for `count` segments or for the best number of segments."""
    net = worth - price[:, None]
    return _cut_freely(net) if count is None else _cut_into(net, count)


def _cut_into(worth: Floats, count: int) -> Ints:
    """Return the best boundaries of `count` segments; `worth` is net of the price (band, n + 1)."""
    band, n = worth.shape[0], worth.shape[1] - 1
    best = np.full((count + 1, n + 1), -np.inf)  # by number of segments and end
    last_starts = np.zeros((count + 1, n + 1), dtype=np.int32)
    best[0, 0] = 0.0
    for b in range(1, n + 1):
        reach = min(band, b)
        # Columns: start of the last segment, b − 1, b − 2, …
        options = best[:-1, b - reach : b][:, ::-1] + worth[:reach, b]
        selected = options.argmax(axis=1)
        best[1:, b] = options[np.arange(count), selected]
        last_starts[1:, b] = b - 1 - selected
    starts = []  # from the last segment to the first
    b = n
    for k in range(count, 0, -1):
        b = int(last_starts[k, b])
        starts.append(b)
    return np.asarray(starts[-2::-1], dtype=np.int64)


def _cut_freely(worth: Floats) -> Ints:
    """Return the best boundaries of any number of segments; `worth` is net of the price (band, n + 1)."""
    band, n = worth.shape[0], worth.shape[1] - 1
    best = np.full(n + 1, -np.inf)  # by end
    last_starts = np.zeros(n + 1, dtype=np.int64)
    best[0] = 0.0
    for b in range(1, n + 1):
        reach = min(band, b)
        options = best[b - reach : b][::-1] + worth[:reach, b]
        selected = int(options.argmax())
        best[b] = options[selected]
        last_starts[b] = b - 1 - selected
    starts = []  # from the last segment to the first
    b = n
    while b > 0:
        b = int(last_starts[b])
        starts.append(b)
    return np.asarray(starts[-2::-1], dtype=np.int64)


def compute_strengths(worth: Floats, price: Floats, boundaries: Ints) -> Floats:
    """Return for every gap (n − 1) what a boundary adds divided by what it costs, given the boundaries beside it:

        (G(a, t) + G(t, b) − G(a, b)) / (P(t − a) + P(b − t) − P(b − a))

    For a boundary, a and b are the boundaries next to it; for any other gap, the ends of its segment. If they are
    farther apart than the band, only that much of the text around the gap is considered. If the number of segments was
    not given, boundaries have at least 1 and other gaps at most 1.
    """
    n = worth.shape[1] - 1
    edges = [0, *boundaries.tolist(), n]
    strengths = np.zeros(max(n - 1, 0))
    for left, right in pairwise(edges):
        for t in range(left + 1, right):
            strengths[t - 1] = _compute_strength(worth, price, left, t, right)
    for k, t in enumerate(boundaries.tolist(), start=1):
        strengths[t - 1] = _compute_strength(worth, price, edges[k - 1], t, edges[k + 1])
    return strengths


def _compute_strength(worth: Floats, price: Floats, a: int, t: int, b: int) -> float:
    band = len(price)
    if b - a > band:
        first = max(a, t - band // 2)
        b = min(b, first + band)
        a = max(a, b - band)
    gain = worth[t - a - 1, t] + worth[b - t - 1, b] - worth[b - a - 1, b]
    return float(gain / (price[t - a - 1] + price[b - t - 1] - price[b - a - 1]))

"""Boundaries of segments: the weights of the heads that vote for them, and the search for the best ones.

Weights of the heads: how well each separates near pieces of a text from distant ones.

    S_h = X_h·X_hᵀ      similarity of the pieces by head h; X_h is its output minus the text's mean, with mean square 1
    c_h                 mean of S_h over pieces at most two apart, minus its mean over distant pieces
    Σ_hg                covariance of S_h and S_g over distant pieces: the noise, and how much of it two heads share
    w = argmax c·w − ½ w·(Σ + λ)·w,  w ≥ 0          Fisher's discriminant between near and far

Neighbouring sentences mostly have the same subject and distant ones mostly not, so no labels are needed. A head gets
weight for what it separates beyond other heads: ten copies of a head have little more weight than one.

The best segmentation of a sequence of pieces, found exactly by dynamic programming.

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

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headscope.array_types import Bools, Floats, Ints

NEAR = 2
"""Pieces at most this far apart count as near."""
FAR = 1 / 3
"""of the text's length: pieces farther apart than this count as distant"""
PAIRS = 20_000
"""maximum number of distant pairs; in longer texts they are sampled, always the same ones"""
RIDGE = 1.0
"""λ in units of the mean variance: without it, the weights of a short text would follow its noise"""
AT_ONCE = 1_000
"""pairs per step: arrays over all pairs would be many times as large as the vectors of the text"""
SWEEPS, STILL = 500, 1e-9
"""maximum number of sweeps over the heads, and the relative change at which they stop"""


@dataclass(frozen=True)
class Contrast:
    """How the similarities by each head differ between near and far pairs: c and Σ."""

    gain: Floats
    """c (head)"""
    noise: Floats
    """Σ (head, head)"""

    @property
    def relative(self) -> Floats:
        """c in units of the standard deviation of the noise (head)."""
        return np.asarray(self.gain / np.sqrt(np.maximum(np.diag(self.noise), 1e-30)))

    def mix(self, other: Contrast, share: float) -> Contrast:
        """Return the mean of this contrast and another, which has a weight of `share`."""
        return Contrast(
            gain=(1 - share) * self.gain + share * other.gain, noise=(1 - share) * self.noise + share * other.noise
        )


def choose_pairs(n: int) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Return near and distant pairs of n pieces, each as the indices i and j.

    >>> near, far = choose_pairs(4)
    >>> np.stack(far, axis=1).tolist()
    [[0, 2], [0, 3], [1, 3]]
    """
    lags = range(1, min(NEAR, n - 1) + 1)
    near = np.concatenate([np.arange(n - lag) for lag in lags]), np.concatenate([np.arange(lag, n) for lag in lags])
    min_distance = max(NEAR, int(np.ceil(FAR * n)))
    count = (n - min_distance) * (n - min_distance + 1) // 2
    if count <= PAIRS:
        i, j = np.triu_indices(n, k=min_distance)
        return near, (i, j)
    random = np.random.default_rng(n)
    i = random.integers(0, n, size=6 * PAIRS)
    j = random.integers(0, n, size=6 * PAIRS)
    selected = np.flatnonzero(j - i >= min_distance)[:PAIRS]
    return near, (i[selected], j[selected])


def compute_products(vectors: Floats, pairs: tuple[Ints, Ints]) -> Floats:
    """Return S_h of some pairs (head, pair), from vectors (piece, head, width)."""
    i, j = pairs
    products = np.empty((vectors.shape[1], len(i)))
    for k in range(0, len(i), AT_ONCE):
        part = slice(k, k + AT_ONCE)
        products[:, part] = (vectors[i[part]] * vectors[j[part]]).sum(axis=2).T
    return products


def compute_contrast(near: Floats, far: Floats) -> Contrast:
    """Return the contrast of the similarities of near and far pairs, both (head, pair)."""
    return Contrast(gain=near.mean(axis=1) - far.mean(axis=1), noise=np.atleast_2d(np.cov(far)))


def compute_weights(contrast: Contrast) -> Floats:
    """Return the weights of the discriminant (head), none negative, with sum 1; equal if there is no contrast."""
    count = len(contrast.gain)
    ridge = RIDGE * np.trace(contrast.noise) / count
    system = contrast.noise + ridge * np.eye(count)
    weights = _solve_nonnegative(system, contrast.gain)
    total = weights.sum()
    return weights / total if total > 0 else np.full(count, 1 / count)


def _solve_nonnegative(system: Floats, gain: Floats) -> Floats:
    """Return argmax gain·w − ½ w·system·w over w ≥ 0, by coordinate ascent, which converges: the problem is convex."""
    diagonal = np.diag(system)
    if not (diagonal > 0).all():
        return np.maximum(gain, 0)
    weights = np.zeros(len(gain))
    slope = gain.copy()  # gain − system·w
    for _ in range(SWEEPS):
        largest_step = 0.0
        for k in range(len(gain)):
            step = max(weights[k] + slope[k] / diagonal[k], 0.0) - weights[k]
            if step:
                weights[k] += step
                slope -= step * system[:, k]
                largest_step = max(largest_step, abs(step))
        if largest_step <= STILL * weights.max(initial=0.0):
            break
    return weights


def scale_outputs(vectors: Floats, mean: Floats) -> Floats:
    """Return X: outputs (piece, head, width) minus the mean (head, width), scaled to mean square 1 for each head.

    A head whose output is constant gets zeros.
    """
    centered = vectors - mean
    size = np.sqrt((centered.astype(np.float64) ** 2).sum(axis=2).mean(axis=0))
    varies: Bools = size > 1e-12
    return np.asarray(centered * np.where(varies, 1 / np.where(varies, size, 1), 0)[None, :, None], dtype=np.float32)


def join_heads(scaled: Floats, weights: Floats) -> Floats:
    """Return Y (piece, numbers) of length 1: the outputs of all heads times the roots of their weights; K = Y·Yᵀ."""
    used = np.flatnonzero(weights)
    joined = (scaled[:, used] * np.sqrt(weights[used])[None, :, None]).reshape(len(scaled), -1)
    return np.asarray(joined / np.maximum(np.linalg.norm(joined, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def compute_own_contrast(scaled: Floats) -> Contrast | None:
    """Return the contrast of one text (piece, head, width); None if it is too short to estimate a variance."""
    n = len(scaled)
    if n < 2 * NEAR + 2:
        return None
    near, far = choose_pairs(n)
    return compute_contrast(compute_products(scaled, near), compute_products(scaled, far))


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

"""Weights of the heads: how well each separates near pieces of a text from distant ones.

    S_h = X_h·X_hᵀ      similarity of the pieces by head h; X_h is its output minus the text's mean, with mean square 1
    c_h                 mean of S_h over pieces at most two apart, minus its mean over distant pieces
    Σ_hg                covariance of S_h and S_g over distant pieces: the noise, and how much of it two heads share
    w = argmax c·w − ½ w·(Σ + λ)·w,  w ≥ 0          Fisher's discriminant between near and far

Neighbouring sentences mostly have the same subject and distant ones mostly not, so no labels are needed. A head gets
weight for what it separates beyond other heads: ten copies of a head have little more weight than one.
"""

from __future__ import annotations

from dataclasses import dataclass

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

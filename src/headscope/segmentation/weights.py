"""Which heads know where a text changes its subject: the label-free contrast, and weights that make the most of it.

    S_h = X_h·X_hᵀ      similarity of the pieces by head h; X_h is what it writes less the text's mean, mean square 1
    c_h                 mean of S_h over pieces at most two apart, less its mean over pieces far apart
    Σ_hg                covariance of S_h and S_g over pieces far apart: noise, and how much of it two heads share
    w = argmax c·w − ½ w·(Σ + λ)·w,  w ≥ 0          Fisher's discriminant between near and far

Neighbouring sentences are mostly about one thing and distant ones mostly not, so no labels are needed. A head gets
weight for what it tells apart beyond what others do: ten copies of one head weigh little more than one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.types import Bools, Floats, Ints

NEAR = 2
"""Pieces at most this far apart count as neighbours."""
FAR = 1 / 3
"""of the text's length: pieces farther apart than this count as distant"""
PAIRS = 20_000
"""distant pairs that are looked at; of a longer text they are drawn at random, the same ones every time"""
RIDGE = 1.0
"""λ in units of the mean variance: weights of a short text would else follow its noise"""
AT_ONCE = 1_000
"""pairs; what is computed for all of them together would be as large as the text's vectors many times over"""
SWEEPS, STILL = 500, 1e-9


@dataclass(frozen=True)
class Contrast:
    """What near and far pairs of a text say of every head: c and Σ."""

    gain: Floats
    noise: Floats

    @property
    def relative(self) -> Floats:
        """c in units of the noise's spread."""
        return np.asarray(self.gain / np.sqrt(np.maximum(np.diag(self.noise), 1e-30)))

    def mixed(self, other: Contrast, share: float) -> Contrast:
        """With a share of another text's."""
        return Contrast(
            gain=(1 - share) * self.gain + share * other.gain, noise=(1 - share) * self.noise + share * other.noise
        )


def pairs(n: int) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Neighbouring and distant pairs of n pieces.

    >>> near, far = pairs(4)
    >>> np.stack(far, axis=1).tolist()
    [[0, 2], [0, 3], [1, 3]]
    """
    lags = range(1, min(NEAR, n - 1) + 1)
    near = np.concatenate([np.arange(n - lag) for lag in lags]), np.concatenate([np.arange(lag, n) for lag in lags])
    farthest = max(NEAR, int(np.ceil(FAR * n)))
    count = (n - farthest) * (n - farthest + 1) // 2
    if count <= PAIRS:
        i, j = np.triu_indices(n, k=farthest)
        return near, (i, j)
    drawn = np.random.default_rng(n)
    i = drawn.integers(0, n, size=6 * PAIRS)
    j = drawn.integers(0, n, size=6 * PAIRS)
    kept = np.flatnonzero(j - i >= farthest)[:PAIRS]
    return near, (i[kept], j[kept])


def products(vectors: Floats, chosen: tuple[Ints, Ints]) -> Floats:
    """(heads, pairs): S_h of chosen pairs."""
    i, j = chosen
    found = np.empty((vectors.shape[1], len(i)))
    for k in range(0, len(i), AT_ONCE):
        part = slice(k, k + AT_ONCE)
        found[:, part] = (vectors[i[part]] * vectors[j[part]]).sum(axis=2).T
    return found


def contrast(near: Floats, far: Floats) -> Contrast:
    """From the similarities (heads, pairs) of near and far pairs."""
    return Contrast(gain=near.mean(axis=1) - far.mean(axis=1), noise=np.atleast_2d(np.cov(far)))


def weights(measured: Contrast) -> Floats:
    """The discriminant's weights, none below 0, which add up to 1. Without any contrast all heads weigh the same."""
    count = len(measured.gain)
    ridge = RIDGE * np.trace(measured.noise) / count
    system = measured.noise + ridge * np.eye(count)
    found = _not_negative(system, measured.gain)
    total = found.sum()
    return found / total if total > 0 else np.full(count, 1 / count)


def _not_negative(system: Floats, gain: Floats) -> Floats:
    """argmax gain·w − ½ w·system·w over w ≥ 0, one coordinate at a time: the problem is convex, so this ends there."""
    diagonal = np.diag(system)
    if not (diagonal > 0).all():
        return np.maximum(gain, 0)
    found = np.zeros(len(gain))
    slope = gain.copy()  # gain − system·w
    for _ in range(SWEEPS):
        moved = 0.0
        for k in range(len(gain)):
            step = max(found[k] + slope[k] / diagonal[k], 0.0) - found[k]
            if step:
                found[k] += step
                slope -= step * system[:, k]
                moved = max(moved, abs(step))
        if moved <= STILL * found.max(initial=0.0):
            break
    return found


def scaled(vectors: Floats, mean: Floats) -> Floats:
    """X: the mean taken off, of mean square length 1 for each head. One that always writes the same stays silent."""
    moved = vectors - mean
    size = np.sqrt((moved.astype(np.float64) ** 2).sum(axis=2).mean(axis=0))
    alive: Bools = size > 1e-12
    return np.asarray(moved * np.where(alive, 1 / np.where(alive, size, 1), 0)[None, :, None], dtype=np.float32)


def joined(moved: Floats, weight: Floats) -> Floats:
    """Y (pieces, numbers): all heads in one row by the roots of their weights, of length 1, so that K = Y·Yᵀ."""
    used = np.flatnonzero(weight)
    row = (moved[:, used] * np.sqrt(weight[used])[None, :, None]).reshape(len(moved), -1)
    return np.asarray(row / np.maximum(np.linalg.norm(row, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def own_contrast(moved: Floats) -> Contrast | None:
    """Of a text by itself; None of one too short to have neighbours and distant pairs enough for a spread."""
    n = len(moved)
    if n < 2 * NEAR + 2:
        return None
    near, far = pairs(n)
    return contrast(products(moved, near), products(moved, far))

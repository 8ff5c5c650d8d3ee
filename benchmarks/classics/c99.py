"""C99: sentences that are alike, among those around them, belong together.

F. Y. Y. Choi 2000, Advances in domain independent linear text segmentation, NAACL. Sentences are short, and the
cosine of their stem counts says little by itself; what counts is its rank among the cosines around it. Ranks are
clustered divisively: every step makes the split that raises the inside density most, which is the sum of the ranks
inside all segments over how many they are.
"""

from __future__ import annotations

import numpy as np

from classics.words import check, counted
from headscope.array_types import Floats, Ints

MASK = 11
"""sides of the square of cosines among which the one in its middle is ranked"""
CUTOFF = 1.2
"""standard deviations above the mean, from which a gain in density tells of a boundary"""
SMOOTHING = np.array([1, 2, 4, 8, 4, 2, 1]) / 22
"""Weights of neighbouring gains; the paper is silent on them, but Choi's program smooths so, and needs to: gains fall
unevenly, and raw ones pass below the cutoff too early."""


def segment(sentences: list[str], count: int | None = None) -> list[int]:
    """The first splits, as many as asked for, or until the gain in density is no longer unusual."""
    n = len(sentences)
    check(count, n)
    if n < 2:
        return []
    splits, densities = divided(ranks(cosines(counted(sentences))))
    return sorted(splits[: telling(np.diff(densities)) if count is None else count - 1])


def cosines(counts: Ints) -> Floats:
    """Of the rows with each other, 0 for empty ones. Rounded, lest equal ones differ by how their sums round off."""
    unit = counts / np.maximum(np.sqrt((counts**2).sum(axis=1)), 1)[:, None]
    return np.round(unit @ unit.T, 12)


def ranks(matrix: Floats, mask: int = MASK) -> Floats:
    """The share of the other elements in the mask around each one that are lower; beyond the edge there are none.

    >>> ranks(np.array([[1.0, 0.5], [0.5, 1.0]])).round(2).tolist()
    [[0.67, 0.0], [0.0, 0.67]]
    """
    n, reach = len(matrix), mask // 2
    around = np.pad(matrix, reach, constant_values=np.inf)
    lower = np.zeros((n, n))
    for row in range(mask):
        for column in range(mask):
            lower += around[row : row + n, column : column + n] < matrix
    before = np.minimum(np.arange(n), reach)
    sides = before + 1 + before[::-1]
    return lower / np.maximum(np.outer(sides, sides) - 1, 1)


def divided(matrix: Floats) -> tuple[list[int], Floats]:
    """Every gap in the order of the splits down to single sentences, and the inside density before and after each."""
    n = len(matrix)
    sums = np.zeros((n + 1, n + 1))
    sums[1:, 1:] = matrix.cumsum(axis=0).cumsum(axis=1)

    def inside(start: Ints | int, stop: Ints | int) -> Floats:
        return sums[stop, stop] - sums[start, stop] - sums[stop, start] + sums[start, start]

    gaps = np.arange(1, n)
    starts, stops = np.zeros_like(gaps), np.full_like(gaps, n)  # of the segment that each gap is in
    total, area = inside(0, n), n * n
    splits, densities = [], [total / area]
    while len(gaps):
        totals = total - inside(starts, stops) + inside(starts, gaps) + inside(gaps, stops)
        areas = area - 2 * (gaps - starts) * (stops - gaps)
        best = int(np.argmax(totals / areas))
        split, start, stop = gaps[best], starts[best], stops[best]
        total, area = totals[best], areas[best]
        splits.append(int(split))
        densities.append(total / area)
        stops[(gaps > start) & (gaps < split)] = split
        starts[(gaps > split) & (gaps < stop)] = split
        gaps, starts, stops = (np.delete(each, best) for each in (gaps, starts, stops))
    return splits, np.array(densities)


def telling(gains: Floats) -> int:
    """How many of the first splits gain more than mean + 1.2 standard deviations of all gains, once these are smooth.

    Beyond the first and the last step, gains are taken to go on as there.
    """
    smooth = np.convolve(np.pad(gains, len(SMOOTHING) // 2, mode="edge"), SMOOTHING, mode="valid")
    unusual = smooth > smooth.mean() + CUTOFF * smooth.std()
    return int(np.argmin(np.append(unusual, False)))

"""The paper's equations for one window (METHOD §2, §4).

    O : N×d   what a head writes for the N tokens         A : N×N   its attention map, row = query, column = key
    C = O·Oᵀ, diagonal set to 0                           high: C_ij > θ · max(C), counted once as pairs i < j
    s_j = Σ_i A_ij / max_j Σ_i A_ij                       line: a column with s_j > τ

Plain numpy, for reading and for small work; the tallies compute the same over batches.
"""

from __future__ import annotations

import numpy as np

from headscope.types import Bools, Floats, Ints

THETA = 0.3
TAU = 0.3
NEAR = 1e-5
"""A normalized similarity this near to θ may fall on either side of it by the order of floating-point sums alone."""


def similarity(output: Floats) -> Floats:
    """The context similarity matrix of one head.

    >>> similarity(np.array([[1.0, 0.0], [2.0, 1.0]])).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    matrix = output @ output.T
    np.fill_diagonal(matrix, 0.0)
    return matrix


def high(matrix: Floats, theta: float = THETA) -> Bools:
    """The high elements of a similarity matrix, symmetric. The diagonal is 0, so where max(C) ≤ 0 there are none.

    >>> high(np.array([[0.0, 10.0, 3.0], [10.0, 0.0, 4.0], [3.0, 4.0, 0.0]])).astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """
    elements: Bools = matrix > theta * matrix.max()
    return elements


def pairs_of(elements: Bools) -> list[tuple[int, int]]:
    """High elements as pairs i < j, ordered by i, then j."""
    rows, columns = np.nonzero(np.triu(elements, k=1))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def dominant(pairs: list[tuple[int, int]], ids: Ints) -> tuple[int, int] | None:
    """The token value that the most pairs include, and how many do; None without pairs.

    A pair of equal tokens includes its token once; of several values that tie, the one met first in the text wins.

    >>> dominant([(0, 1), (0, 2), (1, 2)], np.array([7, 8, 7]))
    (7, 3)
    """
    if not pairs:
        return None
    counts = dict.fromkeys((int(k) for k in ids), 0)
    for i, j in pairs:
        for value in {int(ids[i]), int(ids[j])}:
            counts[value] += 1
    value = max(counts, key=lambda k: counts[k])
    return value, counts[value]


def lines(attention: Floats, tau: float = TAU) -> Bools:
    """The columns of a map (one head's, or a layer's head sum) that draw attention above τ of the strongest.

    >>> lines(np.array([[0.9, 0.0, 0.1], [0.5, 0.3, 0.2]])).tolist()
    [True, False, False]
    """
    sums = attention.sum(axis=0)
    marked: Bools = sums > tau * sums.max()
    return marked

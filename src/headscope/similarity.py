"""The paper's equations for one window (METHOD §2, §4).

    O : N×d   output of a head for the N tokens           A : N×N   its attention map, row = query, column = key
    C = O·Oᵀ, diagonal set to 0                           high: C_ij > θ · max(C), counted once as pairs i < j
    s_j = Σ_i A_ij / max_j Σ_i A_ij                       line: a column with s_j > τ
    lines cut the window into blocks                      region a × b: mean of C over block a × block b

Plain numpy, for single texts and as documentation; the tallies compute the same for batches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from headscope.array_types import Bools, Floats, Ints

Similarity = Literal["dot", "centered", "projected", "projected-centered"]
"""How outputs are mapped before C is computed of them (docs/method.md): as they are; less their mean over the window;
times the head's part of the output projection; both."""
THETA = 0.3
TAU = 0.3
NEAR = 1e-5
"""Normalized similarities this close to θ may fall on either side of it, by the order of floating-point sums alone."""


def compute_similarity(output: Floats) -> Floats:
    """Return the context similarity matrix of one head: (N, N).

    >>> compute_similarity(np.array([[1.0, 0.0], [2.0, 1.0]])).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    matrix = output @ output.T
    np.fill_diagonal(matrix, 0.0)
    return matrix


def mark_high(matrix: Floats, theta: float = THETA) -> Bools:
    """Return a mask of the high elements of a similarity matrix: (N, N), symmetric.

    The diagonal is 0, so there are none if max(C) ≤ 0.

    >>> mark_high(np.array([[0.0, 10.0, 3.0], [10.0, 0.0, 4.0], [3.0, 4.0, 0.0]])).astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """
    elements: Bools = matrix > theta * matrix.max()
    return elements


def list_pairs(elements: Bools) -> list[tuple[int, int]]:
    """Return high elements as pairs i < j, ordered by i, then j."""
    rows, columns = np.nonzero(np.triu(elements, k=1))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def find_dominant(pairs: list[tuple[int, int]], ids: Ints) -> tuple[int, int] | None:
    """Return the token id that the most pairs include, and the number of these pairs; None without pairs.

    A pair of equal tokens includes its token once. On a tie, the token that comes first in the text is returned.

    >>> find_dominant([(0, 1), (0, 2), (1, 2)], np.array([7, 8, 7]))
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


def mark_lines(attention: Floats, tau: float = TAU) -> Bools:
    """Return a mask of the columns of a map that receive more than τ times the attention of the strongest: (N,).

    The map is that of one head, or the sum over the heads of a layer.

    >>> mark_lines(np.array([[0.9, 0.0, 0.1], [0.5, 0.3, 0.2]])).tolist()
    [True, False, False]
    """
    sums = attention.sum(axis=0)
    marked: Bools = sums > tau * sums.max()
    return marked


def cut_blocks(marked: Bools) -> list[range]:
    """Return the consecutive blocks into which lines cut a window; the token of a line is the last of its block.

    >>> cut_blocks(np.array([True, False, False, True, False]))
    [range(0, 1), range(1, 4), range(4, 5)]
    """
    edges = [0, *(np.flatnonzero(marked[:-1]) + 1).tolist(), len(marked)]
    return [range(start, stop) for start, stop in pairwise(edges) if stop > start]


def average_regions(matrix: Floats, cut: list[range]) -> Floats:
    """Return the mean of C over block a × block b: (blocks, blocks).

    The zeroed diagonal is excluded, so a block of one token has no mean with itself (NaN).

    >>> matrix = np.array([[0.0, 4.0, 1.0], [4.0, 0.0, 3.0], [1.0, 3.0, 0.0]])
    >>> average_regions(matrix, [range(0, 2), range(2, 3)]).tolist()
    [[4.0, 2.0], [2.0, nan]]
    """
    sizes = np.array([len(block) for block in cut])
    starts = np.array([block.start for block in cut])
    sums = np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
    counts = np.outer(sizes, sizes) - np.diag(sizes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def join_words(matrix: Floats, words: Ints) -> Floats:
    """Return C between words: the maximum over their tokens, so words are a high pair if any of their tokens are.

    The diagonal is 0. Words are numbered 0, 1, … in order.

    >>> join_words(np.array([[0.0, 9.0, 1.0], [9.0, 0.0, 3.0], [1.0, 3.0, 0.0]]), np.array([0, 0, 1])).tolist()
    [[0.0, 3.0], [3.0, 0.0]]
    """
    starts = np.searchsorted(words, np.arange(words[-1] + 1))
    highest = np.maximum.reduceat(np.maximum.reduceat(matrix, starts, axis=0), starts, axis=1)
    np.fill_diagonal(highest, 0.0)
    return np.asarray(highest)

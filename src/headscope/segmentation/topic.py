"""Segments of one subject each, over documents of any length: from sentences to cuts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.segmentation import cutting, weights
from headscope.segmentation.background import Background
from headscope.segmentation.weights import Contrast
from headscope.types import Floats, Ints

TRUST = 70
"""sentences of a document that say as much of its heads and subjects as the background does"""
CENTRE = 5
"""sentences of background that a document's mean is mixed with: of two sentences alone it is no mean"""
CELLS = 300
"""cells on a side of the map that is kept"""


@dataclass(frozen=True, eq=False)
class Measured:
    """What a document's heads say of its units."""

    vectors: Floats
    """Y (units, numbers), each of length 1: the heads' outputs, weighted; K = Y·Yᵀ"""
    weights: Floats
    contrast: Contrast


def measure(vectors: Floats, known: Background) -> Measured:
    """From what the heads write (units, heads, width)."""
    white = known.whitened(vectors)
    n = len(white)
    mean = (white.sum(axis=0) + CENTRE * known.mean) / (n + CENTRE)
    moved = weights.scaled(white, mean)
    share = TRUST / (TRUST + n)
    own = weights.own_contrast(moved)
    found = known.contrast if own is None else own.mixed(known.contrast, share)
    weight = weights.weights(found)
    return Measured(weights.joined(moved, weight), weight, found)


def cut(measured: Measured, count: int | None, granularity: float) -> tuple[Ints, Floats]:
    """Boundaries between units, and the strength of every gap."""
    band = cutting.band_for(len(measured.vectors), count)
    worth, price = cutting.worths(measured.vectors, band), cutting.prices(band, granularity)
    found = cutting.cut(worth, price, count)
    return found, cutting.strengths(worth, price, found)


def overview(vectors: Floats, starts: Ints, sentences: int) -> tuple[Floats, Ints]:
    """The map of K in at most `CELLS` cells on a side, and the sentences they start with.

    The mean of K over two cells is the product of their mean vectors; the diagonal, each unit with itself, takes part.
    """
    n = len(vectors)
    size = -(-n // CELLS)
    firsts = np.arange(0, n, size)
    means = np.add.reduceat(vectors.astype(np.float64), firsts, axis=0) / np.diff(np.append(firsts, n))[:, None]
    return (means @ means.T).astype(np.float32), np.append(starts[firsts], sentences)

"""Segments with one subject each, for documents of any length: from the head outputs of sentences to boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.array_types import Floats, Ints
from headscope.segmentation import boundary_search, head_weighting
from headscope.segmentation.background import Background
from headscope.segmentation.head_weighting import Contrast

TRUST = 70
"""number of sentences at which a document's own contrast counts as much as the background's"""
CENTER = 5
"""weight of the background's mean, in sentences, when it is mixed with a document's: two sentences give no mean"""
CELLS = 300
"""largest width of the similarity map, in cells"""


@dataclass(frozen=True, eq=False)
class WeightedUnits:
    """The units of a document as weighted head outputs."""

    vectors: Floats
    """Y (unit, numbers), each of length 1: the weighted outputs of all heads; K = Y·Yᵀ"""
    weights: Floats
    """(head)"""
    contrast: Contrast


def weight_units(vectors: Floats, known: Background) -> WeightedUnits:
    """Return the units weighted by what their outputs (unit, head, width) and the background say of the heads."""
    white = known.whiten(vectors)
    n = len(white)
    mean = (white.sum(axis=0) + CENTER * known.mean) / (n + CENTER)
    scaled = head_weighting.scale_outputs(white, mean)
    background_share = TRUST / (TRUST + n)
    own = head_weighting.compute_own_contrast(scaled)
    contrast = known.contrast if own is None else own.mix(known.contrast, background_share)
    head_weights = head_weighting.compute_weights(contrast)
    return WeightedUnits(head_weighting.join_heads(scaled, head_weights), head_weights, contrast)


def cut(units: WeightedUnits, count: int | None, granularity: float) -> tuple[Ints, Floats]:
    """Return the boundaries between units, and the strength of every gap (unit − 1)."""
    band = boundary_search.choose_band(len(units.vectors), count)
    worth, price = (
        boundary_search.compute_worths(units.vectors, band),
        boundary_search.compute_prices(band, granularity),
    )
    boundaries = boundary_search.cut(worth, price, count)
    return boundaries, boundary_search.compute_strengths(worth, price, boundaries)


def compute_overview(vectors: Floats, starts: Ints, sentences: int) -> tuple[Floats, Ints]:
    """Return the map of K (cell, cell) with at most `CELLS` cells, and the sentences at which they start (cell + 1).

    The mean of K over two cells is the product of their mean vectors. It includes the diagonal, each unit with itself.

    Args:
        vectors: Units (unit, numbers).
        starts: First sentence of each unit (unit).
        sentences: Number of sentences.
    """
    n = len(vectors)
    size = -(-n // CELLS)
    firsts = np.arange(0, n, size)
    means = np.add.reduceat(vectors.astype(np.float64), firsts, axis=0) / np.diff(np.append(firsts, n))[:, None]
    return (means @ means.T).astype(np.float32), np.append(starts[firsts], sentences)

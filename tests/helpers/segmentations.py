"""Synthetic segmentations, without a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from headscope.segmentation.result import HeadWeight, Level, Segmentation

MANIFEST = {"model": "a-model", "layers": 6, "heads": 12, "date": "2026-01-02", "boundary_cost": 0.5, "stopped_by": ""}


def segmentation(
    parts: Sequence[Sequence[str]], *, level: Level = "topic", cells: int = 300, heads: int = 20, **manifest: Any
) -> Segmentation:
    """Return a segmentation of given segments, each a list of pieces.

    Pieces of one segment are similar, and the strength of every third gap within is NaN.
    """
    random = np.random.default_rng(5)
    pieces = [piece for part in parts for piece in part]
    starts = np.cumsum([0, *(len(part) for part in parts)])
    strengths = random.uniform(-0.2, 0.9, len(pieces) - 1)
    strengths[2::3] = np.nan
    strengths[starts[1:-1] - 1] = random.uniform(1.05, 3, len(parts) - 1)
    numbers = np.repeat(np.arange(len(parts)), np.diff(starts))
    count = min(cells, len(pieces))
    edges = np.linspace(0, len(pieces), count + 1).astype(np.int64)
    similarity = (
        0.45 * (numbers[edges[:-1], None] == numbers[edges[:-1]]) - 0.1 + random.normal(0, 0.08, (count, count))
    )
    similarity = (similarity + similarity.T) / 2
    np.fill_diagonal(similarity, 1.0)
    if count > 3:
        similarity[1, 3] = similarity[3, 1] = np.nan
    weights = np.sort(random.exponential(1, heads))[::-1]
    head_numbers = random.permutation(72)[:heads]
    return Segmentation(
        text="".join(pieces),
        level=level,
        edges=np.cumsum([0, *(len(piece) for piece in pieces)]),
        boundaries=starts[1:-1],
        strengths=strengths,
        similarity=similarity,
        cells=edges,
        heads=tuple(
            HeadWeight(int(number) // 12, int(number) % 12, float(weight), float(2 * weight))
            for number, weight in zip(head_numbers, weights / weights.sum() if heads else weights, strict=True)
        ),
        manifest=MANIFEST | manifest,
    )


def sentences(text: str) -> list[str]:
    """Split a text into sentences, roughly."""
    return re.findall(r".+?(?:[.!?]\s+|\Z)", text, re.DOTALL)


def long(pieces: int = 10_000, segments: int = 400, size: int = 100) -> Segmentation:
    """Return a long segmentation: pieces of `size` characters, each with a character outside the basic plane."""
    lines = [f"Sentence {k} 𝒜 ".ljust(size - 2, "abcdefgh "[k % 8]) + (". " if k % 9 else ".\n") for k in range(pieces)]
    cuts = np.linspace(0, pieces, segments + 1).astype(int)
    return segmentation([lines[a:b] for a, b in pairwise(cuts)])

"""How the two tokens of a pair are related, that is, which pairs the text itself explains (docs/reading.md)."""

from __future__ import annotations

import numpy as np

from headscope.array_types import Bools
from headscope.corpus.windows import Window


def compute_relations(window: Window) -> Bools:
    """Return for each pair whether its tokens are equal, in one sentence, and neighbours: (3, N, N)."""
    positions = np.arange(len(window))
    equal = window.ids[:, None] == window.ids[None, :]
    same = window.sentence[:, None] == window.sentence[None, :]
    return np.stack([equal, same, np.abs(positions[:, None] - positions[None, :]) == 1])


def mark_explained(relations: Bools) -> Bools:
    """Return which pairs are related in any way: (N, N)."""
    related: Bools = np.logical_or.reduce(relations)
    return related

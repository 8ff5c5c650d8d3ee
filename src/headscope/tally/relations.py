"""How the two tokens of a pair are related, that is, which pairs the text itself explains (docs/noise.md)."""

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


def compute_kinds(relations: Bools) -> Bools:
    """Return for each pair whether it is of each of `KINDS`: (kind, N, N). A pair may be of none."""
    equal, same, near = relations
    kinds = (~equal & ~same & ~near, equal & ~same & ~near, ~equal & same & ~near, equal & same & ~near)
    return np.stack([*kinds, ~equal & same & near])


def mark_explained(relations: Bools) -> Bools:
    """Return which pairs are related in any way: (N, N)."""
    related: Bools = np.logical_or.reduce(relations)
    return related

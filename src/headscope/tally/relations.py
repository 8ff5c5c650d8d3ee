"""How the tokens of a pair are related: what a text itself explains (docs/noise.md)."""

from __future__ import annotations

import numpy as np

from headscope.corpus.windows import Window
from headscope.types import Bools


def relations(window: Window) -> Bools:
    """What each pair is, one N×N matrix each: equal tokens, of one sentence, neighbours."""
    places = np.arange(len(window))
    equal = window.ids[:, None] == window.ids[None, :]
    same = window.sentence[:, None] == window.sentence[None, :]
    return np.stack([equal, same, np.abs(places[:, None] - places[None, :]) == 1])


def kinds_of(relations: Bools) -> Bools:
    """The same by `KINDS`: which pairs are of each; some are of none."""
    equal, same, near = relations
    kinds = (~equal & ~same & ~near, equal & ~same & ~near, ~equal & same & ~near, equal & same & ~near)
    return np.stack([*kinds, ~equal & same & near])


def explains(relations: Bools) -> Bools:
    """Which pairs the text itself explains: those that are related in any way."""
    found: Bools = np.logical_or.reduce(relations)
    return found

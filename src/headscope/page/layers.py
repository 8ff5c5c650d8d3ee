"""What the layers attend to: the tokens attended most, and the shares of attention by receiver, ready to be drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headscope.page.colours import RECEIVERS, ink
from headscope.page.words import visible
from headscope.studies.result import Study
from headscope.studies.statistics import SEPARATORS

TOP = 5
"""tokens listed for a layer"""
ROOM = 0.06
"""a share that has room for its number inside the bar"""


@dataclass(frozen=True)
class LayerTokens:
    """The tokens that are most often the most attended one of their text."""

    layer: int
    tokens: tuple[tuple[str, float, int], ...]
    """token, share of texts, texts"""
    others: int
    """further tokens"""
    others_share: float


@dataclass(frozen=True)
class Part:
    """One receiver's part of a bar."""

    receiver: str
    share: float
    background: str
    ink: str

    @property
    def roomy(self) -> bool:
        return self.share >= ROOM


@dataclass(frozen=True)
class Bar:
    """Where the attention of one layer goes; or evenly spread attention, to compare with."""

    label: str
    parts: tuple[Part, ...]
    baseline: bool = False


def most_attended(study: Study) -> list[LayerTokens]:
    """Layer by layer; empty where a study does not hold it (of selected heads)."""
    if "most_attended" not in study.data or not study.texts:
        return []
    names = [visible(str(token)) for token in study.data["token"].values]
    found = []
    for layer, counts in zip(study.layers, study.data["most_attended"].values, strict=True):
        order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
        top = tuple((names[k], counts[k] / study.texts, int(counts[k])) for k in order[:TOP])
        rest = order[TOP:]
        found.append(LayerTokens(layer, top, len(rest), sum(int(counts[k]) for k in rest) / study.texts))
    return found


def receivers(study: Study) -> list[Bar]:
    """A bar for each layer and one for evenly spread attention; empty where a study does not hold it."""
    if "attention_received_share" not in study.data:
        return []
    names = [str(name) for name in study.data["receiver"].values]
    spread = study.data["attention_spread"].values
    shares = study.data["attention_received_share"].values
    even = spread / spread.sum() if spread.sum() else np.full(len(names), np.nan)
    if study.of_images:  # no receiver there is one that needs words
        even, shares = (np.where(np.isin(names, SEPARATORS), np.nan, held) for held in (even, shares))
    bars = [Bar(f"L{layer}", _parts(names, row.tolist())) for layer, row in zip(study.layers, shares, strict=True)]
    return [*bars, Bar("even", _parts(names, even.tolist()), baseline=True)]


def _parts(names: list[str], shares: list[float]) -> tuple[Part, ...]:
    colours = [RECEIVERS[k % len(RECEIVERS)] for k in range(len(names))]
    return tuple(
        Part(name, share, background, ink(background))
        for name, share, background in zip(names, shares, colours, strict=True)
        if math.isfinite(share)
    )

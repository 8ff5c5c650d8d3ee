"""What the layers attend to: the most attended tokens, and the shares of attention by receiver."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headscope.page.colors import RECEIVERS, pick_text_color
from headscope.page.formatting import make_visible
from headscope.studies.claim_statistics import SEPARATORS
from headscope.studies.result import Study

MAX_TOKENS = 5
"""tokens listed for each layer"""
MIN_LABELED_SHARE = 0.06
"""smallest share whose number fits into the bar"""


@dataclass(frozen=True)
class LayerTokens:
    """The tokens that are most often the most attended token of their text."""

    layer: int
    tokens: tuple[tuple[str, float, int], ...]
    """token, share of texts, texts"""
    others: int
    """number of further tokens"""
    others_share: float


@dataclass(frozen=True)
class Part:
    """A receiver's part of a bar."""

    receiver: str
    share: float
    background: str
    ink: str

    @property
    def roomy(self) -> bool:
        return self.share >= MIN_LABELED_SHARE


@dataclass(frozen=True)
class Bar:
    """Shares of the attention of one layer; or, as the baseline, of evenly spread attention."""

    label: str
    parts: tuple[Part, ...]
    baseline: bool = False


def list_most_attended(study: Study) -> list[LayerTokens]:
    """Return the most attended tokens layer by layer; an empty list if the study lacks them, as for selected heads."""
    if "most_attended" not in study.data or not study.texts:
        return []
    names = [make_visible(str(token)) for token in study.data["token"].values]
    rows = []
    for layer, counts in zip(study.layers, study.data["most_attended"].values, strict=True):
        order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
        top = tuple((names[k], counts[k] / study.texts, int(counts[k])) for k in order[:MAX_TOKENS])
        others = order[MAX_TOKENS:]
        rows.append(LayerTokens(layer, top, len(others), sum(int(counts[k]) for k in others) / study.texts))
    return rows


def build_receiver_bars(study: Study) -> list[Bar]:
    """Return a bar for each layer and one for evenly spread attention; an empty list if the study lacks them."""
    if "attention_received_share" not in study.data:
        return []
    names = [str(name) for name in study.data["receiver"].values]
    spread = study.data["attention_spread"].values
    shares = study.data["attention_received_share"].values
    even = spread / spread.sum() if spread.sum() else np.full(len(names), np.nan)
    if study.has_images:  # images have no separators
        even, shares = (np.where(np.isin(names, SEPARATORS), np.nan, values) for values in (even, shares))
    bars = [
        Bar(f"L{layer}", _build_parts(names, row.tolist())) for layer, row in zip(study.layers, shares, strict=True)
    ]
    return [*bars, Bar("even", _build_parts(names, even.tolist()), baseline=True)]


def _build_parts(names: list[str], shares: list[float]) -> tuple[Part, ...]:
    colours = [RECEIVERS[k % len(RECEIVERS)] for k in range(len(names))]
    return tuple(
        Part(name, share, background, pick_text_color(background))
        for name, share, background in zip(names, shares, colours, strict=True)
        if math.isfinite(share)
    )

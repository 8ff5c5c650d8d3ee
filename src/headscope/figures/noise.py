"""Signal and noise of heads (ours, docs/noise.md): a map of all heads, how they are spread, and layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headscope.figures.distributions import PERCENT
from headscope.figures.selection import Numbers, heads_of, layers_of
from headscope.figures.style import (
    BLACK,
    DASHED,
    DOUBLE,
    FONT,
    GREY,
    MAP,
    ORANGE,
    SKY,
    VERMILION,
    heading,
    note,
    plain_ticks,
    styled,
)
from headscope.studies import noise
from headscope.studies.result import Study
from headscope.types import Floats

LINE: dict[str, Any] = {"linewidth": 1.0, "marker": ".", "markersize": 2.5}
"""marked, so that a single layer is seen"""
SOURCES = {"equal tokens": VERMILION, "one sentence": SKY, "neighbours": ORANGE}


def signal_and_noise(study: Study, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Signal-to-noise of every head; over heads; over layers; and where the signal comes from."""
    chosen = study.select(layers_of(study, layers, study.layers), heads_of(study, heads, study.heads))
    ratios, shares = chosen.signal_to_noise().values, noise.shares(chosen.data).values
    with styled():
        figure = Figure(figsize=(DOUBLE, 1.5 + min(3.0, 0.15 * len(chosen.layers))), layout="constrained")
        widths = [1.5, 0.8, 1, 1]
        table, spread, course, sources = figure.subplots(1, 4, width_ratios=widths)
        for axes in (table, spread, course, sources):
            plain_ticks(axes)
        if not np.isfinite(ratios).any():
            _nothing((table, spread, course, sources))
            return figure
        _map(figure, table, chosen, ratios)
        _spread(spread, ratios)
        _course(course, chosen, ratios)
        _sources(sources, chosen, shares)
    return figure


def _nothing(panels: tuple[Axes, ...]) -> None:
    """No text was in the sample, or all were too short."""
    for axes, name in zip(panels, ("signal-to-noise", "heads", "by layer", "what it is of"), strict=True):
        heading(axes, name)
        note(axes, "not measured")
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].set_xlabel("head")
    panels[0].set_ylabel("layer")
    panels[1].set_xlabel("heads")


def _map(figure: Figure, axes: Axes, study: Study, ratios: Floats) -> None:
    heading(axes, "signal-to-noise", "dB")
    axes.set_facecolor(GREY)
    low = min(0.0, float(np.nanmin(ratios, initial=0)))
    image = axes.imshow(ratios, cmap=MAP, vmin=low, vmax=max(1.0, float(np.nanmax(ratios, initial=1))), aspect="auto")
    _numbered(axes, study.layers, "y")
    _numbered(axes, study.heads, "x")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    bar = figure.colorbar(image, ax=axes, fraction=0.06, pad=0.02, aspect=20 if len(study.layers) <= 12 else 45)
    bar.outline.set_visible(False)
    plain_ticks(bar.ax)


def _spread(axes: Axes, ratios: Floats) -> None:
    found = ratios[np.isfinite(ratios)]
    heading(axes, "heads", f"median {np.median(found):.1f}")
    edges = np.linspace(min(0.0, found.min()), max(1.0, found.max()), 21)
    axes.hist(found, bins=edges.tolist(), orientation="horizontal", color=SKY)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.axhline(0, color=VERMILION, linewidth=1.0, linestyle=DASHED)
    axes.set_xlabel("heads")
    axes.set_ylabel("dB")


def _course(axes: Axes, study: Study, ratios: Floats) -> None:
    """The heads of each layer as points, and their median as a line."""
    heading(axes, "by layer", "dB")
    for column in ratios.T:
        axes.plot(study.layers, column, ".", color=SKY, markersize=2.5, markeredgewidth=0)
    alive = np.isfinite(ratios).any(axis=1)
    places = np.array(study.layers)[alive]
    axes.plot(places, np.nanmedian(ratios[alive], axis=1), color=BLACK, **LINE)
    axes.axhline(0, color=VERMILION, linewidth=1.0, linestyle=DASHED)
    _layers(axes, study)


def _sources(axes: Axes, study: Study, shares: Floats) -> None:
    """By how much outputs are nearer to each other where tokens share something, the median head of each layer."""
    heading(axes, "what it is of", "% nearer")
    for k, (name, colour) in enumerate(SOURCES.items()):
        held = shares[..., k] * PERCENT
        alive = np.isfinite(held).any(axis=1)
        places = np.array(study.layers)[alive]
        axes.plot(places, np.nanmedian(held[alive], axis=1), color=colour, label=name, **LINE)
    axes.axhline(0, color=BLACK, linewidth=0.5)
    _layers(axes, study)
    axes.legend(frameon=False, fontsize=FONT, handlelength=1.2, labelspacing=0.2)


def _layers(axes: Axes, study: Study) -> None:
    axes.set_xlabel("layer")
    axes.set_xlim(study.layers[0] - 0.5, study.layers[-1] + 0.5)
    axes.set_xticks(study.layers[:: max(1, -(-len(study.layers) // 6))])


def _numbered(axes: Axes, names: list[int], side: str) -> None:
    """Ticks at as many rows or columns as there is room for."""
    step = max(1, -(-len(names) // 12))
    places = list(range(0, len(names), step))
    set_ticks = axes.set_yticks if side == "y" else axes.set_xticks
    set_ticks(places, [str(names[k]) for k in places])

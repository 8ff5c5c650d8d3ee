"""Signal shares of heads (not in the paper, see docs/noise.md): by head, their distribution, and by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from headscope.array_types import Floats
from headscope.figures.distributions import PERCENT
from headscope.figures.selection import Selection, select_heads, select_layers
from headscope.figures.style import (
    BLACK,
    COLORMAP,
    DASHED,
    DOUBLE_COLUMN,
    FONT_SIZE,
    GRAY,
    ORANGE,
    SKY,
    VERMILION,
    Figure,
    style_ticks,
    styled,
    write_heading,
    write_note,
)
from headscope.studies import signal_shares
from headscope.studies.result import Study

LINE_STYLE: dict[str, Any] = {"linewidth": 1.0, "marker": ".", "markersize": 2.5}
"""with markers, so that a single layer is visible"""
SOURCE_COLORS = (VERMILION, SKY, ORANGE)
EQUAL_NOISE = 50.0
"""percent: as much signal as noise"""


def draw_signal_and_noise(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw signal shares of heads, their distribution, their course over layers, and the relations they consist of."""
    selected = study.select(select_layers(study, layers, study.layers), select_heads(study, heads, study.head_numbers))
    shares = selected.signal_shares() * PERCENT
    signal = shares["signal_share"].values
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 1.5 + min(3.0, 0.15 * len(selected.layers))), layout="constrained")
        widths = [1.5, 0.8, 1, 1]
        map_axes, histogram_axes, layer_axes, source_axes = figure.subplots(1, 4, width_ratios=widths)
        for axes in (map_axes, histogram_axes, layer_axes, source_axes):
            style_ticks(axes)
        if not np.isfinite(signal).any():
            _draw_empty_panels((map_axes, histogram_axes, layer_axes, source_axes))
            return figure
        _draw_share_map(figure, map_axes, selected, signal)
        _draw_share_histogram(histogram_axes, signal)
        _draw_shares_by_layer(layer_axes, selected, signal, shares["position_share"].values)
        _draw_relations(source_axes, selected, shares["relation_share"].values)
    return figure


def _draw_empty_panels(panels: tuple[Axes, ...]) -> None:
    """Draw panels without data: no text was in the sample, or all were too short."""
    for axes, name in zip(panels, ("signal share", "heads", "by layer", "relations"), strict=True):
        write_heading(axes, name)
        write_note(axes, "not measured")
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].set_xlabel("head")
    panels[0].set_ylabel("layer")
    panels[1].set_xlabel("heads")


def _draw_share_map(figure: Figure, axes: Axes, study: Study, signal: Floats) -> None:
    write_heading(axes, "signal share", "%")
    axes.set_facecolor(GRAY)
    image = axes.imshow(signal, cmap=COLORMAP, vmin=0, vmax=max(1.0, float(np.nanmax(signal))), aspect="auto")
    _set_number_ticks(axes, study.layers, "y")
    _set_number_ticks(axes, study.head_numbers, "x")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    bar = figure.colorbar(image, ax=axes, fraction=0.06, pad=0.02, aspect=20 if len(study.layers) <= 12 else 45)
    bar.outline.set_visible(False)
    style_ticks(bar.ax)


def _draw_share_histogram(axes: Axes, signal: Floats) -> None:
    finite = signal[np.isfinite(signal)]
    write_heading(axes, "heads", f"median {np.median(finite):.0f} %")
    edges = np.linspace(min(0.0, finite.min()), max(100.0, finite.max()), 21)
    axes.hist(finite, bins=edges.tolist(), orientation="horizontal", color=SKY)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.axhline(EQUAL_NOISE, color=VERMILION, linewidth=1.0, linestyle=DASHED)
    axes.set_xlabel("heads")
    axes.set_ylabel("%")


def _draw_shares_by_layer(axes: Axes, study: Study, signal: Floats, position: Floats) -> None:
    """Draw the heads of each layer as points, and the medians of signal and position shares as lines."""
    write_heading(axes, "by layer", "%")
    for column in signal.T:
        axes.plot(study.layers, column, ".", color=SKY, markersize=2.5, markeredgewidth=0)
    for values, color in ((signal, BLACK), (position, GRAY)):
        measured = np.isfinite(values).any(axis=1)
        layers = np.array(study.layers)[measured]
        axes.plot(layers, np.nanmedian(values[measured], axis=1), color=color, **LINE_STYLE)
    axes.axhline(EQUAL_NOISE, color=VERMILION, linewidth=1.0, linestyle=DASHED)
    _set_layer_axis(axes, study)


def _draw_relations(axes: Axes, study: Study, shares: Floats) -> None:
    """Draw the share of each relation (layers, heads, sources) in the median head of each layer."""
    write_heading(axes, "relations", "%")
    for k, (name, color) in enumerate(zip(signal_shares.SOURCES, SOURCE_COLORS, strict=True)):
        values = shares[..., k]
        measured = np.isfinite(values).any(axis=1)
        layers = np.array(study.layers)[measured]
        axes.plot(layers, np.nanmedian(values[measured], axis=1), color=color, label=name, **LINE_STYLE)
    axes.axhline(0, color=BLACK, linewidth=0.5)
    _set_layer_axis(axes, study)
    axes.legend(frameon=False, fontsize=FONT_SIZE, handlelength=1.2, labelspacing=0.2)


def _set_layer_axis(axes: Axes, study: Study) -> None:
    axes.set_xlabel("layer")
    axes.set_xlim(study.layers[0] - 0.5, study.layers[-1] + 0.5)
    axes.set_xticks(study.layers[:: max(1, -(-len(study.layers) // 6))])


def _set_number_ticks(axes: Axes, numbers: list[int], axis: str) -> None:
    """Set ticks at evenly spaced rows or columns, at most twelve of them."""
    step = max(1, -(-len(numbers) // 12))
    positions = list(range(0, len(numbers), step))
    set_ticks = axes.set_yticks if axis == "y" else axes.set_xticks
    set_ticks(positions, [str(numbers[k]) for k in positions])

"""Figures of all heads: their types and their signal shares.

Maps of the types of heads, layers down and heads across, one for each part of the type.

Every cell has a letter: nothing is told by colour alone.

Signal shares of heads (not in the paper, see docs/noise.md): by head, their distribution, and by layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from headscope.array_types import Floats
from headscope.figures.distributions import PERCENT
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
    Selection,
    label_layers_and_heads,
    select_heads,
    select_layers,
    style_ticks,
    styled,
    write_heading,
    write_note,
)
from headscope.studies import signal_shares
from headscope.studies.head_types import PARTS, TypePart, count_heads
from headscope.studies.result import Study

TYPE_COLORS = {
    "attends": (
        "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#A5D8C3", "#CC79A7", "#7B4A9E", "#F0E442", "#E2E3E7",
        "#B3B8C0", "#4B505A", "#FFFFFF",
    ),
    "writes": (
        "#D55E00", "#0072B2", "#56B4E9", "#F0C419", "#CC79A7", "#E2E3E7", "#4B505A", "#B3B8C0", "#FFFFFF",
    ),
}  # fmt: skip
"""of the types of each part, as in the report: heads with a preference in hues, the others in greys"""
DARK = ("#D55E00", "#0072B2", "#009E73", "#7B4A9E", "#4B505A")
"""colours on which a letter is white"""
MAX_LETTERS = 40
"""number of layers or heads above which cells are too small for letters"""
MAX_HEADS_SIDE_BY_SIDE = 16
"""number of heads above which the two maps are drawn one below the other"""


def draw_head_types(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw a map of each part of the types of heads, and the number of heads of each type."""
    shown = study.select(select_layers(study, layers, study.layers), select_heads(study, heads, study.head_numbers))
    table = shown.heads()
    is_wide = len(shown.head_numbers) > MAX_HEADS_SIDE_BY_SIDE
    height = 0.9 + min(0.14 * len(shown.layers), 6.0)
    with styled():
        figure = Figure(figsize=(DOUBLE_COLUMN, 2 * height if is_wide else height + 0.35), layout="constrained")
        parts = figure.subfigures(*((2, 1) if is_wide else (1, 2)), squeeze=False).ravel()
        for subfigure, part in zip(parts, PARTS.values(), strict=True):
            axes = subfigure.subplots()
            _draw_map(axes, shown, table, part)
            subfigure.supxlabel("head")
            subfigure.supylabel("layer")
            counts = count_heads(table, part.name)
            handles = [
                Patch(facecolor=color, label=f"{kind.letter}  {kind.name} ({counts[kind.name]:,})")
                for kind, color in zip(part.types, TYPE_COLORS[part.name], strict=True)
                if counts[kind.name]
            ]
            subfigure.legend(
                handles=handles,
                title=part.label,
                loc="outside upper center",
                ncols=4 if is_wide else 2,
                frameon=False,
                handlelength=1.2,
            )
    return figure


def _draw_map(axes: Axes, study: Study, table: pd.DataFrame, part: TypePart) -> None:
    shape = len(study.layers), len(study.head_numbers)
    colors = TYPE_COLORS[part.name]
    types = np.full(shape, np.nan)  # where a layer lacks a head
    for layer, number, name in table[["layer", "head_number", part.column]].itertuples(index=False):
        types[study.layers.index(layer), study.head_numbers.index(number)] = part.names.index(name)
    colormap = ListedColormap(colors)
    axes.imshow(types, cmap=colormap, vmin=-0.5, vmax=len(colors) - 0.5, aspect="auto", interpolation="none")
    if max(shape) <= MAX_LETTERS:
        for row, column in np.argwhere(~np.isnan(types)):
            number = int(types[row, column])
            ink = "white" if colors[number] in DARK else "black"
            letter = part.types[number].letter
            axes.text(column, row, letter, color=ink, ha="center", va="center", fontsize=FONT_SIZE)
    style_ticks(axes)
    label_layers_and_heads(axes, study.layers, study.head_numbers, 12)


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

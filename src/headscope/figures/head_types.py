"""Maps of the types of heads, layers down and heads across, one for each part of the type.

Every cell has a letter: nothing is told by colour alone.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from headscope.figures.selection import Selection, select_heads, select_layers
from headscope.figures.style import (
    DOUBLE_COLUMN,
    FONT_SIZE,
    Figure,
    label_layers_and_heads,
    style_ticks,
    styled,
)
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

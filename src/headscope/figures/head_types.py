"""Map of the types of heads, layers down and heads across. Every cell has a letter: nothing is told by colour alone."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from headscope.figures.selection import Selection, select_heads, select_layers
from headscope.figures.style import (
    DOUBLE_COLUMN,
    FONT_SIZE,
    SINGLE_COLUMN,
    Figure,
    label_layers_and_heads,
    style_ticks,
    styled,
)
from headscope.studies.head_types import LETTERS, NAMES, count_heads
from headscope.studies.result import Study

HEAD_TYPE_COLORS = ("#D55E00", "#0072B2", "#56B4E9", "#F0C419", "#CC79A7", "#E2E3E7", "#4B505A", "#B3B8C0", "#FFFFFF")
"""of head types, as in the report: heads with a preference in hues, the others in greys"""
DARK = ("#D55E00", "#0072B2", "#4B505A")
"""colours on which a letter is white"""
MAX_LETTERS = 40
"""number of layers or heads above which cells are too small for letters"""


def draw_head_types(study: Study, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw a map with the type of each head, and the number of heads of each type."""
    shown = study.select(select_layers(study, layers, study.layers), select_heads(study, heads, study.head_numbers))
    table = shown.heads()
    shape = len(shown.layers), len(shown.head_numbers)
    types = np.full(shape, np.nan)  # where a layer lacks a head
    for layer, number, name in table[["layer", "head_number", "head_type"]].itertuples(index=False):
        types[shown.layers.index(layer), shown.head_numbers.index(number)] = NAMES.index(name)
    columns = 4 if shape[1] > 16 else 2
    with styled():
        width = DOUBLE_COLUMN if shape[1] > 16 else SINGLE_COLUMN
        figure = Figure(figsize=(width, 0.9 + min(0.14 * shape[0], 6.0)), layout="constrained")
        axes = figure.subplots()
        colormap = ListedColormap(HEAD_TYPE_COLORS)
        axes.imshow(types, cmap=colormap, vmin=-0.5, vmax=len(NAMES) - 0.5, aspect="auto", interpolation="none")
        if max(shape) <= MAX_LETTERS:
            for row, column in np.argwhere(~np.isnan(types)):
                number = int(types[row, column])
                ink = "white" if HEAD_TYPE_COLORS[number] in DARK else "black"
                axes.text(column, row, LETTERS[number], color=ink, ha="center", va="center", fontsize=FONT_SIZE)
        figure.supxlabel("head")
        figure.supylabel("layer")
        style_ticks(axes)
        label_layers_and_heads(axes, shown.layers, shown.head_numbers, 12)
        counts = count_heads(table)
        handles = [
            Patch(facecolor=color, label=f"{letter}  {name} ({counts[name]:,})")
            for name, letter, color in zip(NAMES, LETTERS, HEAD_TYPE_COLORS, strict=True)
            if counts[name]
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, handlelength=1.2)
    return figure

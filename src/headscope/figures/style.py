"""Style of all figures: sizes, colours, and grids of panels.

A figure is one journal column wide where possible. Every figure is drawn and written inside `styled`, which starts from
matplotlib's defaults and restores the user's settings afterwards: neither affects the other.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as PlainFigure
from matplotlib.ticker import FixedLocator, FuncFormatter

from headscope.array_types import Floats

Cell = tuple[int, int]
"""row and column in a grid"""

SINGLE_COLUMN = 3.5
"""inches: the width of one journal column"""
DOUBLE_COLUMN = 7.0
"""inches: the width of a page of two columns"""
FONT_SIZE = 6.0
"""points: the smallest text"""
LABEL_SIZE = 6.5
"""points: axis labels and legends"""

# Okabe and Ito's colours: distinguishable with any common colour vision deficiency
BLACK = "#000000"
SKY = "#56B4E9"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
GRAY = "#D9D9D9"
"""for cells of a map without a value"""
COLORMAP = "viridis"
DASHED = (0, (3, 2))
"""line style of chance levels"""

RC_PARAMS: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so it is on every machine
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.titlepad": 2.0,
    "axes.titley": 1.0,  # on top of the panel; otherwise matplotlib computes it each time a panel is drawn
    "axes.labelsize": LABEL_SIZE,
    "axes.labelpad": 2.0,
    "figure.labelsize": LABEL_SIZE,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "legend.fontsize": LABEL_SIZE,
    "text.hinting": "no_hinting",  # words are as wide in dots as they are in print
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 150,
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
    "figure.constrained_layout.hspace": 0.02,
    "figure.constrained_layout.wspace": 0.02,
    "svg.fonttype": "none",
    "svg.hashsalt": "headscope",  # otherwise ids differ from run to run
    "pdf.fonttype": 42,
}


@contextmanager
def styled() -> Iterator[None]:
    """Use the figures' style within this block only."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC_PARAMS)
        yield


class Figure(PlainFigure):
    """A figure that shows itself in a notebook, even where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with styled():
            self.savefig(buffer, format="png")
        return buffer.getvalue()


def make_head_grid(blocks: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel per head.

    Args:
        blocks: Number of heads of each block (layer); each block starts on a new row.
    """
    if max(blocks) == 1:
        blocks = [len(blocks)]
    wide = sum(blocks) > 12
    columns = min(max(blocks), 6 if wide else 3)
    one_row = max(blocks) <= columns and len(blocks) == 1
    return make_grid(
        blocks, columns, DOUBLE_COLUMN if wide else SINGLE_COLUMN, 0.92 if not one_row else 1.4 if columns > 1 else 1.7
    )


def make_layer_grid(layers: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with one panel per layer: below each other up to four layers, else in three columns."""
    wide = layers > 4
    return make_grid([layers], 3 if wide else 1, DOUBLE_COLUMN if wide else SINGLE_COLUMN, 1.7 if layers == 1 else 1.1)


def make_grid(blocks: Sequence[int], columns: int, width: float, panel_height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels in reading order; the panels share their axes."""
    cells = list_cells(blocks, columns)
    figure = Figure(figsize=(width, (cells[-1][0] + 1) * panel_height + 0.5), layout="constrained")
    return figure, list(make_cell_axes(figure, cells, columns).values())


def make_cell_axes(figure: Figure, cells: Sequence[Cell], columns: int) -> dict[Cell, Axes]:
    """Create axes in these cells only, and label ticks below the last cell of each column."""
    rows = cells[-1][0] + 1
    all_axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = {cell: all_axes[cell] for cell in cells}
    for row in range(rows):
        for column in range(columns):
            if (row, column) not in axes:
                all_axes[row, column].remove()
    for cell in cells:
        style_ticks(axes[cell])
    for column in range(columns):
        axes[max(cell for cell in cells if cell[1] == column)].tick_params(axis="x", labelbottom=True)
    return axes


def list_cells(blocks: Sequence[int], columns: int) -> list[Cell]:
    """Return the cell of each panel; each block of panels starts on a new row."""
    cells, first_row = [], 0
    for size in blocks:
        cells += [(first_row + k // columns, k % columns) for k in range(size)]
        first_row += -(-size // columns)
    return cells


def label_layers_and_heads(axes: Axes, layers: Sequence[int], heads: Sequence[int], most: int) -> None:
    """Label rows of a map by layers and columns by heads, at most so many of each."""
    for axis, numbers in ((axes.xaxis, heads), (axes.yaxis, layers)):
        step = max(1, -(-len(numbers) // most))
        axis.set_ticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])


def style_ticks(axes: Axes) -> None:
    """Set the style of ticks on the axes: matplotlib creates ticks late, perhaps outside of `styled`."""
    axes.tick_params(labelsize=FONT_SIZE, width=0.5, length=2, pad=1.5, labelfontfamily="sans-serif")


def write_heading(axes: Axes, name: str, detail: str = "") -> None:
    """Write the panel's name (left) and a detail such as its mean (right) above the panel."""
    axes.set_title(name, loc="left", fontsize=FONT_SIZE, fontweight="bold")
    axes.set_title(detail, loc="right", fontsize=FONT_SIZE)


def write_note(axes: Axes, text: str) -> None:
    """Write text in the middle of a panel without data."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=FONT_SIZE)


def set_root_scale(panels: Sequence[Axes], max_share: float) -> None:
    """Set a square-root y axis for shares in percent, after Tukey's rootogram.

    Low bars stay visible beside tall ones, and the sampling error of a count has the same height everywhere.
    """
    top = 1.05 * max_share if max_share > 0 else 1.0
    ticks, last_height = [0.0], np.inf
    for tick in (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        height = np.sqrt(tick / top)
        if height <= 1 and min(height, last_height - height) >= 0.22:
            ticks.append(tick)
            last_height = height
    for axes in panels:
        axes.set_yscale("function", functions=(_compute_signed_root, _compute_signed_square))
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].set_ylim(0, top)


def _compute_signed_root(values: Floats) -> Floats:
    # matplotlib also passes values below the axis
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _compute_signed_square(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.square(values))


def draw_legend(figure: Figure, panels: Sequence[Axes], labels: Sequence[str]) -> None:
    """Draw one legend for the figure: the first artist of any panel for each of these labels, in this order."""
    artists: dict[str, Any] = {}
    for axes in panels:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            artists.setdefault(str(label), artist)
    shown = {label: artists[label] for label in labels if label in artists}
    if shown:
        figure.legend(
            list(shown.values()),
            list(shown),
            loc="outside upper center",
            ncols=len(shown),
            frameon=False,
            handlelength=1.6,
            columnspacing=1.2,
            borderaxespad=0.2,
        )

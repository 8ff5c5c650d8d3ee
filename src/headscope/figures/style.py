"""How the figures look: sizes, colours, and the grids of panels they are laid out on.

A figure is one journal column wide where it can be. Nothing global is changed: every figure is drawn and written inside
`styled`, which starts from matplotlib's own defaults, so that a user's settings do not show in the figures either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from headscope.types import Floats

Cell = tuple[int, int]
"""row and column in a grid"""

SINGLE = 3.5
"""inches: the width of one journal column"""
DOUBLE = 7.0
"""inches: the width of a page of two columns"""
FONT = 6.0
"""points: the smallest text"""
LABEL = 6.5

# Okabe and Ito's colours, which people with any common colour vision can tell apart
BLACK = "#000000"
SKY = "#56B4E9"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
GREY = "#D9D9D9"
"""where a map holds nothing"""
MAP = "viridis"
DASHED = (0, (3, 2))
"""the line of every chance level"""

RC: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so it is on every machine
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.titlepad": 2.0,
    "axes.titley": 1.0,  # on top of the panel; otherwise it is looked for anew every time a panel is drawn
    "axes.labelsize": LABEL,
    "axes.labelpad": 2.0,
    "figure.labelsize": LABEL,
    "xtick.labelsize": FONT,
    "ytick.labelsize": FONT,
    "legend.fontsize": LABEL,
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
    """The figures' style, within this block only."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def head_label(layer: int, head: int) -> str:
    """As heads are written everywhere: L11H8."""
    return f"L{layer}H{head}"


def head_grid(blocks: Sequence[int]) -> tuple[Figure, list[Axes]]:
    """Small multiples, one panel a head, for blocks (layers) of so many heads; each block starts on a new row."""
    if max(blocks) == 1:
        blocks = [len(blocks)]
    wide = sum(blocks) > 12
    columns = min(max(blocks), 6 if wide else 3)
    one_row = max(blocks) <= columns and len(blocks) == 1
    return grid(blocks, columns, DOUBLE if wide else SINGLE, 0.92 if not one_row else 1.4 if columns > 1 else 1.7)


def layer_grid(layers: int) -> tuple[Figure, list[Axes]]:
    """One panel a layer: under each other while they fit a page."""
    wide = layers > 4
    return grid([layers], 3 if wide else 1, DOUBLE if wide else SINGLE, 1.7 if layers == 1 else 1.1)


def grid(blocks: Sequence[int], columns: int, width: float, panel_height: float) -> tuple[Figure, list[Axes]]:
    """Panels that share their axes, in reading order."""
    cells = places(blocks, columns)
    figure = Figure(figsize=(width, (cells[-1][0] + 1) * panel_height + 0.5), layout="constrained")
    return figure, list(cell_table(figure, cells, columns).values())


def cell_table(figure: Figure, cells: Sequence[Cell], columns: int) -> dict[Cell, Axes]:
    """Axes in these cells and no others; ticks are labelled at the foot of every column."""
    rows = cells[-1][0] + 1
    table = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = {cell: table[cell] for cell in cells}
    for row in range(rows):
        for column in range(columns):
            if (row, column) not in axes:
                table[row, column].remove()
    for cell in cells:
        plain_ticks(axes[cell])
    for column in range(columns):
        axes[max(cell for cell in cells if cell[1] == column)].tick_params(axis="x", labelbottom=True)
    return axes


def places(blocks: Sequence[int], columns: int) -> list[Cell]:
    """The cell of every panel, where each block starts on a new row."""
    cells, first = [], 0
    for size in blocks:
        cells += [(first + k // columns, k % columns) for k in range(size)]
        first += -(-size // columns)
    return cells


def plain_ticks(axes: Axes) -> None:
    """Sizes stated on the axes themselves: ticks are made late, perhaps after the style has been left."""
    axes.tick_params(labelsize=FONT, width=0.5, length=2, pad=1.5, labelfontfamily="sans-serif")


def heading(axes: Axes, name: str, words: str = "") -> None:
    """The panel's name, and what there is to say of it, above the panel."""
    axes.set_title(name, loc="left", fontsize=FONT, fontweight="bold")
    axes.set_title(words, loc="right", fontsize=FONT)


def note(axes: Axes, words: str) -> None:
    """Words in the middle of a panel that has nothing to draw."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=FONT)


def root_scale(panels: Sequence[Axes], largest: float) -> None:
    """A square-root y axis for shares in percent, after Tukey's rootogram.

    Tall bars leave room for low ones, and the chance variation of a count is equally high everywhere.
    """
    top = 1.05 * largest if largest > 0 else 1.0
    ticks, last = [0.0], np.inf
    for tick in (100, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01):
        at = np.sqrt(tick / top)
        if at <= 1 and min(at, last - at) >= 0.22:
            ticks.append(tick)
            last = at
    for axes in panels:
        axes.set_yscale("function", functions=(_signed_root, _signed_square))
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].set_ylim(0, top)


def _signed_root(values: Floats) -> Floats:
    # matplotlib also asks for values below the axis
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _signed_square(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.square(values))


def legend(figure: Figure, panels: Sequence[Axes], order: Sequence[str]) -> None:
    """One legend for the figure: whatever bears these labels in any of its panels, once."""
    found: dict[str, Any] = {}
    for axes in panels:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(str(label), artist)
    there = {label: found[label] for label in order if label in found}
    if there:
        figure.legend(
            list(there.values()),
            list(there),
            loc="outside upper center",
            ncols=len(there),
            frameon=False,
            handlelength=1.6,
            columnspacing=1.2,
            borderaxespad=0.2,
        )

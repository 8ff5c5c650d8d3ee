"""Style of all figures, the panels they show, and their files.

A figure is one journal column wide where possible. Every figure is drawn and written inside `styled`, which starts from
matplotlib's defaults and restores the user's settings afterwards: neither affects the other.

Layers and heads that a figure shows: those requested, else the paper's, else their nearest counterparts.

Write figures to files and as SVG text; the same study gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as PlainFigure
from matplotlib.ticker import FixedLocator, FuncFormatter

from headscope.array_types import Floats
from headscope.errors import SelectionError, StudyError
from headscope.file_io import create_folder
from headscope.head_selection import Numbers, select_grid
from headscope.studies.result import Study

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


Selection = Numbers
"""requested layers or heads: one, several, or None for the figure's default"""


class LayeredSource(Protocol):
    """Anything with numbered layers and heads: a study, or a reading of one text."""

    @property
    def layers(self) -> list[int]: ...

    @property
    def head_numbers(self) -> list[int]: ...

    def select(self, layers: Selection = None, heads: Selection = None) -> LayeredSource:
        """Return only these layers and heads; raise an error if one does not exist."""


def resolve_selections(
    source: LayeredSource, layers: str | Selection, heads: str | Selection
) -> tuple[Selection, Selection]:
    """Return the numbers of layers and heads that are selected by name; numbers are returned as they are."""
    return select_grid(layers, heads, source.layers, source.head_numbers, f"the {type(source).__name__.lower()}")


def select_layers(source: LayeredSource, requested: Selection, default: list[int]) -> list[int]:
    """Return the requested layers without repetitions, in their order, or the default if None."""
    return default if requested is None else _refuse_empty("layers", source.select(layers=requested).layers)


def select_heads(source: LayeredSource, requested: Selection, default: list[int]) -> list[int]:
    """Return the requested heads without repetitions, in their order, or the default if None."""
    if isinstance(requested, str):  # a name such as L3H7 selects a layer too
        raise SelectionError(f"heads {requested!r}: this function takes numbers; headscope.figures.draw takes names")
    return default if requested is None else _refuse_empty("heads", source.select(heads=requested).head_numbers)


def get_last_layer(source: LayeredSource) -> list[int]:
    """Return the last layer, as a list."""
    return source.layers[-1:]


def choose_early_to_late(source: LayeredSource) -> list[int]:
    """Return the paper's layers 1, 6, 11 of twelve; of any other number the first, the middle one and the last."""
    layers = source.layers
    if len(layers) == 12:
        return [layers[k] for k in (1, 6, 11)]
    return _remove_duplicates([layers[0], layers[len(layers) // 2], layers[-1]])


def choose_early_to_last_two(source: LayeredSource) -> list[int]:
    """Return the paper's layers 1, 6, 10, 11 of twelve; of any other number the first, the middle one, the last two."""
    layers = source.layers
    if len(layers) == 12:
        return [layers[k] for k in (1, 6, 10, 11)]
    return sorted(_remove_duplicates([layers[0], layers[len(layers) // 2], *layers[-2:]]), key=layers.index)


def choose_paper_heads(source: LayeredSource) -> list[int]:
    """Return the paper's heads 2 and 8; if one of them does not exist, the first and the last."""
    heads = source.head_numbers
    return [2, 8] if {2, 8} <= set(heads) else _remove_duplicates([heads[0], heads[-1]])


def choose_exemplary_head(source: LayeredSource) -> list[int]:
    """Return the paper's head 8; if it does not exist, the last."""
    return [8] if 8 in source.head_numbers else source.head_numbers[-1:]


def choose_exemplary_heads(source: LayeredSource) -> list[int]:
    """Return the paper's heads 5, 7 and 8; if one of them does not exist, the first, the middle one and the last."""
    heads = source.head_numbers
    return [5, 7, 8] if {5, 7, 8} <= set(heads) else _remove_duplicates([heads[0], heads[len(heads) // 2], heads[-1]])


def require_variables(study: Study, figure: str, variables: Iterable[str]) -> None:
    """Raise `StudyError` if a study lacks variables, which are counted over all heads of a layer.

    Studies of selected heads do not contain them.
    """
    missing = [name for name in variables if name not in study.data]
    if missing:
        raise StudyError(
            f"{figure} is counted over all heads of a layer, and a study of selected heads no longer holds "
            f"{', '.join(missing)}: draw it from the whole study"
        )


def _refuse_empty(kind: str, numbers: list[int]) -> list[int]:
    if not numbers:
        raise StudyError(f"no {kind} to draw: the list given is empty")
    return _remove_duplicates(numbers)


def _remove_duplicates(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


FORMATS = ("png", "svg", "pdf")
DPI = 300
"""dots per inch of PNG files, and of images inside SVG and PDF files"""
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""metadata by format: without dates, so that files do not depend on the time of drawing"""


def save(figure: PlainFigure, folder: str | Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as `folder/name.png`, `.svg` and `.pdf`, and return the paths; create the folder if needed."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    paths = [Path(folder) / f"{name}.{kind}" for kind in formats]
    with create_folder(Path(folder), StudyError):
        for kind, path in zip(formats, paths, strict=True):
            try:
                path.write_bytes(_render_figure(figure, kind))
            except OSError as error:
                raise StudyError(f"{path}: cannot be written: {error.strerror or error}") from None
    return paths


def render_svg(figure: PlainFigure) -> str:
    """Return a figure as one `<svg>` element to embed in a page; its text stays text."""
    text = _render_figure(figure, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def _render_figure(figure: PlainFigure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with styled():
        # Laying out the panels takes longer than drawing them and is the same for every format, so do it only once.
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # with "none" a layout engine stays, and matplotlib draws everything twice
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=METADATA[kind])
    return buffer.getvalue()

"""Maps of one text: its attention (Fig. 4), a head's lines and regions (Fig. 5), similarities by layer (Fig. 12).

Everything drawn is what the `Reading` says. Similarities are shown as shares of their largest, C / max(C).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from headscope.figures import text
from headscope.figures.maps import Panel, attention_norm, colour_bar, draw_maps, map_panel
from headscope.figures.selection import (
    Numbers,
    early_to_late,
    exemplary_head,
    heads_of,
    last_layer,
    layers_of,
)
from headscope.figures.style import DOUBLE, SINGLE, Cell, head_label, places, plain_ticks, styled
from headscope.readings.reading import SUM, Head, Reading
from headscope.types import Floats

SIGNED = "RdBu_r"
"""similarities have a sign: red above 0, white at 0, blue below"""
MASK = "#333333"
"""rows and columns of line tokens"""
LINE = text.Look("#fdb462")
"""a line token in the list of tokens"""

PAGE = 9.0
"""inches: as high as a figure may be while it can be helped"""
LEFT, RIGHT, GAP = 0.36, 0.06, 0.08
"""inches beside maps, and between them: on the left stand the numbers and name of the axis"""
INSET = 0.1
"""inches that a bar with numbers at its ends is narrower than its map on either side"""
HEAD, FOOT, BAR = 0.15, 0.28, 0.36
"""inches above a map, for its heading; below it, for its axis; and for a colour bar with its words"""


# -- attention (Fig. 4)


@dataclass(frozen=True)
class _Maps:
    """Where the maps of Fig. 4 stand: row and column of each."""

    width: float
    columns: int
    cells: list[Cell]

    @property
    def side(self) -> float:
        """The width and height of a map."""
        return min((self.width - LEFT - RIGHT - GAP * (self.columns - 1)) / self.columns, 1.8)

    @property
    def height(self) -> float:
        return (self.cells[-1][0] + 1) * (self.side + HEAD) + FOOT + BAR


@dataclass(frozen=True)
class _Page:
    """How the maps and the tokens of Fig. 4 share a page."""

    maps: _Maps
    tokens: text.Columns

    @classmethod
    def of(cls, maps: _Maps, tokens: list[str]) -> _Page:
        most_rows = int((PAGE - maps.height) * text.POINTS / text.PITCH) - 2
        return cls(maps, text.columns(tokens, (maps.width - 2 * RIGHT) * text.POINTS, most_rows))

    @property
    def height(self) -> float:
        return self.maps.height + (self.tokens.rows_used + 2) * text.PITCH / text.POINTS

    @property
    def fits(self) -> bool:
        """Whether it is a page that can be read; one column wide only where the tokens stand as the paper has them."""
        as_printed = self.tokens.rows == 16 and self.tokens.longest == text.LONGEST[0]
        return self.height <= PAGE and self.maps.side >= 1 and (self.maps.width == DOUBLE or as_printed)


def attention_of_text(reading: Reading, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 4: attention maps of a head and of the sum over the layer's heads; the tokens, lines of the last marked."""
    rows = layers_of(reading, layers, early_to_late(reading))
    single = heads_of(reading, heads, exemplary_head(reading))
    one, all_heads = "attention of one head", f"attention, {_sum_of(reading)}"
    blocks = []
    for layer in rows:
        maps = [Panel(head_label(layer, head), reading.attention_map(layer, head).values, one) for head in single]
        summed = reading.attention_map(layer, SUM).values
        blocks.append([*maps, Panel(f"L{layer}", summed, all_heads, "sum of heads")])
    with styled():
        page = _page(reading, len(blocks), len(single) + 1)
        figure = Figure(figsize=(page.maps.width, page.height))
        _attention_maps(figure, [panel for block in blocks for panel in block], page.maps)
        _token_list(figure, reading, rows[-1], page)
    return figure


def _page(reading: Reading, layers: int, maps: int) -> _Page:
    """The layers under each other, as in the paper, where they and the tokens fit a page; else beside each other."""
    tokens = [str(token) for token in reading.tokens.values]
    grids = [_Maps(width, min(maps, 6), places([maps] * layers, min(maps, 6))) for width in (SINGLE, DOUBLE)]
    for across in sorted((2, 3), key=lambda k: layers % k > 0):
        if across * maps <= 6:
            grids.append(_Maps(DOUBLE, across * maps, places([maps * layers], across * maps)))
    pages = [_Page.of(grid, tokens) for grid in grids]
    return next((page for page in pages if page.fits), min(pages[1:], key=lambda page: page.height))


def _attention_maps(figure: Figure, panels: list[Panel], maps: _Maps) -> None:
    step = maps.side + GAP
    left = (maps.width - LEFT - RIGHT - step * maps.columns + GAP) / 2 + LEFT
    lowest = {column: row for row, column in maps.cells}
    drawn: dict[str, list[Axes]] = {}
    for panel, (row, column) in zip(panels, maps.cells, strict=True):
        axes = text.axes_at(figure, left + column * step, row * (maps.side + HEAD) + HEAD, maps.side, maps.side)
        norm = attention_norm(one.values for one in panels if one.scale == panel.scale)
        _map(axes, panel, norm, "key position" * (lowest[column] == row), "query position" * (column == 0))
        drawn.setdefault(panel.scale, []).append(axes)
    half = (step * maps.columns - GAP - 0.12) / 2
    for k, (scale, own) in enumerate(drawn.items()):
        bar = text.axes_at(figure, left + k * (half + 0.12), maps.height - BAR + 0.04, half, 0.06)
        colour_bar(figure, own, scale, cax=bar, orientation="horizontal")


def _token_list(figure: Figure, reading: Reading, layer: int, page: _Page) -> None:
    """The tokens in numbered columns; those that the layer's heads together attend most are marked."""
    wide, high = page.maps.width - 2 * RIGHT, page.height - page.maps.height
    axes = text.sheet(figure, RIGHT, page.maps.height, wide, high)
    lines = {int(position) for position in reading.lines(layer)["index"]}
    sample = "marked"
    text.write(axes, 0, text.PITCH, "tokens", weight="bold")
    text.mark(axes, 30, text.PITCH, text.width(sample), LINE, sample)
    text.write(axes, 30, text.PITCH, sample)
    about = f"lines of L{layer}, {_sum_of(reading)} (τ = {reading.tau:g})"
    text.write(axes, 30 + text.width(sample + " "), text.PITCH, about)
    for position, words in enumerate(page.tokens.words):
        left, row = page.tokens.place(position)
        start, base = left + page.tokens.number, (row + 2.3) * text.PITCH
        if position in lines:
            text.mark(axes, start, base, text.width(words), LINE, f"token {position}")
        # apart from the token, which may be written from right to left
        text.write(axes, start - text.width(" "), base, f"{position}:", ha="right")
        text.write(axes, start, base, words)


# -- lines and regions (Fig. 5)


def lines_and_regions(reading: Reading, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 5: a head's attention map, its similarity matrix, the matrix cut by the attention lines, region averages."""
    cases = [
        (layer, head)
        for layer in layers_of(reading, layers, last_layer(reading))
        for head in heads_of(reading, heads, exemplary_head(reading))
    ]
    columns, width = (2, SINGLE) if len(cases) == 1 else (4, DOUBLE)
    side = width / columns - LEFT - RIGHT
    step = HEAD + side + FOOT + BAR
    panels = [panel for layer, head in cases for panel in _four(reading, layer, head)]
    with styled():
        figure = Figure(figsize=(width, step * len(panels) / columns))
        for k, (panel, norm) in enumerate(panels):
            row, column = divmod(k, columns)
            left, top = column * width / columns + LEFT, row * step + HEAD
            axes = text.axes_at(figure, left, top, side, side)
            names = ("key position", "query position") if panel.colours != SIGNED else ("position j", "position i")
            _map(axes, panel, norm, *names)
            bar = text.axes_at(figure, left + INSET, top + side + FOOT, side - 2 * INSET, 0.06)
            colour_bar(figure, [axes], panel.scale, cax=bar, orientation="horizontal")
    return figure


def _four(reading: Reading, layer: int, head: Head) -> list[tuple[Panel, Normalize]]:
    name = f"L{layer}H{head}"
    attention = reading.attention_map(layer, head).values
    matrix = reading.matrix(layer, head).values
    values, scale = _normalized(matrix), _scale(matrix)
    masked = values.copy()
    lines = reading.lines(layer, head)["index"].to_numpy()
    masked[lines, :] = masked[:, lines] = np.nan
    blocks = reading.blocks(layer, head)
    sizes = (blocks["stop"] - blocks["start"]).to_numpy()
    means = reading.regions(layer, head).values / _unit(matrix)
    spread = np.repeat(np.repeat(means, sizes, axis=0), sizes, axis=1)
    reach = _round_up(float(np.nanmax(np.abs(means), initial=0)))
    return [
        (Panel(name, attention, "attention", "attention map"), attention_norm([attention])),
        (Panel(name, values, scale, "similarity", SIGNED), signed_norm([values])),
        (Panel(name, masked, scale, "lines masked", SIGNED, MASK, ""), signed_norm([values])),
        (Panel(name, spread, f"mean {scale}", "regions", SIGNED, "white"), Normalize(-reach, reach)),
    ]


# -- similarities summed over heads (Fig. 12)


def summed_similarities(reading: Reading, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 12: the similarity matrices of layers, summed over their heads.

    They are summed over all heads of the reading; `heads` is checked and changes nothing.
    """
    heads_of(reading, heads, reading.heads)
    panels = []
    for layer in layers_of(reading, layers, early_to_late(reading)):
        matrix = reading.matrix(layer, SUM).values
        panels.append(Panel(f"L{layer}", _normalized(matrix), _scale(matrix), "sum of heads", SIGNED))
    return draw_maps([panels], "position j", "position i", signed_norm)


# -- what they share


def _map(axes: Axes, panel: Panel, norm: Normalize, across: str, down: str) -> None:
    """A map with its axes; an axis without a name shows no numbers either, being that of the map beside or below."""
    plain_ticks(axes)
    map_panel(axes, panel, norm)
    axes.set_xlabel(across)
    axes.set_ylabel(down)
    axes.tick_params(labelbottom=bool(across), labelleft=bool(down))


def _sum_of(reading: Reading) -> str:
    number = len(reading.heads)
    return f"sum of {number} head{'s' * (number > 1)}"


def _unit(matrix: Floats) -> float:
    """What similarities are shown as shares of: the largest; where none is above 0, the one farthest from it."""
    return float(matrix.max()) if matrix.max() > 0 else float(np.abs(matrix).max()) or 1.0


def _normalized(matrix: Floats) -> Floats:
    return np.asarray(matrix / _unit(matrix))


def _scale(matrix: Floats) -> str:
    return "C / max(C)" if matrix.max() > 0 else "C / max |C|, none above 0"


def _round_up(number: float) -> float:
    """The next number of the row 1, 2, 5, 10, 20, …, as the end of an axis; 1 for 0."""
    if number <= 0:
        return 1.0
    tens = 10.0 ** np.floor(np.log10(number))
    return float(next(tens * k for k in (1, 2, 5, 10) if number <= tens * k * (1 + 1e-9)))


def signed_norm(maps: Iterable[Floats]) -> Normalize:
    """The scale of normalized similarities, 0 in its middle; what is lower still has the lowest colour."""
    return Normalize(-1, 1)

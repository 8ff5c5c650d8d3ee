"""Figures of one text: its maps (Figs. 4, 5 and 12) and its high pairs (Fig. 9).

Maps of one text: its attention (Fig. 4), a head's lines and regions (Fig. 5), similarities by layer (Fig. 12).

All values are those of the `Reading`. Similarities are shown as shares of the largest, C / max(C).

High pairs of one text (Fig. 9): a table for each of some heads, and the text with the tokens in them coloured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from headscope.array_types import Floats
from headscope.figures import text
from headscope.figures.maps import Panel, draw_colorbar, draw_map_panel, draw_maps, make_attention_norm
from headscope.figures.style import (
    BLACK,
    DOUBLE_COLUMN,
    SINGLE_COLUMN,
    Cell,
    Figure,
    Selection,
    choose_early_to_late,
    choose_exemplary_head,
    choose_exemplary_heads,
    get_last_layer,
    list_cells,
    select_heads,
    select_layers,
    style_ticks,
    styled,
)
from headscope.readings.reading import SUM, Head, Reading
from headscope.studies.labels import format_head

SIGNED_COLORMAP = "RdBu_r"
"""of similarities: red above 0, white at 0, blue below"""
MASK_COLOR = "#333333"
"""for rows and columns of line tokens"""
LINE_TOKEN_STYLE = text.TokenStyle("#fdb462")
"""style of line tokens in the list of tokens"""

MAX_PAGE_HEIGHT = 9.0
"""inches: figures are not higher if that can be avoided"""
LEFT_MARGIN, RIGHT_MARGIN, MAP_GAP = 0.36, 0.06, 0.08
"""inches beside maps, and between them; tick labels and axis label are on the left"""
BAR_INSET = 0.1
"""inches by which a colour bar is narrower than its map on either side, as its tick labels extend beyond its ends"""
HEADING_HEIGHT, AXIS_HEIGHT, BAR_HEIGHT = 0.15, 0.28, 0.36
"""inches above a map, for its heading; below it, for its axis; and for a colour bar with its label"""


# -- attention (Fig. 4)


@dataclass(frozen=True)
class _MapGrid:
    """Positions of the maps of Fig. 4."""

    width: float
    columns: int
    cells: list[Cell]
    """row and column of each map"""

    @property
    def side(self) -> float:
        """Width and height of a map, in inches."""
        return min((self.width - LEFT_MARGIN - RIGHT_MARGIN - MAP_GAP * (self.columns - 1)) / self.columns, 1.8)

    @property
    def height(self) -> float:
        return (self.cells[-1][0] + 1) * (self.side + HEADING_HEIGHT) + AXIS_HEIGHT + BAR_HEIGHT


@dataclass(frozen=True)
class _PageLayout:
    """Layout of Fig. 4: its maps, and its tokens below them."""

    maps: _MapGrid
    tokens: text.TokenColumns

    @classmethod
    def fit_tokens(cls, maps: _MapGrid, tokens: list[str]) -> _PageLayout:
        max_rows = int((MAX_PAGE_HEIGHT - maps.height) * text.POINTS_PER_INCH / text.ROW_HEIGHT) - 2
        return cls(maps, text.fit_columns(tokens, (maps.width - 2 * RIGHT_MARGIN) * text.POINTS_PER_INCH, max_rows))

    @property
    def height(self) -> float:
        return self.maps.height + (self.tokens.rows_used + 2) * text.ROW_HEIGHT / text.POINTS_PER_INCH

    @property
    def fits(self) -> bool:
        """Whether the page is legible; a page of one column also needs the tokens as printed in the paper."""
        as_printed = self.tokens.rows == 16 and self.tokens.max_token_width == text.MAX_TOKEN_WIDTHS[0]
        return (
            self.height <= MAX_PAGE_HEIGHT and self.maps.side >= 1 and (self.maps.width == DOUBLE_COLUMN or as_printed)
        )


def draw_attention_of_text(reading: Reading, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 4: attention maps of single heads and of their sum; the tokens, lines of the last layer marked."""
    shown_layers = select_layers(reading, layers, choose_early_to_late(reading))
    shown_heads = {
        layer: select_heads(reading, heads, choose_exemplary_head(reading.select(layer))) for layer in shown_layers
    }
    head_label, sum_label = "attention of one head", f"attention, {_format_sum(reading)}"
    blocks = []
    for layer in shown_layers:
        maps = [
            Panel(format_head(layer, head), reading.attention_map(layer, head).values, head_label)
            for head in shown_heads[layer]
        ]
        summed = reading.attention_map(layer, SUM).values
        blocks.append([*maps, Panel(f"L{layer}", summed, sum_label, "sum of heads")])
    with styled():
        page = _choose_page(reading, len(blocks), len(blocks[0]))
        figure = Figure(figsize=(page.maps.width, page.height))
        _draw_attention_maps(figure, [panel for block in blocks for panel in block], page.maps)
        _draw_token_list(figure, reading, shown_layers[-1], page)
    return figure


def _choose_page(reading: Reading, layers: int, maps: int) -> _PageLayout:
    """Return a layout with layers below each other, as in the paper, if it fits a page; else beside each other."""
    tokens = [token for _, token in _list_tokens(reading)]
    grids = [
        _MapGrid(width, min(maps, 6), list_cells([maps] * layers, min(maps, 6)))
        for width in (SINGLE_COLUMN, DOUBLE_COLUMN)
    ]
    for layers_per_row in sorted((2, 3), key=lambda k: layers % k > 0):
        if (columns := layers_per_row * maps) <= 6:
            grids.append(_MapGrid(DOUBLE_COLUMN, columns, list_cells([maps * layers], columns)))
    pages = [_PageLayout.fit_tokens(grid, tokens) for grid in grids]
    return next((page for page in pages if page.fits), min(pages[1:], key=lambda page: page.height))


def _list_tokens(reading: Reading) -> list[tuple[str, str]]:
    """Return the numbers and tokens to list; in cross-attention first the keys, tokens of the source, then the
    queries, each with a heading."""
    tokens = [(str(k), str(token)) for k, token in enumerate(reading.tokens.values)]
    if not reading.is_cross:
        return tokens
    keys = [(str(k), str(token)) for k, token in enumerate(reading.source_tokens.values)]
    return [("", "[keys]"), *keys, ("", "[queries]"), *tokens]


def _draw_attention_maps(figure: Figure, panels: list[Panel], maps: _MapGrid) -> None:
    step = maps.side + MAP_GAP
    left = (maps.width - LEFT_MARGIN - RIGHT_MARGIN - step * maps.columns + MAP_GAP) / 2 + LEFT_MARGIN
    lowest = {column: row for row, column in maps.cells}
    scale_axes: dict[str, list[Axes]] = {}
    for panel, (row, column) in zip(panels, maps.cells, strict=True):
        top = row * (maps.side + HEADING_HEIGHT) + HEADING_HEIGHT
        axes = text.add_axes(figure, left + column * step, top, maps.side, maps.side)
        norm = make_attention_norm(other.values for other in panels if other.scale == panel.scale)
        _draw_map(axes, panel, norm, "key position" * (lowest[column] == row), "query position" * (column == 0))
        scale_axes.setdefault(panel.scale, []).append(axes)
    half = (step * maps.columns - MAP_GAP - 0.12) / 2
    for k, (scale, axes_list) in enumerate(scale_axes.items()):
        bar = text.add_axes(figure, left + k * (half + 0.12), maps.height - BAR_HEIGHT + 0.04, half, 0.06)
        draw_colorbar(figure, axes_list, scale, cax=bar, orientation="horizontal")


def _draw_token_list(figure: Figure, reading: Reading, layer: int, page: _PageLayout) -> None:
    """Draw the tokens in numbered columns; lines of the layer's head-summed attention are marked."""
    width, height = page.maps.width - 2 * RIGHT_MARGIN, page.height - page.maps.height
    axes = text.add_sheet(figure, RIGHT_MARGIN, page.maps.height, width, height)
    lines = {int(position) + reading.is_cross for position in reading.lines(layer)["index"]}  # after the heading
    numbers = [number for number, _ in _list_tokens(reading)]
    sample = "marked"
    text.write(axes, 0, text.ROW_HEIGHT, "tokens", weight="bold")
    text.mark(axes, 30, text.ROW_HEIGHT, text.measure_width(sample), LINE_TOKEN_STYLE, sample)
    text.write(axes, 30, text.ROW_HEIGHT, sample)
    label = f"lines of L{layer}, {_format_sum(reading)} (τ = {reading.tau:g})"
    text.write(axes, 30 + text.measure_width(sample + " "), text.ROW_HEIGHT, label)
    for position, word in enumerate(page.tokens.texts):
        left, row = page.tokens.get_position(position)
        start, baseline = left + page.tokens.number_width, (row + 2.3) * text.ROW_HEIGHT
        if position in lines:
            text.mark(axes, start, baseline, text.measure_width(word), LINE_TOKEN_STYLE, f"token {position}")
        # not in one string with the token, which may be written from right to left
        if numbers[position]:
            text.write(axes, start - text.measure_width(" "), baseline, f"{numbers[position]}:", ha="right")
        text.write(axes, start, baseline, word)


# -- lines and regions (Fig. 5)


def draw_lines_and_regions(reading: Reading, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 5: a head's attention map and similarity matrix, the matrix with lines masked, and region means."""
    layer_heads = [
        (layer, head)
        for layer in select_layers(reading, layers, get_last_layer(reading))
        for head in select_heads(reading, heads, choose_exemplary_head(reading.select(layer)))
    ]
    columns, width = (2, SINGLE_COLUMN) if len(layer_heads) == 1 else (4, DOUBLE_COLUMN)
    side = width / columns - LEFT_MARGIN - RIGHT_MARGIN
    step = HEADING_HEIGHT + side + AXIS_HEIGHT + BAR_HEIGHT
    panels = [panel for layer, head in layer_heads for panel in _make_region_panels(reading, layer, head)]
    with styled():
        figure = Figure(figsize=(width, step * len(panels) / columns))
        for k, (panel, norm) in enumerate(panels):
            row, column = divmod(k, columns)
            left, top = column * width / columns + LEFT_MARGIN, row * step + HEADING_HEIGHT
            axes = text.add_axes(figure, left, top, side, side)
            is_attention = panel.colormap != SIGNED_COLORMAP
            labels = ("key position", "query position") if is_attention else ("position j", "position i")
            _draw_map(axes, panel, norm, *labels)
            bar = text.add_axes(figure, left + BAR_INSET, top + side + AXIS_HEIGHT, side - 2 * BAR_INSET, 0.06)
            draw_colorbar(figure, [axes], panel.scale, cax=bar, orientation="horizontal")
    return figure


def _make_region_panels(reading: Reading, layer: int, head: Head) -> list[tuple[Panel, Normalize]]:
    name = f"L{layer}H{head}"
    blocks = reading.blocks(layer, head)  # raises for cross-attention
    attention = reading.attention_map(layer, head).values
    matrix = reading.matrix(layer, head).values
    values, scale = _normalize(matrix), _format_scale(matrix)
    masked = values.copy()
    lines = reading.lines(layer, head)["index"].to_numpy()
    masked[lines, :] = masked[:, lines] = np.nan
    sizes = (blocks["stop"] - blocks["start"]).to_numpy()
    means = reading.regions(layer, head).values / _find_unit(matrix)
    spread = np.repeat(np.repeat(means, sizes, axis=0), sizes, axis=1)
    reach = _round_up(float(np.nanmax(np.abs(means), initial=0)))
    return [
        (Panel(name, attention, "attention", "attention map"), make_attention_norm([attention])),
        (Panel(name, values, scale, "similarity", SIGNED_COLORMAP), make_signed_norm([values])),
        (Panel(name, masked, scale, "lines masked", SIGNED_COLORMAP, MASK_COLOR, ""), make_signed_norm([values])),
        (Panel(name, spread, f"mean {scale}", "regions", SIGNED_COLORMAP, "white"), Normalize(-reach, reach)),
    ]


# -- similarities summed over heads (Fig. 12)


def draw_summed_similarities(reading: Reading, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 12: the similarity matrices of layers, summed over their heads.

    They are summed over all heads of the reading; `heads` is validated but has no effect.
    """
    select_heads(reading, heads, reading.head_numbers)
    panels = []
    for layer in select_layers(reading, layers, choose_early_to_late(reading)):
        matrix = reading.matrix(layer, SUM).values
        panels.append(Panel(f"L{layer}", _normalize(matrix), _format_scale(matrix), "sum of heads", SIGNED_COLORMAP))
    return draw_maps([panels], "position j", "position i", make_signed_norm)


# -- shared by all


def _draw_map(axes: Axes, panel: Panel, norm: Normalize, x_label: str, y_label: str) -> None:
    """Draw a map; an axis without label has no tick labels either, as it is that of the map beside or below."""
    style_ticks(axes)
    draw_map_panel(axes, panel, norm)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.tick_params(labelbottom=bool(x_label), labelleft=bool(y_label))


def _format_sum(reading: Reading) -> str:
    numbers = {len(reading.heads_of(layer)) for layer in reading.layers}
    return f"sum of {min(numbers)} head{'s' * (max(numbers) > 1)}" if len(numbers) == 1 else "sum of heads"


def _find_unit(matrix: Floats) -> float:
    """Return the similarity that others are divided by: the largest, or the largest absolute if none is above 0."""
    return float(matrix.max()) if matrix.max() > 0 else float(np.abs(matrix).max()) or 1.0


def _normalize(matrix: Floats) -> Floats:
    return np.asarray(matrix / _find_unit(matrix))


def _format_scale(matrix: Floats) -> str:
    return "C / max(C)" if matrix.max() > 0 else "C / max |C|, none above 0"


def _round_up(number: float) -> float:
    """Return the next number of the series 1, 2, 5, 10, 20, …, as the end of an axis; 1 for 0."""
    if number <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(number))
    return float(next(power * k for k in (1, 2, 5, 10) if number <= power * k * (1 + 1e-9)))


def make_signed_norm(maps: Iterable[Floats]) -> Normalize:
    """Return the scale of normalized similarities, centred at 0; values below −1 get its lowest colour."""
    return Normalize(-1, 1)


MAX_ROWS = 20
"""rows of a table; of more pairs the strongest are shown"""
MARGIN = 0.06
"""inches"""
INDEX_WIDTH, TABLE_GAP = 26.0, 10.0
"""points: the width of a column of indices, and the gap between tables"""
TEXT_SIZE, LINE_HEIGHT = 7.5, 12.5
"""points: the font size of the running text, and the distance between its lines"""


@dataclass(frozen=True)
class _PairTable:
    """The strongest pairs of a head, ordered by i, then j, and the number of all its pairs."""

    name: str
    strongest: pd.DataFrame
    total: int

    @classmethod
    def from_reading(cls, reading: Reading, layer: int, head: int) -> _PairTable:
        pairs = reading.pairs(layer, head)
        return cls(format_head(layer, head), pairs.nlargest(MAX_ROWS, "value").sort_index(), len(pairs))

    @property
    def positions(self) -> set[int]:
        return {int(position) for position in self.strongest[["index_i", "index_j"]].to_numpy().ravel()}

    @property
    def caption(self) -> str:
        if len(self.strongest) < self.total:
            return f"{len(self.strongest)} strongest of {self.total:,} pairs"
        return "no pairs" if self.total == 0 else f"{self.total} pair{'s' * (self.total > 1)}"


@dataclass(frozen=True)
class _TokenText:
    """The tokens of the text: how to write them, their IDs and words, and which of them stand in the tables."""

    texts: list[str]
    token_ids: list[int]
    word_ids: list[int]
    table_positions: set[int]
    """positions of the tokens in the tables"""

    @classmethod
    def from_reading(cls, reading: Reading, tables: list[_PairTable]) -> _TokenText:
        texts = [text.make_drawable(str(token)) for token in reading.tokens.values]
        token_ids, word_ids = (reading.tokens[name].values.tolist() for name in ("token_id", "word"))
        return cls(texts, token_ids, word_ids, {position for table in tables for position in table.positions})

    @property
    def styles(self) -> dict[int, text.TokenStyle]:
        """Style of each token ID in the tables."""
        table_ids = {self.token_ids[position] for position in self.table_positions}
        return text.assign_styles(token_id for token_id in self.token_ids if token_id in table_ids)

    @property
    def index_widths(self) -> list[float]:
        """Space for an index after each token, in points; 0 where the token stands in no table."""
        return [text.measure_width(str(k)) + 1.0 if k in self.table_positions else 0.0 for k in range(len(self.texts))]

    def wrap(self, line_width: float) -> list[text.PlacedToken]:
        return text.wrap_tokens(self.texts, self.word_ids, self.index_widths, line_width, TEXT_SIZE)


def draw_pairs_in_text(reading: Reading, layers: Selection = None, heads: Selection = None) -> Figure:
    """Draw Fig. 9: tables of the high pairs of exemplary heads; the text, with token IDs of the tables coloured."""
    shown_layers = select_layers(reading, layers, get_last_layer(reading))
    tables = [
        _PairTable.from_reading(reading, layer, head)
        for layer in shown_layers
        for head in select_heads(reading, heads, choose_exemplary_heads(reading.select(layer)))
    ]
    tokens = _TokenText.from_reading(reading, tables)
    columns, width = (1, SINGLE_COLUMN) if len(tables) == 1 else (3, DOUBLE_COLUMN)
    line_width = (width - 2 * MARGIN) * text.POINTS_PER_INCH
    step = (line_width + TABLE_GAP) / columns
    rows = [tables[k : k + columns] for k in range(0, len(tables), columns)]
    tops = np.cumsum([0, *(max(len(table.strongest) for table in row) + 5 for row in rows)]) * text.ROW_HEIGHT
    placed = tokens.wrap(line_width)
    height = (tops[-1] + (placed[-1].row + 1) * LINE_HEIGHT) / text.POINTS_PER_INCH
    with styled():
        figure = Figure(figsize=(width, height + 2 * MARGIN))
        axes = text.add_sheet(figure, MARGIN, MARGIN, width - 2 * MARGIN, height)
        for row, top in zip(rows, tops, strict=False):
            for k, table in enumerate(row):
                _draw_pair_table(axes, table, tokens, k * step, top, step - TABLE_GAP)
        _draw_running_text(axes, tokens, placed, tops[-1])
    return figure


def _draw_pair_table(
    axes: Axes, table: _PairTable, tokens: _TokenText, left: float, top: float, max_width: float
) -> None:
    """Draw a table of pairs as the paper prints it, with its tokens coloured as in the text."""
    styles, token_width = tokens.styles, min((max_width - 2 * INDEX_WIDTH) / 2, 64.0)
    right = left + 2 * (token_width + INDEX_WIDTH)
    text.write(axes, left, top + text.ROW_HEIGHT, table.name, weight="bold")
    header = top + 2.2 * text.ROW_HEIGHT
    axes.plot([left, right], [header + 2.2] * 2, color=BLACK, linewidth=0.5)
    for side, start, end in (("i", left, right - INDEX_WIDTH), ("j", left + token_width, right)):
        text.write(axes, start, header, f"Token_{side}")
        text.write(axes, end, header, f"Index_{side}", ha="right")
        names, indices = table.strongest[f"token_{side}"].astype(str), table.strongest[f"index_{side}"].astype(int)
        for k, (name, position) in enumerate(zip(names, indices, strict=True)):
            baseline = header + (k + 1.3) * text.ROW_HEIGHT
            word = text.clip_text(text.make_drawable(name), token_width - 3)
            style = styles[tokens.token_ids[position]]
            text.mark(axes, start, baseline, text.measure_width(word), style, f"{table.name} {position}")
            text.write(axes, start, baseline, word)
            text.write(axes, end, baseline, str(position), ha="right")
    text.write(axes, left, header + (len(table.strongest) + 1.5) * text.ROW_HEIGHT, table.caption)


def _draw_running_text(axes: Axes, tokens: _TokenText, placed: list[text.PlacedToken], top: float) -> None:
    """Draw the text: every token ID of the tables is coloured, the tokens in them are followed by their index."""
    styles, index_widths = tokens.styles, tokens.index_widths
    for position, token in enumerate(placed):
        baseline = top + token.row * LINE_HEIGHT + TEXT_SIZE
        token_id = tokens.token_ids[position]
        if token_id in styles:
            text.mark(axes, token.left, baseline, token.width, styles[token_id], f"token {position}", TEXT_SIZE)
        text.write(axes, token.left, baseline, token.text, TEXT_SIZE)
        if position in tokens.table_positions:
            text.write(axes, token.left + token.width - index_widths[position] + 1, baseline - 2.2, str(position))

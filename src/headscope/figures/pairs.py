"""High pairs of one text (Fig. 9): a table for each of some heads, and the text with the tokens in them coloured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from headscope.figures import text
from headscope.figures.selection import Selection, choose_exemplary_heads, get_last_layer, select_heads, select_layers
from headscope.figures.style import BLACK, DOUBLE_COLUMN, SINGLE_COLUMN, Figure, styled
from headscope.readings.reading import Reading
from headscope.studies.labels import format_head

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

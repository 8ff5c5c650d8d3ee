"""Pairs of one text (Fig. 9): tables of the high pairs of some heads, and the text with their tokens coloured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headscope.figures import text
from headscope.figures.selection import Numbers, exemplary_heads, heads_of, last_layer, layers_of
from headscope.figures.style import BLACK, DOUBLE, SINGLE, head_label, styled
from headscope.readings.reading import Reading

MOST = 20
"""rows of a table"""
MARGIN = 0.06
"""inches"""
INDEX, GAP = 26.0, 10.0
"""points: a column of indices, and between tables"""
RUNNING, LEADING = 7.5, 12.5
"""points: the size of running text, and from one line of it to the next"""


@dataclass(frozen=True)
class _Table:
    """The strongest pairs of a head, ordered by i, then j; and how many it has."""

    name: str
    shown: pd.DataFrame
    number: int

    @classmethod
    def of(cls, reading: Reading, layer: int, head: int) -> _Table:
        pairs = reading.pairs(layer, head)
        return cls(head_label(layer, head), pairs.nlargest(MOST, "value").sort_index(), len(pairs))

    @property
    def positions(self) -> set[int]:
        return {int(position) for position in self.shown[["index_i", "index_j"]].to_numpy().ravel()}

    @property
    def words(self) -> str:
        if len(self.shown) < self.number:
            return f"{len(self.shown)} strongest of {self.number:,} pairs"
        return "no pairs" if self.number == 0 else f"{self.number} pair{'s' * (self.number > 1)}"


@dataclass(frozen=True)
class _Text:
    """The tokens of the text, what tells equal ones, and how those in the tables look."""

    words: list[str]
    values: list[int]
    belongs: list[int]
    positions: set[int]
    """those in the tables"""

    @classmethod
    def of(cls, reading: Reading, tables: list[_Table]) -> _Text:
        words = [text.drawable(str(token)) for token in reading.tokens.values]
        values, belongs = (reading.tokens[name].values.tolist() for name in ("token_id", "word"))
        return cls(words, values, belongs, {position for table in tables for position in table.positions})

    @property
    def looks(self) -> dict[int, text.Look]:
        """A look for each token value in the tables."""
        coloured = {self.values[position] for position in self.positions}
        return text.looks(value for value in self.values if value in coloured)

    @property
    def extra(self) -> list[float]:
        """Room after each token, in points, for the index of those in the tables."""
        return [text.width(str(k)) + 1.0 if k in self.positions else 0.0 for k in range(len(self.words))]

    def placed(self, room: float) -> list[text.Placed]:
        return text.flow(self.words, self.belongs, self.extra, room, RUNNING)


def pairs_in_text(reading: Reading, layers: Numbers = None, heads: Numbers = None) -> Figure:
    """Fig. 9: tables of the high pairs of exemplary heads; the text, a colour for each token value in the tables."""
    rows = layers_of(reading, layers, last_layer(reading))
    columns = heads_of(reading, heads, exemplary_heads(reading))
    tables = [_Table.of(reading, layer, head) for layer in rows for head in columns]
    tokens = _Text.of(reading, tables)
    across, width = (1, SINGLE) if len(tables) == 1 else (3, DOUBLE)
    room = (width - 2 * MARGIN) * text.POINTS
    bands = [tables[k : k + across] for k in range(0, len(tables), across)]
    tops = np.cumsum([0, *(max(len(table.shown) for table in band) + 5 for band in bands)]) * text.PITCH
    placed = tokens.placed(room)
    height = (tops[-1] + (placed[-1].row + 1) * LEADING) / text.POINTS
    with styled():
        figure = Figure(figsize=(width, height + 2 * MARGIN))
        axes = text.sheet(figure, MARGIN, MARGIN, width - 2 * MARGIN, height)
        for band, top in zip(bands, tops, strict=False):
            for k, table in enumerate(band):
                _pair_table(axes, table, tokens, k * (room + GAP) / across, top, (room + GAP) / across - GAP)
        _running_text(axes, tokens, placed, tops[-1])
    return figure


def _pair_table(axes: Axes, table: _Table, tokens: _Text, left: float, top: float, wide: float) -> None:
    """A table of pairs as the paper prints it, its tokens in the colours of the text."""
    looks, token = tokens.looks, min((wide - 2 * INDEX) / 2, 64.0)
    right = left + 2 * (token + INDEX)
    text.write(axes, left, top + text.PITCH, table.name, weight="bold")
    head = top + 2.2 * text.PITCH
    axes.plot([left, right], [head + 2.2] * 2, color=BLACK, linewidth=0.5)
    for side, start, end in (("i", left, right - INDEX), ("j", left + token, right)):
        text.write(axes, start, head, f"Token_{side}")
        text.write(axes, end, head, f"Index_{side}", ha="right")
        names, indices = table.shown[f"token_{side}"].astype(str), table.shown[f"index_{side}"].astype(int)
        for k, (name, position) in enumerate(zip(names, indices, strict=True)):
            base, words = head + (k + 1.3) * text.PITCH, text.clipped(text.drawable(name), token - 3)
            look = looks[tokens.values[position]]
            text.mark(axes, start, base, text.width(words), look, f"{table.name} {position}")
            text.write(axes, start, base, words)
            text.write(axes, end, base, str(position), ha="right")
    text.write(axes, left, head + (len(table.shown) + 1.5) * text.PITCH, table.words)


def _running_text(axes: Axes, tokens: _Text, placed: list[text.Placed], top: float) -> None:
    """The text; every token value of the tables coloured, the tokens in them with their index."""
    looks, extra = tokens.looks, tokens.extra
    for position, token in enumerate(placed):
        base = top + token.row * LEADING + RUNNING
        value = tokens.values[position]
        if value in looks:
            text.mark(axes, token.left, base, token.width, looks[value], f"token {position}", RUNNING)
        text.write(axes, token.left, base, token.words, RUNNING)
        if position in tokens.positions:
            text.write(axes, token.left + token.width - extra[position] + 1, base - 2.2, str(position))

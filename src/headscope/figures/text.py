"""Tokens as text in figures: what they look like, how wide they are, and where they go.

Tokens are other people's text. None is read as mathematics or as a command to break a line, and every character is one
that the font has, so that nothing is drawn as an empty box.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.patches import FancyBboxPatch

from headscope.figures.style import BLACK, FONT, RC

POINTS = 72.0
"""to the inch"""
PITCH = 7.4
"""points from one row of a table to the next"""
DOTS = "…"
EM = 1000.0
"""points: the size that characters are measured at"""
LONGEST = (90.0, 60.0, 48.0, 36.0)
"""points that a token in a column may take: less where there are many"""
SEAM = 0.8
"""points between the tokens of one word"""
DASHES = (0, (2, 1.2))

PALETTE = (
    *("#fdb462", "#80b1d3", "#b3de69", "#fccde5", "#8dd3c7", "#ffed6f", "#c78ec8"),
    *("#cfcfcf", "#fb8072", "#4fd0e0", "#d9c29c", "#bebada", "#e6e68a", "#ff8fc0"),
)
"""light colours that black ink stands out on; Brewer's Set3, its nearest neighbours moved apart, and four more"""


@dataclass(frozen=True)
class Look:
    """How a token is marked: a colour behind it and, where the colours are used up, a border and a rule under it."""

    fill: str
    border: str = "none"
    rule: str = "none"
    """none, solid or dashed"""


LINES = ("none", "solid", "dashed")
LOOKS = tuple(Look(fill, border, rule) for rule, border, fill in product(LINES, LINES, PALETTE))
"""126 of them; after that they come again"""


def looks(values: Iterable[int]) -> dict[int, Look]:
    """A look for each value, in the order they come, so that neighbours differ.

    >>> sorted(looks([7, 3, 7]))
    [3, 7]
    """
    return {value: LOOKS[k % len(LOOKS)] for k, value in enumerate(dict.fromkeys(values))}


# -- characters -------------------------------------------------------------------------------------------------------


def drawable(token: str) -> str:
    """A token as it can be drawn: one of blanks and controls only is named, characters the font lacks are, too.

    >>> drawable("the"), drawable(" "), drawable(""), drawable("a\\nb"), drawable("中文")
    ('the', 'U+0020', 'empty token', 'a�b', 'U+4E2D U+6587')
    """
    if not token:
        return "empty token"
    if all(_unseen(character) for character in token):
        return " ".join(_name(character) for character in token)
    return " ".join("".join(_drawable(character) for character in token).split())


def _drawable(character: str) -> str:
    if character == " ":
        return character
    if _unseen(character):  # it could break the line, turn the direction of the text or end the file
        return "\N{REPLACEMENT CHARACTER}"
    return character if ord(character) in _characters() else f" {_name(character)} "


def _unseen(character: str) -> bool:
    return character.isspace() or unicodedata.category(character).startswith("C")


def _name(character: str) -> str:
    return f"U+{ord(character):04X}"


def width(words: str, size: float = FONT) -> float:
    """How wide drawable words are, in points."""
    return sum(_advance(character) for character in words) * size / EM


def clipped(words: str, room: float, size: float = FONT) -> str:
    """Words, or as much of them as there is room for, in points, and three dots."""
    if width(words, size) <= room:
        return words
    left, kept = room - width(DOTS, size), 0
    for character in words:
        left -= width(character, size)
        if left < 0:
            break
        kept += 1
    return words[:kept] + DOTS


@lru_cache(maxsize=1)
def _font() -> FT2Font:
    # one of our own, as matplotlib's is set to other sizes while we measure
    font = FT2Font(findfont(FontProperties(family=RC["font.sans-serif"])))
    font.set_size(EM, POINTS)
    return font


@lru_cache(maxsize=1)
def _characters() -> frozenset[int]:
    return frozenset(_font().get_charmap())


@lru_cache(maxsize=4096)
def _advance(character: str) -> float:
    return float(_font().load_char(ord(character)).linearHoriAdvance) / 65536


# -- places -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Tokens in numbered columns, as the paper prints them: the same number of rows in each but the last."""

    words: list[str]
    rows: int
    starts: list[float]
    """where each column begins, in points"""
    number: float
    """points that the numbers take, before the words"""
    longest: float
    """points that a token may take before it is cut short"""

    @property
    def rows_used(self) -> int:
        return min(self.rows, len(self.words))

    def place(self, position: int) -> tuple[float, int]:
        """Where a token stands: points from the left, and its row."""
        return self.starts[position // self.rows], position % self.rows


def columns(tokens: Sequence[str], room: float, most_rows: int) -> Columns:
    """Tokens in columns of 16, of more where the columns do not fit the room (in points) side by side.

    Long tokens are cut short where that saves going beyond so many rows.
    """
    number = width(f"{len(tokens) - 1}: ")
    drawn = [drawable(token) for token in tokens]
    ways = []
    for longest in LONGEST:
        words = [clipped(word, longest) for word in drawn]
        rows, starts = _side_by_side([number + width(word) for word in words], room)
        ways.append(Columns(words, rows, starts, number, longest))
    return next((way for way in ways if way.rows_used <= most_rows), min(ways, key=lambda way: way.rows))


def _side_by_side(widths: Sequence[float], room: float) -> tuple[int, list[float]]:
    """In how many rows cells of these widths fit, and where their columns begin."""
    gap, rows = 5.0, 0
    while True:
        rows += 16
        wide = [max(widths[start : start + rows]) for start in range(0, len(widths), rows)]
        spare = room - sum(wide) - gap * (len(wide) - 1)
        if spare >= 0 or len(wide) == 1:
            step = gap + max(0.0, min(spare / len(wide), 20.0))
            return rows, [sum(wide[:k]) + step * k for k in range(len(wide))]


@dataclass(frozen=True)
class Placed:
    """One token of a running text: what to write, its row, and its place in points from the left."""

    words: str
    row: int
    left: float
    width: float


def flow(
    words: Sequence[str], belongs: Sequence[int], extra: Sequence[float], room: float, size: float
) -> list[Placed]:
    """Tokens as running text, so many points wide: words of several tokens are kept together where they fit.

    `belongs` numbers the word of each token; `extra` is room to leave after a token.
    """
    placed: list[Placed] = []
    gap, row, at, k = 0.5 * size, 0, 0.0, 0
    while k < len(words):
        end = k + 1
        while end < len(words) and belongs[end] == belongs[k]:
            end += 1
        pieces = [clipped(words[m], room - extra[m], size) for m in range(k, end)]
        wide = [width(piece, size) + extra[m] for piece, m in zip(pieces, range(k, end), strict=True)]
        if at > 0 and at + sum(wide) + SEAM * (len(wide) - 1) > room:
            row, at = row + 1, 0.0
        for piece, wideness in zip(pieces, wide, strict=True):
            if at > 0 and at + wideness > room:  # a word longer than a line
                row, at = row + 1, 0.0
            placed.append(Placed(piece, row, at, wideness))
            at += wideness + SEAM
        at += gap - SEAM
        k = end
    return placed


# -- drawing ----------------------------------------------------------------------------------------------------------


def axes_at(figure: Figure, left: float, top: float, wide: float, high: float) -> Axes:
    """Axes at a place given in inches from the figure's left and top edge."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + high) / down, wide / across, high / down))


def sheet(figure: Figure, left: float, top: float, wide: float, high: float) -> Axes:
    """A blank place to write on: in inches on the figure, measured within in points from its top left."""
    axes = axes_at(figure, left, top, wide, high)
    axes.set_xlim(0, wide * POINTS)
    axes.set_ylim(high * POINTS, 0)
    axes.set_axis_off()
    return axes


def write(axes: Axes, left: float, base: float, words: str, size: float = FONT, **looks: Any) -> None:
    """Words on a sheet, from the left on this base line; nothing in them is read as mathematics."""
    axes.text(left, base, words, fontsize=size, parse_math=False, va="baseline", **looks)


def mark(axes: Axes, left: float, base: float, wide: float, look: Look, label: str, size: float = FONT) -> None:
    """The look of a token, behind it."""
    box = FancyBboxPatch(
        (left - 0.6, base - 0.82 * size),
        wide + 1.2,
        1.07 * size,
        boxstyle="round,pad=0,rounding_size=1",
        facecolor=look.fill,
        edgecolor=BLACK if look.border != "none" else "none",
        label=label,
        clip_on=False,
        linewidth=0.0 if look.border == "none" else 0.5,
        linestyle=_line(look.border),
    )
    axes.add_patch(box)
    if look.rule != "none":
        axes.plot(
            [left, left + wide],
            [base + 0.17 * size] * 2,
            color=BLACK,
            linewidth=0.7,
            linestyle=_line(look.rule),
            solid_capstyle="butt",
        )


def _line(kind: str) -> Any:
    return DASHES if kind == "dashed" else "solid"

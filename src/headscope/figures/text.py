"""Draw tokens as text in figures: styles, replacement of undrawable characters, widths, line breaks, positions.

Tokens are untrusted text. None is parsed as mathematics, none breaks a line, and characters that the font lacks are
replaced by their code points, so that nothing is drawn as an empty box.
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

from headscope.figures.style import BLACK, FONT_SIZE, RC_PARAMS

POINTS_PER_INCH = 72.0
ROW_HEIGHT = 7.4
"""points from one row of a table to the next"""
ELLIPSIS = "…"
MEASURING_SIZE = 1000.0
"""points: the font size at which characters are measured"""
MAX_TOKEN_WIDTHS = (90.0, 60.0, 48.0, 36.0)
"""points: the largest width of a token in a column, tried in turn until the tokens fit the page"""
TOKEN_GAP = 0.8
"""points between tokens of one word"""
DASH_PATTERN = (0, (2, 1.2))

PALETTE = (
    *("#fdb462", "#80b1d3", "#b3de69", "#fccde5", "#8dd3c7", "#ffed6f", "#c78ec8"),
    *("#cfcfcf", "#fb8072", "#4fd0e0", "#d9c29c", "#bebada", "#e6e68a", "#ff8fc0"),
)
"""light colours on which black text is legible: Brewer's Set3, its most similar colours moved apart, and four more"""


@dataclass(frozen=True)
class TokenStyle:
    """How a token is marked: a colour behind it and, when all colours are in use, also a border and an underline."""

    fill: str
    border: str = "none"
    rule: str = "none"
    """none, solid or dashed"""


LINE_STYLES = ("none", "solid", "dashed")
STYLES = tuple(TokenStyle(fill, border, rule) for rule, border, fill in product(LINE_STYLES, LINE_STYLES, PALETTE))
"""all 126 combinations, colours first; with more token values they repeat"""


def assign_styles(values: Iterable[int]) -> dict[int, TokenStyle]:
    """Return a style for each value, assigned in order of first occurrence, so that neighbours differ.

    >>> sorted(assign_styles([7, 3, 7]))
    [3, 7]
    """
    return {value: STYLES[k % len(STYLES)] for k, value in enumerate(dict.fromkeys(values))}


# -- characters -------------------------------------------------------------------------------------------------------


def make_drawable(token: str) -> str:
    """Return a token as text that can be drawn.

    A token of blanks and control characters only is replaced by their code points, as is each character that the font
    lacks. Control characters in other tokens become U+FFFD.

    >>> [make_drawable(token) for token in ("the", " ", "", "a\\nb", "中文")]
    ['the', 'U+0020', 'empty token', 'a�b', 'U+4E2D U+6587']
    """
    if not token:
        return "empty token"
    if all(_is_invisible(character) for character in token):
        return " ".join(_format_code_point(character) for character in token)
    return " ".join("".join(_replace_character(character) for character in token).split())


def _replace_character(character: str) -> str:
    if character == " ":
        return character
    if _is_invisible(character):  # could break the line, reverse the text direction or end the file
        return "\N{REPLACEMENT CHARACTER}"
    return character if ord(character) in _list_characters() else f" {_format_code_point(character)} "


def _is_invisible(character: str) -> bool:
    return character.isspace() or unicodedata.category(character).startswith("C")


def _format_code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def measure_width(text: str, size: float = FONT_SIZE) -> float:
    """Return the width of drawable text, in points."""
    return sum(_measure_advance(character) for character in text) * size / MEASURING_SIZE


def clip_text(text: str, max_width: float, size: float = FONT_SIZE) -> str:
    """Return the text, or its beginning and an ellipsis where it is wider than `max_width` points."""
    if measure_width(text, size) <= max_width:
        return text
    remaining, length = max_width - measure_width(ELLIPSIS, size), 0
    for character in text:
        remaining -= measure_width(character, size)
        if remaining < 0:
            break
        length += 1
    return text[:length] + ELLIPSIS


@lru_cache(maxsize=1)
def _load_font() -> FT2Font:
    # an instance of our own: matplotlib changes the size of its shared one
    font = FT2Font(findfont(FontProperties(family=RC_PARAMS["font.sans-serif"])))
    font.set_size(MEASURING_SIZE, POINTS_PER_INCH)
    return font


@lru_cache(maxsize=1)
def _list_characters() -> frozenset[int]:
    return frozenset(_load_font().get_charmap())


@lru_cache(maxsize=4096)
def _measure_advance(character: str) -> float:
    return float(_load_font().load_char(ord(character)).linearHoriAdvance) / 65536


# -- layout -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenColumns:
    """Tokens in numbered columns, as the paper prints them: the same number of rows in all but the last."""

    texts: list[str]
    rows: int
    starts: list[float]
    """left edge of each column, in points"""
    number_width: float
    """points: the width of the numbers before the tokens"""
    max_token_width: float
    """points: wider tokens are clipped"""

    @property
    def rows_used(self) -> int:
        return min(self.rows, len(self.texts))

    def get_position(self, position: int) -> tuple[float, int]:
        """Return the left edge of a token's cell, in points, and its row."""
        return self.starts[position // self.rows], position % self.rows


def fit_columns(tokens: Sequence[str], max_width: float, max_rows: int) -> TokenColumns:
    """Return tokens in columns of 16 rows, or a multiple of 16 where these are together wider than `max_width` points.

    Long tokens are clipped if there would otherwise be more than `max_rows` rows.
    """
    number_width = measure_width(f"{len(tokens) - 1}: ")
    words = [make_drawable(token) for token in tokens]
    layouts = []
    for max_token_width in MAX_TOKEN_WIDTHS:
        texts = [clip_text(word, max_token_width) for word in words]
        rows, starts = _fit_rows([number_width + measure_width(word) for word in texts], max_width)
        layouts.append(TokenColumns(texts, rows, starts, number_width, max_token_width))
    return next(
        (layout for layout in layouts if layout.rows_used <= max_rows), min(layouts, key=lambda layout: layout.rows)
    )


def _fit_rows(widths: Sequence[float], max_width: float) -> tuple[int, list[float]]:
    """Return the number of rows in which cells of these widths fit, and the left edges of their columns."""
    gap, rows = 5.0, 0
    while True:
        rows += 16
        column_widths = [max(widths[start : start + rows]) for start in range(0, len(widths), rows)]
        spare = max_width - sum(column_widths) - gap * (len(column_widths) - 1)
        if spare >= 0 or len(column_widths) == 1:
            step = gap + max(0.0, min(spare / len(column_widths), 20.0))
            return rows, [sum(column_widths[:k]) + step * k for k in range(len(column_widths))]


@dataclass(frozen=True)
class PlacedToken:
    """One token of a running text: what to write, its row, its left edge and its width in points."""

    text: str
    row: int
    left: float
    width: float


def wrap_tokens(
    tokens: Sequence[str], word_ids: Sequence[int], extra_widths: Sequence[float], max_width: float, size: float
) -> list[PlacedToken]:
    """Lay out tokens as running text, with line breaks between words only, unless a word is longer than a line.

    Args:
        tokens: Drawable texts of the tokens.
        word_ids: The word that each token belongs to.
        extra_widths: Space to leave after each token, in points.
        max_width: Width of a line, in points.
        size: Font size, in points.
    """
    placed: list[PlacedToken] = []
    gap, row, left, first = 0.5 * size, 0, 0.0, 0
    while first < len(tokens):
        end = first + 1
        while end < len(tokens) and word_ids[end] == word_ids[first]:
            end += 1
        pieces = [clip_text(tokens[k], max_width - extra_widths[k], size) for k in range(first, end)]
        widths = [
            measure_width(piece, size) + extra_widths[k] for piece, k in zip(pieces, range(first, end), strict=True)
        ]
        if left > 0 and left + sum(widths) + TOKEN_GAP * (len(widths) - 1) > max_width:
            row, left = row + 1, 0.0
        for piece, width in zip(pieces, widths, strict=True):
            if left > 0 and left + width > max_width:  # a word longer than a line
                row, left = row + 1, 0.0
            placed.append(PlacedToken(piece, row, left, width))
            left += width + TOKEN_GAP
        left += gap - TOKEN_GAP
        first = end
    return placed


# -- drawing ----------------------------------------------------------------------------------------------------------


def add_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at a position given in inches from the figure's left and top edge."""
    figure_width, figure_height = figure.get_size_inches()
    return figure.add_axes(
        (left / figure_width, 1 - (top + height) / figure_height, width / figure_width, height / figure_height)
    )


def add_sheet(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add blank axes to write on: placed in inches, with coordinates in points from their top left corner."""
    axes = add_axes(figure, left, top, width, height)
    axes.set_xlim(0, width * POINTS_PER_INCH)
    axes.set_ylim(height * POINTS_PER_INCH, 0)
    axes.set_axis_off()
    return axes


def write(axes: Axes, left: float, baseline: float, text: str, size: float = FONT_SIZE, **options: Any) -> None:
    """Write text on a sheet, starting at `left` on this baseline; it is not parsed as mathematics."""
    axes.text(left, baseline, text, fontsize=size, parse_math=False, va="baseline", **options)


def mark(
    axes: Axes, left: float, baseline: float, width: float, style: TokenStyle, label: str, size: float = FONT_SIZE
) -> None:
    """Draw the style of a token behind it."""
    box = FancyBboxPatch(
        (left - 0.6, baseline - 0.82 * size),
        width + 1.2,
        1.07 * size,
        boxstyle="round,pad=0,rounding_size=1",
        facecolor=style.fill,
        edgecolor=BLACK if style.border != "none" else "none",
        label=label,
        clip_on=False,
        linewidth=0.0 if style.border == "none" else 0.5,
        linestyle=_get_line_style(style.border),
    )
    axes.add_patch(box)
    if style.rule != "none":
        axes.plot(
            [left, left + width],
            [baseline + 0.17 * size] * 2,
            color=BLACK,
            linewidth=0.7,
            linestyle=_get_line_style(style.rule),
            solid_capstyle="butt",
        )


def _get_line_style(kind: str) -> Any:
    return DASH_PATTERN if kind == "dashed" else "solid"

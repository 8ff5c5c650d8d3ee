"""Helpers for tests of readings' figures: readings of random numbers, and access to what is drawn."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from headscope import figures
from headscope.readings.reading import Reading

NUMBERS = ["4", "5", "9", "12"]
WORDS = ["airport", "policing", "in", "the", "united", "kingdom", "has", "taken", "many", ","]
HOSTILE = [
    *(
        "$x_1$",
        "$",
        "a_b^{c}",
        "\\alpha",
        "\\",
        "%s",
        "{x}",
        "\n",
        "a\nb\tc",
        "\x00",
        "\x1b[31m",
        "\u202eevil",
        "\u2028x",
    ),
    *("", " ", "\xa0", "\ud800", "\ufffe", "😀", "👩‍👩‍👧", "中文", "नमस्ते", "שלום", "سلام", "e\u0301" * 3, "a" * 3000),
    *("<script>alert(1)</script>", "&amp;", "]]>", "'\"", "__init__"),
]


def make_reading(
    tokens: list[str], layers: int = 2, heads: int = 3, *, seed: int = 5, attention: bool = True, width: int = 4
) -> Reading:
    """Return a reading of random outputs and maps; every seventh token gets much attention, others in other layers."""
    random = np.random.default_rng(seed)
    n = len(tokens)
    maps = random.random((layers, heads, n, n)) ** 4
    for layer in range(layers):
        maps[layer, ..., (layers - 1 - layer) % min(7, n) :: 7] += 3
    maps /= maps.sum(axis=-1, keepdims=True)
    outputs = random.normal(size=(layers, n, heads, width))
    return Reading.from_arrays(tokens, outputs, maps if attention else None)


def make_tokens(n: int) -> list[str]:
    """Return n tokens, many of them equal, many of them unique."""
    return [WORDS[k % len(WORDS)] if k % 3 else f"word{k}" for k in range(n)]


@cache
def make_large_reading() -> Reading:
    """Return a reading of twelve layers of twelve heads."""
    return make_reading(make_tokens(40), 12, 12, width=8)


@cache
def draw_default_figures() -> dict[str, Figure]:
    """Draw all figures with default options; tests must not change them."""
    return figures.draw_all(make_large_reading())


# -- access to what a figure shows


def find_sheet(figure: Figure) -> Axes:
    """Return the axes on which tokens are written: those with axis off."""
    (sheet,) = [axes for axes in figure.axes if not axes.axison]
    return sheet


def find_marks(figure: Figure, kind: str = "token") -> dict[int, tuple[str, str, float]]:
    """Return colour, line style and line width of marked tokens, by position."""
    return {
        int(str(patch.get_label()).split()[1]): (
            to_hex(patch.get_facecolor()),
            str(patch.get_linestyle()),
            patch.get_linewidth(),
        )
        for patch in find_sheet(figure).patches
        if isinstance(patch, FancyBboxPatch) and re.fullmatch(rf"{kind} \d+", str(patch.get_label()))
    }


def read_tables(figure: Figure) -> dict[str, tuple[list[list[str]], str]]:
    """Return the tables of pairs by head: the cells of their rows, and the caption below."""
    texts = sorted(find_sheet(figure).texts, key=lambda item: (item.get_position()[1], item.get_position()[0]))
    names = [item for item in texts if re.fullmatch(r"L\d+H\d+", item.get_text())]
    tables = {}
    for name in names:
        left, top = name.get_position()
        right = min((x for x, y in (other.get_position() for other in names) if y == top and x > left), default=1e9)
        below = [item for item in texts if left <= item.get_position()[0] < right - 1 and item.get_position()[1] > top]
        end = next(k for k, item in enumerate(below) if re.search("pairs?$", item.get_text()))
        lines: dict[float, list[str]] = {}
        for item in below[:end]:
            lines.setdefault(item.get_position()[1], []).append(item.get_text())
        head, *rows = lines.values()
        assert head == ["Token_i", "Token_j", "Index_i", "Index_j"]
        tables[name.get_text()] = rows, below[end].get_text()
    return tables


def read_running_text(figure: Figure) -> list[str]:
    """Return the tokens of the running text, in order."""
    return [item.get_text() for item in find_sheet(figure).texts if item.get_fontsize() == 7.5]


def read_token_list(figure: Figure) -> dict[int, str]:
    """Return the tokens of the list, by their numbers."""
    texts = [item.get_text() for item in find_sheet(figure).texts]
    return {int(number[:-1]): word for number, word in pairwise(texts) if re.fullmatch(r"\d+:", number)}

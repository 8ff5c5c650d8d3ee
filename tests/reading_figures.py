"""Readings to draw, and what their figures show, for the tests of both."""

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


def reading_of(
    tokens: list[str], layers: int = 2, heads: int = 3, *, seed: int = 5, attention: bool = True, width: int = 4
) -> Reading:
    """Random outputs and maps; every seventh token draws much attention, other ones in other layers."""
    random = np.random.default_rng(seed)
    n = len(tokens)
    maps = random.random((layers, heads, n, n)) ** 4
    for layer in range(layers):
        maps[layer, ..., (layers - 1 - layer) % min(7, n) :: 7] += 3
    maps /= maps.sum(axis=-1, keepdims=True)
    outputs = random.normal(size=(layers, n, heads, width))
    return Reading.from_arrays(tokens, outputs, maps if attention else None)


def tokens_of(n: int) -> list[str]:
    """Tokens of which many are equal, and many are not."""
    return [WORDS[k % len(WORDS)] if k % 3 else f"word{k}" for k in range(n)]


@cache
def of_twelve() -> Reading:
    """Twelve layers of twelve heads."""
    return reading_of(tokens_of(40), 12, 12, width=8)


@cache
def drawn_by_default() -> dict[str, Figure]:
    """Every figure as it is by default; tests look at these and leave them as they are."""
    return figures.draw_all(of_twelve())


# -- looking into a figure


def sheet(figure: Figure) -> Axes:
    """Where tokens are written: the axes without an axis."""
    (found,) = [axes for axes in figure.axes if not axes.axison]
    return found


def marks(figure: Figure, kind: str = "token") -> dict[int, tuple[str, str, float]]:
    """The marked tokens: by position, their colour, line style and width."""
    return {
        int(str(patch.get_label()).split()[1]): (
            to_hex(patch.get_facecolor()),
            str(patch.get_linestyle()),
            patch.get_linewidth(),
        )
        for patch in sheet(figure).patches
        if isinstance(patch, FancyBboxPatch) and re.fullmatch(rf"{kind} \d+", str(patch.get_label()))
    }


def tables(figure: Figure) -> dict[str, tuple[list[list[str]], str]]:
    """The tables of pairs: the cells of their rows, and what stands under each."""
    texts = sorted(sheet(figure).texts, key=lambda one: (one.get_position()[1], one.get_position()[0]))
    names = [one for one in texts if re.fullmatch(r"L\d+H\d+", one.get_text())]
    found = {}
    for name in names:
        left, top = name.get_position()
        right = min((x for x, y in (other.get_position() for other in names) if y == top and x > left), default=1e9)
        below = [one for one in texts if left <= one.get_position()[0] < right - 1 and one.get_position()[1] > top]
        end = next(k for k, one in enumerate(below) if re.search("pairs?$", one.get_text()))
        lines: dict[float, list[str]] = {}
        for one in below[:end]:
            lines.setdefault(one.get_position()[1], []).append(one.get_text())
        head, *rows = lines.values()
        assert head == ["Token_i", "Token_j", "Index_i", "Index_j"]
        found[name.get_text()] = rows, below[end].get_text()
    return found


def running(figure: Figure) -> list[str]:
    """The tokens of the running text, in order."""
    return [one.get_text() for one in sheet(figure).texts if one.get_fontsize() == 7.5]


def listed(figure: Figure) -> dict[int, str]:
    """The tokens of the list, by their numbers."""
    texts = [one.get_text() for one in sheet(figure).texts]
    return {int(number[:-1]): word for number, word in pairwise(texts) if re.fullmatch(r"\d+:", number)}

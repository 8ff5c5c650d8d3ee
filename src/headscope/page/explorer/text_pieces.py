"""Split the text of a reading into its tokens as they are written there, and the gaps between them."""

from __future__ import annotations

import re
import unicodedata

from headscope.page.formatting import make_visible
from headscope.readings.reading import Reading
from headscope.studies.labels import has_images

LINE_CONTROLS = "\n\t"


def split_into_pieces(reading: Reading) -> list[tuple[str, str]]:
    """Return for each token the text between it and the one before, and its own text."""
    data, text = reading.data, reading.text
    shown_pieces: list[tuple[str, str]] = []
    end = 0
    for k, (label, start, stop) in enumerate(
        zip(data["token"].values, data["start"].values, data["end"].values, strict=True)
    ):
        if start < 0:  # a special token, or a reading without a text
            gap = _get_gap(reading, k)
            shown = str(label) if gap or k == 0 else str(label).removeprefix("##")
            shown_pieces.append((gap, make_visible(replace_controls(shown))))
            continue
        gap = _shorten_gap(text[end:start]) or (" " if k and data["special"].values[k - 1] else "")
        shown = replace_controls(text[start:stop]) if start >= end else ""
        # Tokens that are parts of one character have the same position: the first shows it, the others a dot.
        shown_pieces.append((gap, _mark_blanks(shown) if shown else "·"))
        end = max(end, int(stop))
    return shown_pieces


def replace_controls(text: str) -> str:
    """Replace control characters by U+FFFD, except line ends and tabs.

    >>> replace_controls("a\\x1b[2J\\nb")
    'a�[2J\\nb'
    """
    return "".join(
        c if c in LINE_CONTROLS or unicodedata.category(c) != "Cc" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _mark_blanks(shown: str) -> str:
    """Return a token of blanks as visible signs, since it can be clicked like any other token.

    >>> _mark_blanks(" "), _mark_blanks("\\n"), _mark_blanks("a b")
    ('␣', '⏎', 'a b')
    """
    if shown.strip(" \n\t"):
        return make_visible(shown)
    return shown.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _get_gap(reading: Reading, k: int) -> str:
    if k == 0:
        return ""
    if has_images(reading.data.attrs) and re.fullmatch(r"r\d+c0", str(reading.data["token"].values[k])):
        return "\n"  # the rows of an image are lines
    word = reading.data["word"].values
    return "" if word[k] == word[k - 1] else " "


def _shorten_gap(gap: str) -> str:
    """Return the gap as the text has it, but with at most one empty line and 200 characters."""
    return re.sub(r"\n\s*\n\s*", "\n\n", replace_controls(gap))[:200]

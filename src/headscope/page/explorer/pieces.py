"""The text of a reading in pieces: what stands before each token, and the token as the text writes it."""

from __future__ import annotations

import re
import unicodedata

from headscope.page.words import visible
from headscope.readings.reading import Reading
from headscope.studies.labels import of_images

KEPT = "\n\t"


def pieces(reading: Reading) -> list[tuple[str, str]]:
    """For each token the text between it and the one before, and the token's own."""
    data, text = reading.data, reading.text
    made: list[tuple[str, str]] = []
    end = 0
    for k, (label, start, stop) in enumerate(
        zip(data["token"].values, data["start"].values, data["end"].values, strict=True)
    ):
        if start < 0:  # special, or made without a text
            gap = _between(reading, k)
            shown = str(label) if gap or k == 0 else str(label).removeprefix("##")
            made.append((gap, visible(printable(shown))))
            continue
        gap = _calm(text[end:start]) or (" " if k and data["special"].values[k - 1] else "")
        shown = printable(text[start:stop]) if start >= end else ""
        # Pieces of one character share its place: the first shows it, the others a dot.
        made.append((gap, _seen(shown) if shown else "·"))
        end = max(end, int(stop))
    return made


def printable(text: str) -> str:
    """Control characters as one that can be seen; line ends stay.

    >>> printable("a\\x1b[2J\\nb")
    'a�[2J\\nb'
    """
    return "".join(c if c in KEPT or unicodedata.category(c) != "Cc" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _seen(shown: str) -> str:
    """A token of blank space as signs of it, since it can be clicked like any other.

    >>> _seen(" "), _seen("\\n"), _seen("a b")
    ('␣', '⏎', 'a b')
    """
    if shown.strip(" \n\t"):
        return visible(shown)
    return shown.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")


def _between(reading: Reading, k: int) -> str:
    if k == 0:
        return ""
    if of_images(reading.data.attrs) and re.fullmatch(r"r\d+c0", str(reading.data["token"].values[k])):
        return "\n"  # the rows of an image are lines
    word = reading.data["word"].values
    return "" if word[k] == word[k - 1] else " "


def _calm(gap: str) -> str:
    """Blank space as wide as the text has it, but not pages of it."""
    return re.sub(r"\n\s*\n\s*", "\n\n", printable(gap))[:200]

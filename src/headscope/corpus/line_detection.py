"""Recognize plain text files that hold one document per line, though they are read as one document each.

The rule is conservative: a note about a file that is one document is worse than no note about one that is not.
"""

from __future__ import annotations

import re

from headscope.corpus.storage import open_file

OPENING = 2**16
"""bytes of a file that are looked at"""
MIN_LINES = 10
MIN_CHARACTERS = 50
"""characters of a line that can be a document"""
SHARE = 0.8
"""share of the lines that must be like documents"""
_SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’»)\]]*$""")
_MARKUP = re.compile(r"([#>|*+-]|\d+[.)]\s|```|//|/\*|<|\S*,\S)")
"""how lines of Markdown, code, tables, and CSV begin"""


def suggest_format(path: str, encoding: str) -> str | None:
    """Return `lines` or `jsonl` if the beginning of a text file looks as if each line were a document, else None."""
    try:
        with open_file(path) as stream:
            raw = stream.read(OPENING)
        text = raw.decode(encoding, "ignore")
    except Exception:  # reading the documents will report the error
        return None
    lines = text.removeprefix("\ufeff").rstrip().split("\n")
    return choose_line_format(lines[:-1] if len(raw) == OPENING else lines)


def choose_line_format(lines: list[str]) -> str | None:
    """Return `lines` if most lines are whole sentences or paragraphs, `jsonl` if all are JSON objects, else None.

    >>> choose_line_format(["Two ravens met above the old tower, and one of them spoke."] * 10)
    'lines'
    >>> choose_line_format(["Two ravens met above the old tower, and", "one of them spoke."] * 10)
    """
    stripped = [line.strip() for line in lines]
    if len(stripped) < 2 or not all(stripped):
        return None
    if all(line.startswith("{") and line.endswith("}") and '"' in line for line in stripped):
        return "jsonl"
    count = sum(map(_is_like_document, stripped))
    return "lines" if len(stripped) >= MIN_LINES and count >= SHARE * len(stripped) else None


def _is_like_document(line: str) -> bool:
    return (
        len(line) >= MIN_CHARACTERS
        and "\t" not in line
        and _SENTENCE_END.search(line) is not None
        and _MARKUP.match(line) is None
    )

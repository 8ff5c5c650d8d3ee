"""Parse the arguments of the command line that name a text or a head."""

from __future__ import annotations

import re
from pathlib import Path

from headscope.corpus.bundled import load_example
from headscope.corpus.documents import Document, documents
from headscope.errors import ReadingError
from headscope.readings.reading import SUM, Head

EXAMPLE = "example:airport-policing"
READING_SUFFIX = ".nc"
"""suffix of saved readings"""


def read_text_argument(argument: str | None, *, encoding: str = "utf-8") -> tuple[str | Document, str]:
    """Return the text that an argument names, and a name for it.

    The argument is the text itself, a file (its first document is returned; of an image file, the image), `-`
    (standard input) or `example:NAME`. None is the default example.

    >>> read_text_argument("Two ravens met.")
    ('Two ravens met.', 'the text given')
    """
    source = EXAMPLE if argument is None else argument
    if source.startswith("example:"):
        document = load_example(source.removeprefix("example:"))
        return document.text, document.name
    if source != "-" and not is_file(source):
        return source, "the text given"
    for document in documents([source], encoding=encoding, limit=1):
        return document if document.is_image else document.text, document.name
    raise ReadingError(f"{'standard input' if source == '-' else source}: there is no text in it")


def is_file(argument: str) -> bool:
    """Whether an argument is the name of a file. A text is not: it is too long or has characters no name can have."""
    try:
        return Path(argument).is_file()
    except (OSError, ValueError):
        return False


def parse_head(argument: str) -> tuple[int, Head]:
    """Return the layer and the head of a name such as L11H8 or L11sum.

    >>> parse_head("L11H8"), parse_head("l3sum")
    ((11, 8), (3, 'sum'))
    """
    match = re.fullmatch(r"L(\d+)(?:H(\d+)|sum)", argument.strip(), re.IGNORECASE)
    if match is None:
        raise ReadingError(f"{argument!r} names no head: write L11H8, or L11sum for the sum over the layer's heads")
    return int(match[1]), SUM if match[2] is None else int(match[2])

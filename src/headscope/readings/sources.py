"""What the command line may name: a text to read, and a head."""

from __future__ import annotations

import re
from pathlib import Path

from headscope.corpus.bundled import example_document
from headscope.corpus.documents import Document, documents
from headscope.errors import ReadingError
from headscope.readings.reading import SUM, Head

EXAMPLE = "example:airport-policing"
SAVED = ".nc"
"""the ending of saved readings"""


def text_named(given: str | None, *, encoding: str = "utf-8") -> tuple[str | Document, str]:
    """A text and where it comes from: itself, a file's first document, standard input (`-`) or `example:NAME`; of an
    image file, the image.

    >>> text_named("Two ravens met.")
    ('Two ravens met.', 'the text given')
    """
    source = EXAMPLE if given is None else given
    if source.startswith("example:"):
        document = example_document(source.removeprefix("example:"))
        return document.text, document.name
    if source != "-" and not is_file(source):
        return source, "the text given"
    for document in documents([source], encoding=encoding, limit=1):
        return document if document.is_image else document.text, document.name
    raise ReadingError(f"{'standard input' if source == '-' else source}: there is no text in it")


def is_file(given: str) -> bool:
    """Whether an argument names a file rather than being a text: texts hold what no file name can, or are too long."""
    try:
        return Path(given).is_file()
    except (OSError, ValueError):
        return False


def head_named(given: str) -> tuple[int, Head]:
    """A head as it is written everywhere.

    >>> head_named("L11H8"), head_named("l3sum")
    ((11, 8), (3, 'sum'))
    """
    found = re.fullmatch(r"L(\d+)(?:H(\d+)|sum)", given.strip(), re.IGNORECASE)
    if found is None:
        raise ReadingError(f"{given!r} names no head: write L11H8, or L11sum for the sum over the layer's heads")
    return int(found[1]), SUM if found[2] is None else int(found[2])

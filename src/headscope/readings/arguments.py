"""Parse the arguments of the command line that name a text or a head."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headscope.corpus.document import ReadOptions, add_own_target
from headscope.corpus.documents import Document, documents
from headscope.corpus.formats import is_file_name, is_stream, load_example
from headscope.corpus.storage import is_url
from headscope.errors import ReadingError, SelectionError
from headscope.head_selection import parse_heads
from headscope.readings.reading import SUM, Head

EXAMPLE = "example:airport-policing"
READING_SUFFIX = ".nc"
"""suffix of saved readings"""
OTHER_ENDINGS = (
    ".json", ".gz", ".zip", ".nc", ".pdf", ".doc", ".docx", ".odt", ".rtf", ".html", ".htm", ".xml", ".rst", ".tex",
    ".log",
)  # fmt: skip
"""endings of files that are not corpora; a word with such an ending is the name of a file all the same"""


def read_text_argument(
    argument: str | None, *, field: str = "text", encoding: str = "utf-8", literal: bool = False, target: str = ""
) -> Document:
    """Return the text that an argument names, as a document.

    The argument is the text itself, a file or URL (its first document is returned; of an image file, the image), `-`
    (standard input), `hf:NAME` or `example:NAME`. None is the default example. If it is `literal`, it is the text.

    >>> read_text_argument("Two ravens met.").name
    'the text given'

    Raises:
        ReadingError: The argument looks like a file, and there is none; or there is no text in it.
    """
    source = EXAMPLE if argument is None else argument
    is_text = argument is not None and (literal or not names_source(argument))
    if field != "text" and (is_text or source.startswith("example:")):
        raise ReadingError(f"field is {field!r}, and only files of many documents (.jsonl, .csv, …) have fields")
    if target and (is_text or source.startswith("example:")):
        if target != field:
            raise ReadingError(
                f"target is {target!r}, and only files of many documents (.jsonl, .csv, …) have fields; --target "
                f"{field} takes the text as its own target"
            )
        options = ReadOptions(field=field, target=target)
        document = read_text_argument(argument, field=field, encoding=encoding, literal=literal)
        return add_own_target(document, options)
    if is_text:
        if not source.strip():
            raise ReadingError("the text is empty: there is nothing in it to read")
        return Document(source, "the text given")
    if source.startswith("example:"):
        return load_example(source.removeprefix("example:"))
    for document in documents([source], field=field, encoding=encoding, limit=1, target=target):
        if not document.is_blank:
            return document
    raise ReadingError(f"{'standard input' if source == '-' else source}: there is no text in it")


def names_source(argument: str) -> bool:
    """Return whether an argument names a file, a URL or a stream; False for a text.

    Raises:
        ReadingError: It names a folder, or a file that does not exist.
    """
    if is_file(argument):
        return True
    if len(argument.split()) != 1:
        return argument.startswith("example:")
    if is_stream(argument) or is_url(argument):
        return True
    if _is_folder(argument):
        raise ReadingError(f"{argument}: a folder; name one file in it. If the word itself is the text, add --text")
    separators = ("/", "\\") if len(argument) < 1000 else ()
    is_like_file = is_file_name(argument) or argument.lower().endswith(OTHER_ENDINGS)
    if is_like_file or any(separator in argument for separator in separators):
        raise ReadingError(f"{argument}: there is no such file. If the word itself is the text, add --text")
    return False


def _is_folder(argument: str) -> bool:
    try:
        return os.path.isdir(argument)
    except ValueError:
        return False


def is_file(argument: str) -> bool:
    """Whether an argument is the name of a file. A text is not: it is too long or has characters no name can have."""
    try:
        return Path(argument).is_file()
    except (OSError, ValueError):
        return False


def check_thresholds(**thresholds: float | None) -> None:
    """Raise a ReadingError for a threshold that is no share of a maximum. None is the default, or as saved."""
    for name, value in thresholds.items():
        if value is not None and not 0 <= value < 1:
            raise ReadingError(f"{name} is {value}: it is a share of the maximum, from 0 to below 1")


def parse_head(argument: str) -> tuple[int, Head]:
    """Return the layer and the head of a name such as L11H8 or L11sum.

    >>> parse_head("L11H8"), parse_head("l3sum")
    ((11, 8), (3, 'sum'))
    """
    name = argument.strip()
    is_sum = name.lower().endswith("sum")
    with suppress(SelectionError):
        ranges = parse_heads(name[:-3] if is_sum else name)
        if len(ranges) == 1 and (layers := ranges[0].layers) is not None and len(layers) == 1:
            heads = ranges[0].heads
            if is_sum and heads is None:
                return layers[0], SUM
            if not is_sum and heads is not None and len(heads) == 1:
                return layers[0], heads[0]
    raise ReadingError(f"{argument!r} is not one head: write L11H8, or L11sum for the sum over the layer's heads")

"""Readers for each file format, and the bundled texts.

Readers for each file format. Every reader streams, and every error names the file and the line.

Readers of splittable files take the range of a part: bytes of files of lines, row groups of Parquet files.

Bundled data: a small corpus of encyclopaedia openings (CC0), and the two inputs printed in the paper.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from headscope.corpus import document
from headscope.corpus.conllu import read_conllu, read_treebank
from headscope.corpus.document import (
    LARGEST,
    NO_JSON,
    RELATIONS,
    BrokenDocumentError,
    Document,
    ReadOptions,
    add_own_target,
    build_document,
    extract_texts,
    find_missing_field,
    make_size_error,
    replace_lone_surrogates,
)
from headscope.corpus.lines import (
    BOM,
    Readable,
    get_line_prefix,
    has_line_bytes,
    open_lines,
    read_line_documents,
    read_whole,
    split_lines,
)
from headscope.corpus.storage import is_url, open_file, strip_query
from headscope.corpus.tables import MOST_VALUES, read_csv, read_parquet
from headscope.errors import CorpusError

OPENINGS = 64


def load_openings() -> Iterator[Document]:
    """Yield the documents of the bundled corpus."""
    for number, line in enumerate(_read_data("openings.jsonl").splitlines(), start=1):
        yield Document(json.loads(line)["text"], f"openings:{number}")


def examples() -> dict[str, str]:
    """Return the inputs printed in the paper.

    Returns
    -------
    dict of str to str
        The texts, by name.

    Examples
    --------
    >>> sorted(examples())
    ['airport-policing', 'gerstenslager']
    """
    return {name: str(example["text"]) for name, example in load_paper_examples().items()}


def load_paper_examples() -> dict[str, dict[str, Any]]:
    """Return the printed inputs with figure, tokens and, for Fig. 9, the high pairs listed for each head."""
    records: dict[str, dict[str, Any]] = json.loads(_read_data("paper.json"))["examples"]
    return records


def load_example(name: str) -> Document:
    """Return one of the printed inputs as a document."""
    available = examples()
    if name not in available:
        raise CorpusError(f"example:{name}: no such example; there are: {', '.join(sorted(available))}")
    return Document(available[name], f"example:{name}")


def _read_data(name: str) -> str:
    return (files("headscope") / "data" / name).read_text(encoding="utf-8")


__all__ = [
    "FORMATS",
    "LARGEST",
    "Document",
    "ReadOptions",
    "can_split",
    "choose_format",
    "detect_format",
    "is_file_name",
    "is_stream",
    "read_file",
    "replace_lone_surrogates",
]


def detect_format(path: str | Path) -> str | None:
    """Return the format that belongs to the ending of a file name, ignoring `.gz`; None for unknown endings."""
    name = os.path.basename(strip_query(str(path))).removesuffix(".gz")
    return ENDINGS.get(os.path.splitext(name)[1])


def is_file_name(text: str) -> bool:
    """Return whether a text is a single word with the ending of a file that headscope reads.

    >>> is_file_name("article.txt"), is_file_name("Wait..."), is_file_name("See article.txt")
    (True, False, False)
    """
    return len(text) < LONGEST_NAME and len(text.split()) == 1 and detect_format(text.strip()) is not None


def can_split(path: str, format: str, options: ReadOptions) -> bool:
    """Return whether parts of a file can be read without the parts before them."""
    # Compressed files and archives are decompressed from their beginning.
    if strip_query(path).endswith(".gz") or "::" in path:
        return False
    return format == "parquet" or (format in ("lines", "jsonl") and has_line_bytes(options.encoding))


def read_text(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a file that is one document."""
    with open_file(path) as stream:
        yield read_whole(stream, path, options)


def read_lines(path: str, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[Document]:
    """Read a file with one document per line, or the lines that begin in a range of its bytes."""
    with open_lines(path, start, stop) as stream:
        yield from read_line_documents(stream, get_line_prefix(path, start), options, from_start=not start)


def read_jsonl(path: str, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[Document]:
    """Read one JSON object per line, with the text in `field`; all lines, or those that begin in a range of bytes."""
    with open_lines(path, start, stop) as stream:
        yield from _read_objects(stream, get_line_prefix(path, start), options, from_start=not start)


def read_image(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a file that is one image. A broken image yields a broken document, which is skipped and counted."""
    with open_file(path) as stream:
        raw = stream.read(LARGEST + 1)
    yield Document.from_image(document.decode_image(raw), path)


def read_stream(stream: io.BufferedReader, options: ReadOptions) -> Iterator[Document]:
    """Read standard input: JSON Lines if its first character is `{`, otherwise a single text."""
    name = "standard input"
    format = options.format
    if format == "auto":
        opening = stream.peek(64).decode(options.encoding, "ignore").removeprefix(BOM).lstrip()
        format = "jsonl" if opening.startswith("{") else "text"
    if format == "text":
        return iter([read_whole(stream, name, options)])
    if format in ("jsonl", "lines"):
        return (_read_objects if format == "jsonl" else read_line_documents)(stream, f"{name}:", options)
    if format == "conllu":
        return read_treebank(stream, f"{name}:", options)
    raise CorpusError(
        f"standard input is read as text, lines, jsonl or conllu, not as {format}: write it to a file first"
    )


def read_hub(source: str, options: ReadOptions) -> Iterator[Document]:
    """Read `hf:NAME`, `hf:NAME:CONFIG`, either with `@SPLIT` (train by default), streamed through `datasets`.

    `hf://…` is not a dataset but a file on the hub.
    """
    try:
        import datasets
    except ImportError:
        raise CorpusError(
            f"{source}: reading hub datasets needs the extra: pip install 'headscope[datasets]'"
        ) from None
    name, _, split = source.removeprefix("hf:").partition("@")
    name, _, config = name.partition(":")
    if not name:
        raise CorpusError(f"{source}: names no dataset: write hf:NAME, for instance hf:wikimedia/wikipedia:20231101.en")
    try:
        rows: Iterable[dict[str, Any]] = datasets.load_dataset(
            name, config or None, split=split or "train", streaming=True
        )
        for number, row in enumerate(rows, start=1):
            if missing := find_missing_field(source, options, list(row)):
                raise CorpusError(str(missing))
            where = f"{source}, row {number}"
            yield build_document(where, options, partial(extract_texts, row, where, options))
    except CorpusError:
        raise
    except Exception as error:  # datasets raises errors of many types, also those of other libraries
        raise CorpusError(f"{source}: datasets could not read it: {type(error).__name__}: {error}") from None


FORMATS: dict[str, Callable[..., Iterator[Document]]] = {
    "text": read_text,
    "lines": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
    "conllu": read_conllu,
    "image": read_image,
}
ENDINGS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".conllu": "conllu",
    **dict.fromkeys(document.ENDINGS, "image"),
}

LONGEST_NAME = 4096
"""characters of the longest path on common systems"""


def _read_objects(
    stream: Readable, prefix: str, options: ReadOptions, *, from_start: bool = True
) -> Iterator[Document]:
    for number, line in enumerate(split_lines(stream, prefix, options, from_start=from_start), start=1):
        if isinstance(line, BrokenDocumentError) or (
            line and not line.isspace()
        ):  # empty: a file with nothing but a byte order mark
            where = f"{prefix}{number}"
            yield build_document(where, options, partial(_parse_line, line, where, options))


def _parse_line(line: str | BrokenDocumentError, where: str, options: ReadOptions) -> str | tuple[str, str] | Document:
    if isinstance(line, BrokenDocumentError):
        raise line
    if len(line) > MOST_VALUES and sum(map(line.count, ",[{")) > MOST_VALUES:
        raise make_size_error(where, f"this line has more than {MOST_VALUES:,} commas and brackets, or")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise BrokenDocumentError(
            NO_JSON, f'{where}: not a JSON object: {error}. Each line must be one object, like {{"text": "…"}}'
        ) from None
    if not isinstance(row, dict):
        raise BrokenDocumentError(
            NO_JSON, f"{where}: expected a JSON object with a field {options.field!r}, found {type(row).__name__}"
        )
    if missing := find_missing_field(where, options, list(row)):
        raise missing
    texts = extract_texts(row, where, options)
    relations = row.get(RELATIONS) if options.relations and RELATIONS not in options.fields else None
    if relations is None:
        return texts
    text, target = (texts, None) if isinstance(texts, str) else texts
    return Document(text, where, target=target, relations=relations)


def read_file(item: str, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[Document]:
    """Read a file or a stream, or a part of a file that can be split."""
    if item == "-":
        if sys.stdin is None:
            raise CorpusError("standard input is closed: there is nothing to read from -")
        return read_stream(cast(io.BufferedReader, sys.stdin.buffer), options)
    if is_stream(item):
        if item.startswith("hf:"):
            return read_hub(item, options)
        return iter([add_own_target(load_example(item.removeprefix("example:")), options)])
    read = FORMATS[choose_format(item, options)]
    return read(item, options, start, stop) if start or stop is not None else read(item, options)


def choose_format(item: str, options: ReadOptions) -> str:
    """Return the requested format, or the one that belongs to the ending of the file name; text for unknown endings."""
    if options.format != "auto":
        return options.format
    if item.lower().removesuffix(".gz").endswith(".json"):
        raise CorpusError(
            f"{item}: a JSON file is read only as JSON Lines, one object a line: name it .jsonl, or say --format jsonl"
        )
    return detect_format(item) or "text"


def is_stream(item: str) -> bool:
    """Return whether a source is not a file, but standard input, a hub dataset or an example."""
    return item == "-" or (item.startswith(("hf:", "example:")) and not is_url(item))

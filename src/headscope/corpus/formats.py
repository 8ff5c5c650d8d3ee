"""How each kind of file becomes documents. Every reader streams, and every error names the file and the line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from headscope.corpus import images
from headscope.corpus.document import (
    LARGEST,
    NO_JSON,
    Broken,
    Document,
    ReadOptions,
    made,
    no_field,
    text_of,
    too_large,
    whole_characters,
)
from headscope.corpus.lines import BOM, lines, text_lines, whole
from headscope.corpus.places import is_url, opened, plain_name
from headscope.corpus.tables import MOST_VALUES, read_csv, read_parquet
from headscope.errors import CorpusError

__all__ = [
    "FORMATS",
    "LARGEST",
    "Document",
    "ReadOptions",
    "format_of",
    "read_hub",
    "read_stream",
    "whole_characters",
]


def format_of(path: str | Path) -> str | None:
    """The format a file's ending says, `.gz` aside; None if the ending says nothing."""
    name = Path(plain_name(str(path))).name.removesuffix(".gz")
    return ENDINGS.get(Path(name).suffix)


def read_text(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file that is one document."""
    with opened(path) as stream:
        yield whole(stream, path, options)


def read_lines(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file with one document a line."""
    with opened(path) as stream:
        yield from lines(stream, path, options)


def read_jsonl(path: str, options: ReadOptions) -> Iterator[Document]:
    """One JSON object a line, the text in `field`."""
    with opened(path) as stream:
        yield from _jsonl(stream, path, options)


def read_image(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file that is one image; a broken one is a document that says so, and is skipped and counted."""
    with opened(path) as stream:
        raw = stream.read(LARGEST + 1)
    yield Document.of_image(images.decoded(raw), path)


def read_stream(stream: io.BufferedReader, options: ReadOptions) -> Iterator[Document]:
    """Standard input: JSON Lines where its first character is `{`, else the whole of it is one text."""
    name = "standard input"
    format = options.format
    if format == "auto":
        opening = stream.peek(64).decode(options.encoding, "ignore").removeprefix(BOM).lstrip()
        format = "jsonl" if opening.startswith("{") else "text"
    if format == "text":
        return iter([whole(stream, name, options)])
    if format in ("jsonl", "lines"):
        return (_jsonl if format == "jsonl" else lines)(stream, name, options)
    raise CorpusError(f"standard input is read as text, lines or jsonl, not as {format}: write it to a file first")


def read_hub(source: str, options: ReadOptions) -> Iterator[Document]:
    """`hf:NAME`, `hf:NAME:CONFIG`, either with `@SPLIT` (train by default), streamed through `datasets`.

    `hf://…` is no dataset but a file on the hub.
    """
    if is_url(source):
        yield from FORMATS[options.format if options.format != "auto" else format_of(source) or "text"](source, options)
        return
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
            if options.field not in row:
                raise CorpusError(str(no_field(source, options.field, list(row))))
            where, value = f"{source}, row {number}", row[options.field]
            yield made(where, options, lambda value=value, where=where: text_of(value, where, options))  # type: ignore[misc]
    except CorpusError:
        raise
    except Exception as error:  # datasets raises many kinds, its own and those of every library below it
        raise CorpusError(f"{source}: datasets could not read it: {type(error).__name__}: {error}") from None


FORMATS: dict[str, Callable[[str, ReadOptions], Iterator[Document]]] = {
    "text": read_text,
    "lines": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
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
    **dict.fromkeys(images.ENDINGS, "image"),
}


def _jsonl(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[Document]:
    for number, line in enumerate(text_lines(stream, name, options), start=1):
        if isinstance(line, Broken) or not line.isspace():
            where = f"{name}:{number}"
            yield made(where, options, lambda line=line, where=where: _json_text(line, where, options))  # type: ignore[misc]


def _json_text(line: str | Broken, where: str, options: ReadOptions) -> str:
    if isinstance(line, Broken):
        raise line
    if len(line) > MOST_VALUES and sum(map(line.count, ",[{")) > MOST_VALUES:
        raise too_large(where, f"this line has more than {MOST_VALUES:,} commas and brackets, or")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise Broken(
            NO_JSON, f'{where}: not a JSON object: {error}. Each line must be one object, like {{"text": "…"}}'
        ) from None
    if not isinstance(row, dict):
        raise Broken(
            NO_JSON, f"{where}: expected a JSON object with a field {options.field!r}, found {type(row).__name__}"
        )
    if options.field not in row:
        raise no_field(where, options.field, list(row))
    return text_of(row[options.field], where, options)

"""How each kind of file becomes documents. Every reader streams, and every error names the file and the line."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from headscope.corpus import images
from headscope.errors import CorpusError


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and where it came from (`file`, or `file:line`); or one image, and then the text is empty."""

    text: str
    name: str
    image: images.Picture | None = None
    broken: str = ""
    """of an image that cannot be read: why"""

    def __post_init__(self) -> None:
        # Half a surrogate pair, as cut-off emojis leave them in JSON, is no character: no tokenizer takes it, and no
        # file. It becomes U+FFFD, the sign for such characters, wherever the document comes from.
        object.__setattr__(self, "text", whole_characters(self.text))
        object.__setattr__(self, "name", whole_characters(self.name))

    @classmethod
    def of_image(cls, image: images.Picture | str, name: str) -> Document:
        """An image, or why it cannot be read."""
        return cls("", name, broken=image) if isinstance(image, str) else cls("", name, image=image)

    @property
    def is_image(self) -> bool:
        return self.image is not None or bool(self.broken)

    @property
    def content(self) -> bytes:
        """What its hash is made of."""
        return self.text.encode("utf-8", "surrogatepass") if self.image is None else self.image.content

    @property
    def excerpt(self) -> str:
        """The text in one line; of an image, its size."""
        return " ".join(self.text.split()) if self.image is None else self.image.size


@dataclass(frozen=True)
class ReadOptions:
    """How texts are found in files."""

    field: str = "text"
    format: str = "auto"
    encoding: str = "utf-8"


def whole_characters(text: str) -> str:
    """A text with U+FFFD for every surrogate that stands alone.

    >>> whole_characters("cut \\ud83d off")
    'cut \ufffd off'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def format_of(path: Path) -> str | None:
    """The format a file's ending says, `.gz` aside; None if the ending says nothing."""
    name = path.name.lower().removesuffix(".gz")
    return ENDINGS.get(Path(name).suffix)


def read_text(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file that is one document."""
    with _opened(path) as stream:
        yield Document(_whole(stream, path, options), path)


def read_lines(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file with one document a line."""
    with _opened(path) as stream:
        yield from _lines(stream, path, options)


def read_jsonl(path: str, options: ReadOptions) -> Iterator[Document]:
    """One JSON object a line, the text in `field`."""
    with _opened(path) as stream:
        yield from _jsonl(stream, path, options)


def read_csv(path: str, options: ReadOptions) -> Iterator[Document]:
    """A table with a header line, comma-separated (`.tsv`: tab-separated), the text in column `field`."""
    delimiter = "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","
    with _opened(path) as stream:
        # Old Excel ends lines with a carriage return alone, which the csv module only takes at the end of what it gets.
        lines = (part for line in _text_lines(stream, path, options) for part in io.StringIO(line, newline=""))
        # Python's own limit of 128 KiB a cell is less than many documents have.
        csv.field_size_limit(2**31 - 1)
        # Not strict, a quote that is never closed would make one text of all the rows that follow it.
        rows = csv.DictReader(lines, delimiter=delimiter, strict=True)
        read = 0
        try:
            names = rows.fieldnames
            if names is not None and options.field not in names:
                raise _no_field(f"{path}:1", options.field, list(names))
            for row in rows:
                read = rows.line_num
                where = f"{path}:{read}"
                yield Document(_text_of(row[options.field], where, options), where)
        except csv.Error as error:
            raise CorpusError(
                f"{path}:{read + 1}: not readable as CSV from here: {error}. A quote is not closed, or not doubled "
                "inside a quoted cell"
            ) from None


def read_parquet(path: str, options: ReadOptions) -> Iterator[Document]:
    """A Parquet file, the text in column `field`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _opened(path) as stream:
        # Parquet is read from its end, which a compressed stream cannot offer without unpacking it first.
        source = io.BytesIO(stream.read()) if path.lower().endswith(".gz") else stream
        try:
            table = pq.ParquetFile(source)
            if options.field not in table.schema_arrow.names:
                raise _no_field(path, options.field, table.schema_arrow.names)
            row = 0
            for batch in table.iter_batches(batch_size=1024, columns=[options.field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield Document(_text_of(value, f"{path}, row {row}", options), f"{path}:{row}")
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise CorpusError(f"{path}: not readable as Parquet: {error}") from None


def read_image(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file that is one image; a broken one is a document that says so, and is skipped and counted."""
    with _opened(path) as stream:
        raw = stream.read()
    yield Document.of_image(images.decoded(raw), path)


def read_stream(stream: io.BufferedReader, options: ReadOptions) -> Iterator[Document]:
    """Standard input: JSON Lines where its first character is `{`, else the whole of it is one text."""
    name = "standard input"
    format = options.format
    if format == "auto":
        opening = stream.peek(64).decode(options.encoding, "ignore").removeprefix(BOM).lstrip()
        format = "jsonl" if opening.startswith("{") else "text"
    if format == "text":
        return iter([Document(_whole(stream, name, options), name)])
    if format in ("jsonl", "lines"):
        return (_jsonl if format == "jsonl" else _lines)(stream, name, options)
    raise CorpusError(f"standard input is read as text, lines or jsonl, not as {format}: write it to a file first")


def read_hub(source: str, options: ReadOptions) -> Iterator[Document]:
    """`hf:NAME`, `hf:NAME:CONFIG`, either with `@SPLIT` (train by default), streamed through `datasets`."""
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
                raise _no_field(source, options.field, list(row))
            where = f"{source}, row {number}"
            yield Document(_text_of(row[options.field], where, options), where)
    except CorpusError:
        raise
    except Exception as error:  # datasets raises many kinds, its own and those of every library below it
        raise CorpusError(f"{source}: datasets could not read it: {type(error).__name__}: {error}") from None


BOM = "\ufeff"
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


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as stream:
            yield stream  # type: ignore[misc]  # a GzipFile reads like any binary file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: a damaged .gz file: {error}") from None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from None


def _lines(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[Document]:
    for number, line in enumerate(_text_lines(stream, name, options), start=1):
        yield Document(line.removesuffix("\n").removesuffix("\r"), f"{name}:{number}")


def _jsonl(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[Document]:
    for number, line in enumerate(_text_lines(stream, name, options), start=1):
        where = f"{name}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
            raise CorpusError(
                f'{where}: not a JSON object: {error}. Each line must be one object, like {{"text": "…"}}'
            ) from None
        if not isinstance(row, dict):
            raise CorpusError(
                f"{where}: expected a JSON object with a field {options.field!r}, found {type(row).__name__}"
            )
        if options.field not in row:
            raise _no_field(where, options.field, list(row))
        yield Document(_text_of(row[options.field], where, options), where)


def _text_of(value: object, where: str, options: ReadOptions) -> str:
    """A cell's text; a missing value is an empty text, which is skipped and counted later."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(
            f"{where}: field {options.field!r} holds {type(value).__name__}, not text: choose another with --field"
        )
    return value


def _text_lines(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[str]:
    """A file's lines with their ends, decoded as they come: an error names its line, and memory holds one line."""
    decoder = codecs.getincrementaldecoder(options.encoding)()
    number, line = 1, ""
    # A piece ends with the byte 0x0A, which in UTF-16 is but half a line end, or half of another character.
    for raw in chain(stream, [b""]):
        try:
            line += decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            before = len(line.encode(options.encoding)) if line else 0
            raise _badly_encoded(f"{name}:{number}", error, options, before) from None
        *ended, line = line.split("\n")
        for text in ended:
            yield _checked(f"{text}\n", f"{name}:{number}", first=number == 1)
            number += 1
    if line:
        yield _checked(line, f"{name}:{number}", first=number == 1)


def _whole(stream: BinaryIO, name: str, options: ReadOptions) -> str:
    try:
        return _checked(stream.read().decode(options.encoding), name, first=True)
    except UnicodeError as error:
        raise _badly_encoded(name, error, options) from None


def _checked(text: str, where: str, *, first: bool) -> str:
    if "\0" in text:
        raise CorpusError(
            f"{where}: holds NUL bytes: a binary file, or text in another encoding (say so with --encoding utf-16)"
        )
    return text.removeprefix(BOM) if first else text


def _badly_encoded(where: str, error: UnicodeError, options: ReadOptions, before: int = 0) -> CorpusError:
    what = str(error)
    if isinstance(error, UnicodeDecodeError):
        what = f"byte {error.object[error.start]:#04x} at position {before + error.start}"
    return CorpusError(
        f"{where}: not {options.encoding} text ({what}): "
        "a binary file, or text in another encoding (say so with --encoding, for instance latin-1 or utf-16)"
    )


def _no_field(where: str, field: str, present: list[str]) -> CorpusError:
    there = ", ".join(present[:20]) or "none"
    return CorpusError(f"{where}: no field {field!r}; the fields there are: {there}. Choose one with --field")

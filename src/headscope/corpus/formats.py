"""How each kind of file becomes documents. Every reader streams, and every error names the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headscope.errors import CorpusError


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and where it came from (`file`, or `file:line`)."""

    text: str
    name: str


@dataclass(frozen=True)
class ReadOptions:
    """How texts are found in files."""

    field: str = "text"
    format: str = "auto"
    encoding: str = "utf-8"


def format_of(path: Path) -> str | None:
    """The format a file's ending says, `.gz` aside; None if the ending says nothing."""
    name = path.name.lower().removesuffix(".gz")
    return ENDINGS.get(Path(name).suffix)


def read_text(path: str, options: ReadOptions) -> Iterator[Document]:
    """A file that is one document."""
    with _opened(path) as stream:
        yield Document(_decoded(stream.read(), path, options), path)


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
    delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
    with _opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding=_with_bom(options.encoding), newline="")
        # Python's own limit of 128 KiB a cell is less than many documents have.
        csv.field_size_limit(2**31 - 1)
        rows = csv.DictReader(text, delimiter=delimiter)
        try:
            for row in rows:
                if options.field not in row:
                    raise _no_field(f"{path}:1", options.field, [name for name in row if name is not None])
                yield Document(
                    _text_of(row[options.field], f"{path}:{rows.line_num}", options), f"{path}:{rows.line_num}"
                )
        except UnicodeDecodeError as error:
            raise _badly_encoded(f"{path}, near line {rows.line_num + 1}", error, options) from None
        except csv.Error as error:
            raise CorpusError(f"{path}:{rows.line_num}: not readable as CSV: {error}") from None


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
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path}: not readable as Parquet: {error}") from None


def read_stream(stream: io.BufferedReader, options: ReadOptions) -> Iterator[Document]:
    """Standard input: JSON Lines where its first character is `{`, else the whole of it is one text."""
    name = "standard input"
    format = options.format
    if format == "auto":
        format = "jsonl" if stream.peek(64).lstrip()[:1] == b"{" else "text"
    if format == "text":
        return iter([Document(_decoded(stream.read(), name, options), name)])
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


FORMATS: dict[str, Callable[[str, ReadOptions], Iterator[Document]]] = {
    "text": read_text,
    "lines": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
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
    for number, line in enumerate(stream, start=1):
        where = f"{name}:{number}"
        yield Document(_decoded(line, where, options).rstrip("\r\n"), where)


def _jsonl(stream: BinaryIO, name: str, options: ReadOptions) -> Iterator[Document]:
    for number, raw in enumerate(stream, start=1):
        where = f"{name}:{number}"
        line = _decoded(raw, where, options)
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
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


def _decoded(raw: bytes, where: str, options: ReadOptions) -> str:
    try:
        text = raw.decode(_with_bom(options.encoding))
    except UnicodeDecodeError as error:
        raise _badly_encoded(where, error, options) from None
    if "\0" in text:
        raise CorpusError(
            f"{where}: holds NUL bytes: a binary file, or text in another encoding (say so with --encoding utf-16)"
        )
    return text


def _with_bom(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _badly_encoded(where: str, error: UnicodeDecodeError, options: ReadOptions) -> CorpusError:
    return CorpusError(
        f"{where}: not {options.encoding} text (byte {error.object[error.start]:#04x} at position {error.start}): "
        "a binary file, or text in another encoding (say so with --encoding, for instance latin-1)"
    )


def _no_field(where: str, field: str, present: list[str]) -> CorpusError:
    there = ", ".join(present[:20]) or "none"
    return CorpusError(f"{where}: no field {field!r}; the fields there are: {there}. Choose one with --field")

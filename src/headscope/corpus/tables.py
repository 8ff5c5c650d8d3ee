"""Tables: CSV, TSV and Parquet files with one document a row."""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

from headscope.corpus.document import (
    BAD_ENCODING,
    LARGEST,
    NO_ROW,
    Broken,
    Document,
    ReadOptions,
    made,
    no_field,
    text_of,
    too_large,
)
from headscope.corpus.lines import text_lines
from headscope.corpus.places import opened, plain_name
from headscope.errors import CorpusError

MOST_VALUES = 2**22
"""cells of a row, or values of a JSON line: each takes many times the memory of what is written for it"""
UNPACKED = 2**30
"""bytes of a packed Parquet file, which has to be unpacked to disk"""
TOGETHER, ROWS = 2**24, 64
"""bytes, and rows at most, of a Parquet column that are decoded at once"""


def read_csv(path: str, options: ReadOptions) -> Iterator[Document]:
    """A table with a header line, comma-separated (`.tsv`: tab-separated), the text in column `field`."""
    delimiter = "\t" if plain_name(path).removesuffix(".gz").endswith(".tsv") else ","
    # Python's own limit of 128 KiB a cell is less than many documents have.
    csv.field_size_limit(2**31 - 1)
    with opened(path) as stream:
        lines = _Lines(text_lines(stream, path, options), path, delimiter)
        # Not strict, a quote that is never closed would make one text of all the rows that follow it.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names = _row(rows, lines)
        if names is None:
            return
        if isinstance(names, Broken) or options.field not in names:
            raise names if isinstance(names, Broken) else no_field(f"{path}:1", options.field, names)
        column = len(names) - 1 - names[::-1].index(options.field)
        while (row := _row(rows, lines)) is not None:
            where = f"{path}:{lines.number}"
            if row:
                yield made(where, options, lambda row=row, where=where: _cell(row, column, where, options))  # type: ignore[misc]


class _Lines(Iterator[str]):
    """Lines for the csv module, which reads as many as a row goes over. A broken one ends its row, and not the file."""

    def __init__(self, lines: Iterator[str | Broken], path: str, delimiter: str) -> None:
        self.parts = (part for line in lines for part in _parts(line))
        self.path, self.delimiter, self.number = path, delimiter, 0
        self.begin()

    def begin(self) -> None:
        """A row begins."""
        self.first, self.size, self.cells = self.number + 1, 0, 0

    def __next__(self) -> str:
        line = next(self.parts)
        self.number += 1
        if isinstance(line, Broken):
            raise line
        self.size += len(line)
        self.cells += line.count(self.delimiter)
        if self.size > LARGEST or self.cells > MOST_VALUES:
            raise too_large(f"{self.path}:{self.first}", "this row", "is a quote not closed? Cut it into documents")
        return line


def _parts(line: str | Broken) -> list[str] | list[Broken]:
    """Old Excel ends lines with a carriage return alone, which the csv module only takes at the end of what it gets."""
    if isinstance(line, Broken):
        return [line]
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", line) if "\r" in line else [line]


def _row(rows: Any, lines: _Lines) -> list[str] | Broken | None:
    """The next row, or why it cannot be read; None at the end."""
    lines.begin()
    try:
        return list(next(rows))
    except StopIteration:
        return None
    except Broken as error:
        return error
    except csv.Error as error:
        return Broken(
            NO_ROW,
            f"{lines.path}:{lines.first}: not readable as CSV from here: {error}. A quote is not closed, or not "
            "doubled inside a quoted cell",
        )


def _cell(row: list[str] | Broken, column: int, where: str, options: ReadOptions) -> str:
    if isinstance(row, Broken):
        raise row
    return text_of(row[column] if column < len(row) else None, where, options)


def read_parquet(path: str, options: ReadOptions) -> Iterator[Document]:
    """A Parquet file, the text in column `field`.

    What a page holds is decoded as a whole, and a file may say less of it than is true: the memory that a Parquet file
    takes which was made to fill it is not bounded here.
    """
    with opened(path) as stream, ExitStack() as kept:
        source = stream
        if plain_name(path).endswith(".gz") or not stream.seekable():
            source = kept.enter_context(tempfile.TemporaryFile())
            _unpack(stream, source, path)
        try:
            yield from _parquet_rows(source, path, options)
        except CorpusError:
            raise
        except Exception as error:  # pyarrow raises errors of many kinds on damaged files
            raise CorpusError(f"{path}: not readable as Parquet: {error}") from None


def _unpack(stream: BinaryIO, target: Any, path: str) -> None:
    """Parquet is read from its end, which a compressed stream cannot offer without unpacking it first."""
    size = 0
    while piece := stream.read(2**20):
        size += len(piece)
        if size > UNPACKED:
            raise CorpusError(
                f"{path}: unpacks to more than {UNPACKED:,} bytes, and Parquet cannot be read while it is unpacked: "
                "unpack it first (gunzip)"
            )
        target.write(piece)
    target.seek(0)


def _parquet_rows(source: BinaryIO, path: str, options: ReadOptions) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = options.field
    table = pq.ParquetFile(source, buffer_size=2**20)
    if field not in table.schema_arrow.names:
        raise no_field(path, field, table.schema_arrow.names)
    kind = table.schema_arrow.types[table.schema_arrow.names.index(field)]
    if pa.types.is_nested(kind):
        raise CorpusError(f"{path}: field {field!r} holds {kind}, not text: choose another with --field"[:1000])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # A text that stands in the file once and is repeated a million times is then held once as well.
        table = pq.ParquetFile(source, buffer_size=2**20, read_dictionary=[field])
    row = 0
    for batch in table.iter_batches(batch_size=_rows_together(table), columns=[field], use_threads=False):
        for value in batch.column(0):
            row += 1
            where = f"{path}, row {row}"
            yield made(f"{path}:{row}", options, lambda value=value, where=where: _value(value, where, options))  # type: ignore[misc]


def _rows_together(table: Any) -> int:
    """How many rows to decode at once, from what the file says of its size.

    Of all columns together: what it says of one column makes pyarrow end the process where the file is damaged.
    """
    groups = [table.metadata.row_group(k) for k in range(table.metadata.num_row_groups)]
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    return int(min(ROWS, max(1, TOGETHER // max(1, largest))))


def _value(value: Any, where: str, options: ReadOptions) -> str:
    try:
        return text_of(value.as_py(), where, options)
    except UnicodeDecodeError as error:
        raise Broken(
            BAD_ENCODING, f"{where}: not readable as Parquet: its text is not utf-8 ({error.reason})"
        ) from None

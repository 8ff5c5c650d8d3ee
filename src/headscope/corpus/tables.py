"""Tables: CSV, TSV and Parquet files with one document a row."""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, BinaryIO

from headscope.corpus.document import (
    BAD_ENCODING,
    LARGEST,
    NO_ROW,
    Broken,
    Document,
    ReadOptions,
    build_document,
    extract_text,
    make_field_error,
    make_size_error,
)
from headscope.corpus.lines import split_lines
from headscope.corpus.storage import open_file, strip_query
from headscope.errors import CorpusError

MOST_VALUES = 2**22
"""cells of a row, or values of a JSON line: each takes many times the memory of what is written for it"""
UNPACKED = 2**30
"""bytes of a packed Parquet file, which has to be unpacked to disk"""
TOGETHER, ROWS = 2**24, 64
"""bytes, and rows at most, of a Parquet column that are decoded at once"""


def read_csv(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a table with a header line, comma-separated (`.tsv`: tab-separated), the text in column `field`."""
    delimiter = "\t" if strip_query(path).removesuffix(".gz").endswith(".tsv") else ","
    # Python's own limit of 128 KiB a cell is less than many documents have.
    csv.field_size_limit(2**31 - 1)
    with open_file(path) as stream:
        lines = _Lines(split_lines(stream, f"{path}:", options), path, delimiter)
        # Not strict, a quote that is never closed would make one text of all the rows that follow it.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names = _read_row(rows, lines)
        if names is None:
            return
        if isinstance(names, Broken) or options.field not in names:
            raise names if isinstance(names, Broken) else make_field_error(f"{path}:1", options.field, names)
        column = len(names) - 1 - names[::-1].index(options.field)
        while (row := _read_row(rows, lines)) is not None:
            where = f"{path}:{lines.number}"
            if row:
                get_text = partial(_get_cell, row, column, where, options)
                yield build_document(where, options, get_text)


class _Lines(Iterator[str]):
    """Lines for the csv module, which reads as many as a row goes over. A broken one ends its row, and not the file."""

    def __init__(self, lines: Iterator[str | Broken], path: str, delimiter: str) -> None:
        self.parts = (part for line in lines for part in _split_returns(line))
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
            raise make_size_error(
                f"{self.path}:{self.first}", "this row", "is a quote not closed? Cut it into documents"
            )
        return line


def _split_returns(line: str | Broken) -> list[str] | list[Broken]:
    """Old Excel ends lines with a carriage return alone, which the csv module only takes at the end of what it gets."""
    if isinstance(line, Broken):
        return [line]
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", line) if "\r" in line else [line]


def _read_row(rows: Any, lines: _Lines) -> list[str] | Broken | None:
    """Return the next row, or why it cannot be read; None at the end."""
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


def _get_cell(row: list[str] | Broken, column: int, where: str, options: ReadOptions) -> str:
    if isinstance(row, Broken):
        raise row
    return extract_text(row[column] if column < len(row) else None, where, options)


def read_parquet(path: str, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[Document]:
    """Read a Parquet file, or its row groups `start`..`stop`-1, the text in column `field`.

    What a page holds is decoded as a whole, and a file may say less of it than is true: the memory that a Parquet file
    takes which was made to fill it is not bounded here.
    """
    with open_file(path) as stream, ExitStack() as opened:
        source = stream
        if strip_query(path).endswith(".gz") or not stream.seekable():
            source = opened.enter_context(tempfile.TemporaryFile())
            _unpack(stream, source, path)
        try:
            yield from _read_rows(source, path, options, start, stop)
        except CorpusError:
            raise
        except Exception as error:  # pyarrow raises errors of many kinds on damaged files
            raise _unreadable(path, error) from None


def count_rows(path: str) -> list[int]:
    """Return how many rows each row group of a Parquet file has, from its footer alone.

    Raises:
        CorpusError: The footer cannot be read.
    """
    import pyarrow.parquet as pq

    try:
        with open_file(path, read_ahead=False) as stream:
            metadata = pq.ParquetFile(stream).metadata
            return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    except CorpusError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> CorpusError:
    return CorpusError(f"{path}: not readable as Parquet: {error}")


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


def _read_rows(source: BinaryIO, path: str, options: ReadOptions, start: int, stop: int | None) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    field = options.field
    table = pq.ParquetFile(source, buffer_size=2**20)
    if field not in table.schema_arrow.names:
        raise make_field_error(path, field, table.schema_arrow.names)
    kind = table.schema_arrow.types[table.schema_arrow.names.index(field)]
    if pa.types.is_nested(kind):
        raise CorpusError(f"{path}: field {field!r} holds {kind}, not text: choose another with --field"[:1000])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # A text that stands in the file once and is repeated a million times is then held once as well.
        table = pq.ParquetFile(source, metadata=table.metadata, buffer_size=2**20, read_dictionary=[field])
    metadata = table.metadata
    row = sum(metadata.row_group(k).num_rows for k in range(min(start, metadata.num_row_groups)))
    groups = range(metadata.num_row_groups)[start:stop]
    batches = table.iter_batches(
        batch_size=_choose_batch(metadata, groups), row_groups=list(groups), columns=[field], use_threads=False
    )
    for batch in batches:
        for value in batch.column(0):
            row += 1
            where = f"{path}, row {row}"
            yield build_document(f"{path}:{row}", options, partial(_get_value, value, where, options))


def _choose_batch(metadata: Any, groups: range) -> int:
    """Choose how many rows to decode at once, from what the file says of its size.

    Of all columns together: what it says of one column makes pyarrow end the process where the file is damaged.
    """
    rows = (metadata.row_group(k) for k in groups)
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in rows), default=1)
    return int(min(ROWS, max(1, TOGETHER // max(1, largest))))


def _get_value(value: Any, where: str, options: ReadOptions) -> str:
    try:
        return extract_text(value.as_py(), where, options)
    except UnicodeDecodeError as error:
        raise Broken(
            BAD_ENCODING, f"{where}: not readable as Parquet: its text is not utf-8 ({error.reason})"
        ) from None

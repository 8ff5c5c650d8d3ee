"""Tables with one document per row: CSV, TSV and Parquet files, DataFrames and datasets.

Read CSV, TSV and Parquet files with one document per row.

Texts in a pandas DataFrame or Series, or in a Dataset of the package datasets. Neither package is imported here.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from headscope.corpus.document import (
    BAD_ENCODING,
    LARGEST,
    NO_ROW,
    BrokenDocumentError,
    Document,
    ReadOptions,
    build_document,
    extract_texts,
    find_missing_field,
    make_size_error,
)
from headscope.corpus.lines import split_lines
from headscope.corpus.storage import open_file, strip_query
from headscope.errors import CorpusError

MOST_VALUES = 2**22
"""Largest number of cells of a row, or values of a JSON line: each takes much more memory than its characters."""
UNPACKED = 2**30
"""largest decompressed size of a Parquet file, which has to be decompressed to disk"""
TOGETHER, ROWS = 2**24, 64
"""bytes, and largest number of rows, of a Parquet column that are decoded at once"""


def read_csv(path: str, options: ReadOptions) -> Iterator[Document]:
    """Read a table with a header line, comma-separated (`.tsv`: tab-separated), the text in column `field`.

    In TSV files quotes may be quotes, as in CSV, or characters like others: they are quotes until a row shows that they
    are not. Otherwise a cell that begins with a quote would swallow the rows until the next one.
    """
    is_tsv = strip_query(path).removesuffix(".gz").endswith(".tsv")
    # The default limit of 128 KiB per cell is too small for many documents.
    csv.field_size_limit(2**31 - 1)
    with open_file(path) as stream:
        rows = _Rows(_Lines(split_lines(stream, f"{path}:", options), path, "\t" if is_tsv else ","))
        names = rows.read()
        if names is None:
            return
        if isinstance(names, BrokenDocumentError):
            raise names
        if missing := find_missing_field(f"{path}:1", options, names):
            raise missing
        rows.columns = len(names)
        columns = {field: len(names) - 1 - names[::-1].index(field) for field in options.fields}
        while (row := rows.read()) is not None:
            where = f"{path}:{rows.lines.number}"
            if row:
                get_text = partial(_get_cells, row, columns, where, options)
                yield build_document(where, options, get_text)


class _Lines(Iterator[str]):
    """Lines for the csv module, which reads as many as a row spans. A broken line ends its row, but not the file."""

    def __init__(self, lines: Iterator[str | BrokenDocumentError], path: str, delimiter: str) -> None:
        self.parts: Iterator[str | BrokenDocumentError] = (
            part for line in lines for part in _split_carriage_returns(line)
        )
        self.path, self.delimiter, self.number = path, delimiter, 0
        self.longest = 0
        """most lines of a row; 0: as many as it spans"""
        self.begin()

    def begin(self) -> None:
        """Begin a new row."""
        self.first, self.size, self.cells = self.number + 1, 0, 0
        self.row: list[str | BrokenDocumentError] = []

    def reread(self, start: int) -> None:
        """Go back to the line of this row with the index `start`."""
        self.parts = chain(self.row[start:], self.parts)
        self.number -= len(self.row) - start
        self.begin()

    def __next__(self) -> str:
        if self.longest and len(self.row) == self.longest:
            raise StopIteration
        line = next(self.parts)
        self.number += 1
        self.row.append(line)
        if isinstance(line, BrokenDocumentError):
            raise line
        self.size += len(line)
        self.cells += line.count(self.delimiter)
        if self.size > LARGEST or self.cells > MOST_VALUES:
            raise make_size_error(
                f"{self.path}:{self.first}", "this row", "is a quote not closed? Cut it into documents"
            )
        return line


class _Rows:
    """Rows of a table, each with the lines that it spans."""

    def __init__(self, lines: _Lines) -> None:
        self.lines = lines
        self.columns = 0
        """number of cells of the header"""
        # Without `strict`, an unclosed quote would merge all following rows into one text.
        self.reader = csv.reader(lines, delimiter=lines.delimiter, strict=True)

    def read(self) -> list[str] | BrokenDocumentError | None:
        """Return the next row, or the error if it cannot be read; None at the end."""
        lines = self.lines
        lines.begin()
        row = self._parse()
        is_cut_off = isinstance(row, BrokenDocumentError) and len(lines.row) > 1
        if lines.delimiter == "\t" and lines.row and not lines.longest:
            is_wrong = isinstance(row, BrokenDocumentError) and isinstance(lines.row[0], str)
            if is_wrong or self._swallows_rows():
                lines.reread(0)
                lines.longest = 1
                self.reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
                return self.read()
        elif is_cut_off:  # by a quote that is not closed: the lines after the first may be rows
            where = lines.first
            lines.reread(1)
            lines.longest = 1
            lines.number = where
        return row

    def _parse(self) -> list[str] | BrokenDocumentError | None:
        lines = self.lines
        try:
            return list(next(self.reader))
        except StopIteration:
            return None
        except BrokenDocumentError as error:
            return error
        except csv.Error as error:
            return BrokenDocumentError(
                NO_ROW,
                f"{lines.path}:{lines.first}: not readable as CSV from here: {error}. A quote is not closed, or not "
                "doubled inside a quoted cell",
            )

    def _swallows_rows(self) -> bool:
        """Return whether every line of the row has as many cells as the header, so that each is a row by itself."""
        texts = [line for line in self.lines.row if isinstance(line, str)]
        return self.columns > 1 and len(texts) > 1 and all(line.count("\t") == self.columns - 1 for line in texts)


def _split_carriage_returns(line: str | BrokenDocumentError) -> list[str] | list[BrokenDocumentError]:
    """Split a line at lone carriage returns (old Excel), which the csv module accepts only at the end of its input."""
    if isinstance(line, BrokenDocumentError):
        return [line]
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+", line) if "\r" in line else [line]


def _get_cells(
    row: list[str] | BrokenDocumentError, columns: dict[str, int], where: str, options: ReadOptions
) -> str | tuple[str, str]:
    if isinstance(row, BrokenDocumentError):
        raise row
    values = {field: row[column] if column < len(row) else None for field, column in columns.items()}
    return extract_texts(values, where, options)


def read_parquet(path: str, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[Document]:
    """Read a Parquet file, or its row groups `start`..`stop`-1, the text in column `field`.

    Pages are decoded completely, and files may declare a wrong size for them. Memory is therefore not bounded for
    Parquet files that were built as decompression bombs.
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
            raise _make_parquet_error(path, error) from None


def count_rows(path: str) -> list[int]:
    """Return the number of rows of each row group of a Parquet file, read from its footer.

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
        raise _make_parquet_error(path, error) from None


def _make_parquet_error(path: str, error: Exception) -> CorpusError:
    return CorpusError(f"{path}: not readable as Parquet: {error}")


def _unpack(stream: BinaryIO, target: Any, path: str) -> None:
    """Decompress a stream to a file: reading Parquet starts at its end."""
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

    table = pq.ParquetFile(source, buffer_size=2**20)
    if missing := find_missing_field(path, options, table.schema_arrow.names):
        raise missing
    strings = []
    for field in options.fields:
        column_type = table.schema_arrow.types[table.schema_arrow.names.index(field)]
        if pa.types.is_nested(column_type):
            option = "--field" if field == options.field else "--target"
            raise CorpusError(
                f"{path}: field {field!r} holds {column_type}, not text: choose another with {option}"[:1000]
            )
        if pa.types.is_string(column_type) or pa.types.is_large_string(column_type):
            strings.append(field)
    if strings:
        # A text that is stored once and repeated a million times then takes the memory of one text.
        table = pq.ParquetFile(source, metadata=table.metadata, buffer_size=2**20, read_dictionary=strings)
    metadata = table.metadata
    row = sum(metadata.row_group(k).num_rows for k in range(min(start, metadata.num_row_groups)))
    groups = range(metadata.num_row_groups)[start:stop]
    batches = table.iter_batches(
        batch_size=_choose_batch(metadata, groups), row_groups=list(groups), columns=options.fields, use_threads=False
    )
    for batch in batches:
        for values in zip(*(batch.column(field) for field in options.fields), strict=True):
            row += 1
            where = f"{path}, row {row}"
            yield build_document(f"{path}:{row}", options, partial(_get_values, values, where, options))


def _choose_batch(metadata: Any, groups: range) -> int:
    """Return the number of rows to decode at once, from the sizes in the metadata.

    Sizes of all columns together are used: on damaged files, reading those of one column makes pyarrow abort.
    """
    rows = (metadata.row_group(k) for k in groups)
    largest = max((group.total_byte_size / max(1, group.num_rows) for group in rows), default=1)
    return int(min(ROWS, max(1, TOGETHER // max(1, largest))))


def _get_values(values: tuple[Any, ...], where: str, options: ReadOptions) -> str | tuple[str, str]:
    try:
        row = {field: value.as_py() for field, value in zip(options.fields, values, strict=True)}
        return extract_texts(row, where, options)
    except UnicodeDecodeError as error:
        raise BrokenDocumentError(
            BAD_ENCODING, f"{where}: not readable as Parquet: its text is not utf-8 ({error.reason})"
        ) from None


MAX_NAMES = 20
"""columns that an error lists"""


@dataclass(frozen=True)
class TextColumn:
    """A column of a table, read repeatedly."""

    name: str
    """what errors call it"""
    labels: Sequence[Any]
    """labels of the rows, as the table's own index has them"""
    cells: Iterable[Any]

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.labels, self.cells, strict=True)

    def list_texts(self) -> list[str]:
        """Return all cells; raise a CorpusError if one is not a string."""
        return [cell if isinstance(cell, str) else self.refuse(label, cell) for label, cell in self]

    def refuse(self, label: Any, cell: Any) -> Any:
        """Raise a CorpusError about a cell that holds no text."""
        raise CorpusError(
            f"row {label!r} of {self.name} holds {repr(cell)[:60]} ({type(cell).__name__}), not a string: drop or fill "
            "such rows"
        )


class _DatasetColumn:
    """The cells of one column of a Dataset, without reading the other columns."""

    def __init__(self, dataset: Any, field: str) -> None:
        self._dataset, self._field = dataset.select_columns([field]), field

    def __iter__(self) -> Iterator[Any]:
        return (row[self._field] for row in self._dataset)


def find_column(table: object, field: str) -> TextColumn | None:
    """Return a Series, or the column `field` of a DataFrame or Dataset; None if the object is none of these.

    Raises:
        CorpusError: There is no such column, or more than one.

    >>> find_column(["a list"], "text") is None
    True
    """
    pandas = sys.modules.get("pandas")  # an object of it cannot exist before the user has imported it
    if pandas is not None and isinstance(table, pandas.Series):
        return TextColumn("the Series", table.index, table.tolist())
    if pandas is not None and isinstance(table, pandas.DataFrame):
        _check_column("the DataFrame", list(table.columns), field)
        return TextColumn(f"column {field!r} of the DataFrame", table.index, table[field].tolist())
    names = getattr(table, "column_names", None)
    if isinstance(names, dict):
        raise CorpusError(
            f"the texts are a {type(table).__name__} of several Datasets: give one of them ({_format_names([*names])})"
        )
    if not (isinstance(names, list) and hasattr(table, "select_columns") and hasattr(table, "__len__")):
        return None
    kind = type(table).__name__
    _check_column(f"the {kind}", names, field)
    return TextColumn(f"column {field!r} of the {kind}", range(len(table)), _DatasetColumn(table, field))


def _check_column(table: str, names: list[Any], field: str) -> None:
    if field not in names:
        raise CorpusError(
            f"{table} has no column {field!r}; its columns are: {_format_names(names)}. Choose the one that holds the "
            "texts with field="
        )
    if names.count(field) > 1:
        raise CorpusError(f"{table} has {names.count(field)} columns {field!r}: rename all but one")


def _format_names(names: list[Any]) -> str:
    return ", ".join(str(name)[:100] for name in names[:MAX_NAMES]) or "none"

"""Texts in a pandas DataFrame or Series, or in a Dataset of the package datasets. Neither package is imported here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.errors import CorpusError

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

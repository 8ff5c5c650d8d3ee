"""Filter, sort and export the table of head types."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from headscope.atomic_io import format_csv
from headscope.errors import StudyError
from headscope.studies.head_types import HEAD_TYPES, NAMES
from headscope.studies.result import Study

ASCENDING_COLUMNS = ("layer", "head", "name", "head_type")
"""columns sorted in ascending order; all others are numbers, sorted from the largest"""


def filter_by_head_type(table: pd.DataFrame, head_type: str | None) -> pd.DataFrame:
    """Return the heads of one type; with None, all heads."""
    if head_type is None:
        return table
    if head_type not in NAMES:
        raise StudyError(f"unknown head type {head_type!r}; there are: {', '.join(NAMES)}")
    return table[table["head_type"] == head_type].reset_index(drop=True)


def sort_heads(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Sort heads by a column: numbers from the largest, types in the order of `HEAD_TYPES`, layers and heads
    from the first. With None, keep the order."""
    if column is None:
        return table
    sortable = [str(name) for name in table.columns.drop(["also", "description"])]
    if column not in sortable:
        raise StudyError(f"unknown column {column!r}; there are: {', '.join(sortable)}")
    keys = {"name": np.arange(len(table)), "head_type": table["head_type"].map(NAMES.index)}
    key = pd.Series(keys.get(column, table[column]))
    order = key.sort_values(ascending=column in ASCENDING_COLUMNS, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def as_csv(table: pd.DataFrame) -> str:
    """Return the table as CSV; the other types that fit share one cell."""
    return format_csv(table.assign(also=table["also"].map("; ".join)))


def as_json(study: Study, table: pd.DataFrame, all_counts: pd.Series) -> str:
    """Return the table as JSON, with the criteria and the manifest of the study; NaN is null."""
    content = {
        "manifest": study.manifest,
        "head_types": [vars(head_type) | {"heads": int(all_counts[head_type.name])} for head_type in HEAD_TYPES],
        "heads": json.loads(table.to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"

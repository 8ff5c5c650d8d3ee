"""Filter, sort and export the table of head characters."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from headscope.errors import StudyError
from headscope.studies.head_types import CHARACTERS, NAMES
from headscope.studies.result import Study

ASCENDING_COLUMNS = ("layer", "head", "name", "character")
"""columns sorted in ascending order; all others are numbers, sorted from the largest"""


def filter_by_character(table: pd.DataFrame, character: str | None) -> pd.DataFrame:
    """Return the heads of one character; with None, all heads."""
    if character is None:
        return table
    if character not in NAMES:
        raise StudyError(f"unknown character {character!r}; there are: {', '.join(NAMES)}")
    return table[table["character"] == character].reset_index(drop=True)


def sort_heads(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Sort heads by a column: numbers from the largest, characters in the order of `CHARACTERS`, layers and heads
    from the first. With None, keep the order."""
    if column is None:
        return table
    sortable = [str(name) for name in table.columns.drop(["also", "description"])]
    if column not in sortable:
        raise StudyError(f"unknown column {column!r}; there are: {', '.join(sortable)}")
    keys = {"name": np.arange(len(table)), "character": table["character"].map(NAMES.index)}
    key = pd.Series(keys.get(column, table[column]))
    order = key.sort_values(ascending=column in ASCENDING_COLUMNS, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def as_csv(table: pd.DataFrame) -> str:
    """Return the table as CSV; the other characters that fit share one cell."""
    text: str = table.assign(also=table["also"].map("; ".join)).to_csv(index=False, lineterminator="\n")
    return text


def as_json(study: Study, table: pd.DataFrame, all_counts: pd.Series) -> str:
    """Return the table as JSON, with the criteria and the manifest of the study; NaN is null."""
    content = {
        "manifest": study.manifest,
        "characters": [vars(character) | {"heads": int(all_counts[character.name])} for character in CHARACTERS],
        "heads": json.loads(table.to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"

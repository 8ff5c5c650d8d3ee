"""The table of head characters, as people ask for it: a part of it, in an order, as a file."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from headscope.errors import StudyError
from headscope.studies.characters import CHARACTERS, NAMES
from headscope.studies.result import Study

FROM_THE_FIRST = ("layer", "head", "name", "character")
"""columns that read from the front; all others are numbers, from the largest"""


def only(table: pd.DataFrame, character: str | None) -> pd.DataFrame:
    """The heads of one character; all of them for none."""
    if character is None:
        return table
    if character not in NAMES:
        raise StudyError(f"unknown character {character!r}; there are: {', '.join(NAMES)}")
    return table[table["character"] == character].reset_index(drop=True)


def ordered(table: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """Heads by a column: numbers from the largest, characters as in `CHARACTERS`, layers and heads from the first."""
    if column is None:
        return table
    known = [str(name) for name in table.columns.drop(["also", "description"])]
    if column not in known:
        raise StudyError(f"unknown column {column!r}; there are: {', '.join(known)}")
    keys = {"name": np.arange(len(table)), "character": table["character"].map(NAMES.index)}
    key = pd.Series(keys.get(column, table[column]))
    order = key.sort_values(ascending=column in FROM_THE_FIRST, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def as_csv(table: pd.DataFrame) -> str:
    """The table for a spreadsheet; what else fits stands in one cell."""
    text: str = table.assign(also=table["also"].map("; ".join)).to_csv(index=False, lineterminator="\n")
    return text


def as_json(study: Study, table: pd.DataFrame, all_counts: pd.Series) -> str:
    """The table with the criteria and the manifest it rests on; NaN is null."""
    content = {
        "manifest": study.manifest,
        "characters": [vars(character) | {"heads": int(all_counts[character.name])} for character in CHARACTERS],
        "heads": json.loads(table.to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"

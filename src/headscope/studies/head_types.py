"""The type of every head, in two parts: what it attends to, and what its outputs are similar for.

The parts are independent: a head can put 98 % of its attention on the previous token while its outputs are alike for
equal tokens. Names of the field such as *induction* or *duplicate-token* are of what a head attends to alone.
docs/head-types.md says how the criteria were chosen and validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from headscope.array_types import Bools
from headscope.errors import StudyError
from headscope.studies.attention_types import ATTENDS_TYPES, classify_attention
from headscope.studies.output_types import WRITES_TYPES, classify_outputs
from headscope.studies.type_criteria import UNKNOWN, Choice, HeadType

__all__ = ["PARTS", "TYPE_COLUMNS", "HeadType", "TypePart", "classify_heads", "count_heads"]


@dataclass(frozen=True)
class TypePart:
    """One of the two parts of a head type, with all types that a head can have in it.

    Examples
    --------
    >>> from headscope.studies.head_types import PARTS
    >>> PARTS["attends"].label, PARTS["attends"].names[:2]
    ('attends to', ('previous-token', 'next-token'))
    """

    name: str
    label: str
    """heading of a column or map"""
    question: str
    types: tuple[HeadType, ...]

    @property
    def column(self) -> str:
        """The column of the head table that holds the type."""
        return f"{self.name}_type"

    @property
    def also_column(self) -> str:
        """The column of the head table that holds the other types that fit."""
        return f"{self.name}_also"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(head_type.name for head_type in self.types)

    def check_name(self, name: str) -> None:
        """Raise an error if there is no such type."""
        if name not in self.names:
            raise StudyError(f"unknown type {name!r} of what a head {self.name}; there are: {', '.join(self.names)}")


PARTS = {
    part.name: part
    for part in (
        TypePart(
            "attends",
            "attends to",
            "What receives most of a head's attention, where it is both much more than of even attention and certain.",
            ATTENDS_TYPES,
        ),
        TypePart(
            "writes",
            "outputs similar for",
            "What stands out most in a head's pairs of similar outputs against chance, where it is large and certain.",
            WRITES_TYPES,
        ),
    )
}
"""the two parts of a head type"""
TYPE_COLUMNS = (*(f"{part}_{column}" for part in PARTS for column in ("type", "also", "strength")), "description")


def classify_heads(table: pd.DataFrame, is_certain: Mapping[str, Bools], missing: str = "") -> pd.DataFrame:
    """Return a table of heads with their types in the columns `TYPE_COLUMNS`.

    Args:
        table: One row per head, with scores and rates and what chance gives (`<rate>_chance`).
        is_certain: For each score and rate, whether it is beyond chance with certainty (head,).
        missing: How many texts there are and how many are needed, if there are too few for any type.
    """
    if missing:
        choices = {name: [Choice(UNKNOWN.name, f"{UNKNOWN.name}: {missing}")] * len(table) for name in PARTS}
        descriptions = [choice.words for choice in choices["writes"]]
    else:
        choices = {"attends": classify_attention(table, is_certain), "writes": classify_outputs(table, is_certain)}
        descriptions = ["; ".join(choice.words for choice in both) for both in zip(*choices.values(), strict=True)]
    columns = {
        f"{part}_{column}": [getattr(choice, attribute) for choice in choices[part]]
        for part in PARTS
        for column, attribute in (("type", "name"), ("also", "also"), ("strength", "strength"))
    }
    return table.assign(**columns, description=descriptions)


def count_heads(table: pd.DataFrame, part: str) -> pd.Series:
    """Return the number of heads of each type of one part, in the order of its types."""
    column, names = PARTS[part].column, list(PARTS[part].names)
    return table[column].value_counts().reindex(names, fill_value=0).rename("heads").rename_axis("type")

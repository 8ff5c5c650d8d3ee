"""Map of the types of all heads: the letter and colour of each cell, and the legend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.page.colors import pick_text_color
from headscope.studies.head_types import HEAD_TYPES, LETTERS, NAMES, PREFERENCES, SILENT, UNKNOWN, HeadType, count_heads
from headscope.studies.labels import format_head
from headscope.studies.rates import OF_WORDS
from headscope.studies.result import Study

LOOKS = {
    "repeat-token": ("#d55e00", "#d55e00"),
    "local": ("#0072b2", "#0072b2"),
    "within-sentence": ("#56b4e9", "#56b4e9"),
    "one-token": ("#f0c419", "#f0c419"),
    "long-range": ("#cc79a7", "#cc79a7"),
    "diffuse": ("#e2e3e7", "#31353d"),
    "silent": ("#4b505a", "#c8ccd3"),
    "undecided": ("#b3b8c0", "#5c626d"),
    "too few texts": ("#ffffff", "#16181d"),
}
"""colour on a light and a dark page: preferences in hues of the Okabe–Ito palette, which people with any
colour vision can tell apart; the others in greys, of which the most common is nearest to the background"""


@dataclass(frozen=True)
class LegendEntry:
    """A head type in the legend, with its letter, its colours and the number of its heads."""

    head_type: HeadType
    letter: str
    background: str
    ink: str
    heads: int


@dataclass(frozen=True)
class HeadTypeCell:
    """A head in the map."""

    index: int
    """its row in the head table"""
    name: str
    kind: LegendEntry
    description: str
    """the description of its type, and which others apply"""


@dataclass(frozen=True)
class HeadTypeMap:
    """The type of every head over layers and heads."""

    kinds: tuple[LegendEntry, ...]
    rows: tuple[tuple[int, tuple[HeadTypeCell, ...]], ...]
    """layer by layer"""

    @property
    def cells(self) -> list[HeadTypeCell]:
        return [cell for _, row in self.rows for cell in row]

    @property
    def summary(self) -> str:
        """Numbers of heads by type, in one line."""
        return ", ".join(f"{kind.heads:,} {kind.head_type.name}" for kind in self.kinds if kind.heads)


def build_head_type_map(study: Study) -> HeadTypeMap:
    """Return the map of a study, in the study's order of layers and heads."""
    table = study.heads()
    head_counts = count_heads(table)
    inapplicable = {preference.name for preference in PREFERENCES if preference.rate in OF_WORDS and study.has_images}
    if not head_counts[UNKNOWN.name]:
        inapplicable.add(UNKNOWN.name)
    legend = {
        head_type.name: LegendEntry(head_type, *_get_look(head_type.name), int(head_counts[head_type.name]))
        for head_type in HEAD_TYPES
        if head_type.name not in inapplicable
    }
    heads = table.set_index("head")

    def build_cell(index: int, name: str) -> HeadTypeCell:
        if name not in heads.index:
            return HeadTypeCell(index, name, legend[SILENT.name], "absent: this layer has no such head")
        head = heads.loc[name]
        also = f"; also {', '.join(head['also'])}" if head["also"] else ""
        return HeadTypeCell(index, name, legend[str(head["head_type"])], f"{head['description']}{also}")

    columns = len(study.head_numbers)
    rows = tuple(
        (
            layer,
            tuple(build_cell(i * columns + j, format_head(layer, head)) for j, head in enumerate(study.head_numbers)),
        )
        for i, layer in enumerate(study.layers)
    )
    return HeadTypeMap(tuple(legend.values()), rows)


def collect_head_type_data(head_map: HeadTypeMap) -> dict[str, Any]:
    """Return the data of the map for the report's script."""
    names = [kind.head_type.name for kind in head_map.kinds]
    return {
        "head_types": names,
        "head_type": [names.index(cell.kind.head_type.name) for cell in head_map.cells],
        "about": [cell.description for cell in head_map.cells],
    }


def _get_look(name: str) -> tuple[str, str, str]:
    light, dark = LOOKS[name]
    return (
        LETTERS[NAMES.index(name)],
        f"light-dark({light}, {dark})",
        f"light-dark({pick_text_color(light)}, {pick_text_color(dark)})",
    )

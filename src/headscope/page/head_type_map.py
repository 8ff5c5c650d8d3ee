"""Maps of the types of all heads, one for each part: the letter and colour of each cell, and the legend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.page.colors import pick_text_color
from headscope.studies.attention_types import TARGETS, UNMEASURED
from headscope.studies.head_types import PARTS, HeadType, TypePart, count_heads
from headscope.studies.labels import format_head
from headscope.studies.output_types import PREFERENCES, SILENT
from headscope.studies.rates import ATTENTION_SCORES, OF_WORDS
from headscope.studies.result import Study
from headscope.studies.type_criteria import UNKNOWN

LOOKS = {
    "attends": {
        "previous-token": ("#0072b2", "#0072b2"),
        "next-token": ("#56b4e9", "#56b4e9"),
        "self": ("#009e73", "#009e73"),
        "duplicate-token": ("#d55e00", "#d55e00"),
        "induction": ("#e69f00", "#e69f00"),
        "local": ("#a5d8c3", "#a5d8c3"),
        "first-token": ("#cc79a7", "#cc79a7"),
        "special-token": ("#7b4a9e", "#7b4a9e"),
        "punctuation": ("#f0e442", "#f0e442"),
        "broad": ("#e2e3e7", "#31353d"),
        "mixed": ("#b3b8c0", "#5c626d"),
        "not measured": ("#4b505a", "#c8ccd3"),
        "too few texts": ("#ffffff", "#16181d"),
    },
    "writes": {
        "repeat-token": ("#d55e00", "#d55e00"),
        "local": ("#0072b2", "#0072b2"),
        "within-sentence": ("#56b4e9", "#56b4e9"),
        "one-token": ("#f0c419", "#f0c419"),
        "long-range": ("#cc79a7", "#cc79a7"),
        "diffuse": ("#e2e3e7", "#31353d"),
        "silent": ("#4b505a", "#c8ccd3"),
        "undecided": ("#b3b8c0", "#5c626d"),
        "too few texts": ("#ffffff", "#16181d"),
    },
}
"""colour on a light and a dark page: preferences in hues, mostly of the Okabe–Ito palette, which people with any colour
vision can tell apart; the others in greys, of which the most common is nearest to the background"""
ABSENT = {"attends": UNMEASURED.name, "writes": SILENT.name}
"""the look of a head that a layer does not have"""


@dataclass(frozen=True)
class LegendEntry:
    """A head type in the legend, with its colours and the number of its heads."""

    head_type: HeadType
    background: str
    ink: str
    heads: int

    @property
    def letter(self) -> str:
        return self.head_type.letter


@dataclass(frozen=True)
class HeadTypeCell:
    """A head in the map."""

    index: int
    """its row in the head table"""
    name: str
    kind: LegendEntry
    description: str
    """what it attends to and what its outputs are similar for"""


@dataclass(frozen=True)
class HeadTypeMap:
    """One part of the type of every head over layers and heads."""

    part: TypePart
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


def build_head_type_maps(study: Study) -> list[HeadTypeMap]:
    """Return the map of each part of the types of a study, in the study's order of layers and heads."""
    table = study.heads()
    inapplicable = {UNKNOWN.name, UNMEASURED.name}
    if study.has_images:
        inapplicable |= {preference.name for preference in PREFERENCES if preference.rate in OF_WORDS}
        of_words = {name for name, score in ATTENTION_SCORES.items() if score.of_words}
        inapplicable |= {target.name for target in TARGETS if target.score in of_words}
    heads = table.set_index("head")
    maps = []
    for part in PARTS.values():
        counts = count_heads(table, part.name)
        legend = {
            head_type.name: LegendEntry(head_type, *_get_look(part, head_type.name), int(counts[head_type.name]))
            for head_type in part.types
        }
        shown = tuple(entry for name, entry in legend.items() if entry.heads or name not in inapplicable)
        rows = tuple(
            (layer, tuple(_build_cell(heads, part, legend, i, j, study) for j in range(len(study.head_numbers))))
            for i, layer in enumerate(study.layers)
        )
        maps.append(HeadTypeMap(part, shown, rows))
    return maps


def _build_cell(
    heads: Any, part: TypePart, legend: dict[str, LegendEntry], row: int, column: int, study: Study
) -> HeadTypeCell:
    index = row * len(study.head_numbers) + column
    name = format_head(study.layers[row], study.head_numbers[column])
    if name not in heads.index:
        return HeadTypeCell(index, name, legend[ABSENT[part.name]], "absent: this layer has no such head")
    head = heads.loc[name]
    return HeadTypeCell(index, name, legend[str(head[part.column])], str(head["description"]))


def collect_head_type_data(maps: list[HeadTypeMap]) -> dict[str, Any]:
    """Return the data of the maps for the report's script."""
    parts = []
    for head_map in maps:
        names = [head_type.name for head_type in head_map.part.types]
        types = [names.index(cell.kind.head_type.name) for cell in head_map.cells]
        parts.append({"column": head_map.part.column, "label": head_map.part.label, "names": names, "types": types})
    return {"parts": parts, "about": [cell.description for cell in maps[0].cells]}


def _get_look(part: TypePart, name: str) -> tuple[str, str]:
    light, dark = LOOKS[part.name][name]
    return f"light-dark({light}, {dark})", f"light-dark({pick_text_color(light)}, {pick_text_color(dark)})"

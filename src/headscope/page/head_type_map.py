"""Map of the characters of all heads: the letter and colour of each cell, and the legend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.page.colors import pick_text_color
from headscope.studies.head_types import CHARACTERS, PREFERENCES, Character, characters, count_heads
from headscope.studies.rates import OF_WORDS
from headscope.studies.result import Study

LOOKS = {
    "repeat-token": ("R", "#d55e00", "#d55e00"),
    "local": ("L", "#0072b2", "#0072b2"),
    "within-sentence": ("S", "#56b4e9", "#56b4e9"),
    "one-token": ("1", "#f0c419", "#f0c419"),
    "long-range": ("F", "#cc79a7", "#cc79a7"),
    "diffuse": ("d", "#e2e3e7", "#31353d"),
    "silent": ("–", "#4b505a", "#c8ccd3"),
    "undecided": ("?", "#b3b8c0", "#5c626d"),
}
"""letter, and colour on a light and a dark page: preferences in hues of the Okabe–Ito palette, which people with any
colour vision can tell apart; the others in greys, of which the most common is nearest to the background"""


@dataclass(frozen=True)
class LegendEntry:
    """A character in the legend, with its letter, its colours and the number of its heads."""

    character: Character
    letter: str
    background: str
    ink: str
    heads: int


@dataclass(frozen=True)
class CharacterCell:
    """A head in the map."""

    index: int
    """its row in the head table"""
    name: str
    kind: LegendEntry
    description: str
    """the description of its character, and which others apply"""


@dataclass(frozen=True)
class CharacterMap:
    """The character of every head over layers and heads."""

    kinds: tuple[LegendEntry, ...]
    rows: tuple[tuple[int, tuple[CharacterCell, ...]], ...]
    """layer by layer"""

    @property
    def cells(self) -> list[CharacterCell]:
        return [cell for _, row in self.rows for cell in row]

    @property
    def summary(self) -> str:
        """Numbers of heads by character, in one line."""
        return ", ".join(f"{kind.heads:,} {kind.character.name}" for kind in self.kinds if kind.heads)


def build_character_map(study: Study) -> CharacterMap:
    """Return the map of a study, in the study's order of layers and heads."""
    table = characters(study)
    head_counts = count_heads(table)
    inapplicable = {preference.name for preference in PREFERENCES if preference.rate in OF_WORDS and study.has_images}
    legend = {
        character.name: LegendEntry(character, *_get_look(character.name), int(head_counts[character.name]))
        for character in CHARACTERS
        if character.name not in inapplicable
    }
    heads = table.set_index("name")

    def build_cell(index: int, name: str) -> CharacterCell:
        head = heads.loc[name]
        also = f"; also {', '.join(head['also'])}" if head["also"] else ""
        return CharacterCell(index, name, legend[str(head["character"])], f"{head['description']}{also}")

    columns = len(study.heads)
    rows = tuple(
        (layer, tuple(build_cell(i * columns + j, f"L{layer}H{head}") for j, head in enumerate(study.heads)))
        for i, layer in enumerate(study.layers)
    )
    return CharacterMap(tuple(legend.values()), rows)


def collect_character_data(head_map: CharacterMap) -> dict[str, Any]:
    """Return the data of the map for the report's script."""
    names = [kind.character.name for kind in head_map.kinds]
    return {
        "characters": names,
        "character": [names.index(cell.kind.character.name) for cell in head_map.cells],
        "about": [cell.description for cell in head_map.cells],
    }


def _get_look(name: str) -> tuple[str, str, str]:
    letter, light, dark = LOOKS[name]
    return letter, f"light-dark({light}, {dark})", f"light-dark({pick_text_color(light)}, {pick_text_color(dark)})"

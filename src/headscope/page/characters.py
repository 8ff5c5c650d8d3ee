"""The characters of all heads as a map: which letter and colour stand in each cell, and what a legend says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.page.colours import ink
from headscope.studies.characters import CHARACTERS, PREFERENCES, Character, characters, counts
from headscope.studies.labels import OF_WORDS
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
"""letter, and colour on a light and a dark page: preferences in hues that Okabe and Ito chose for all eyes, the others
in greys, of which the most common stays nearest to the page"""


@dataclass(frozen=True)
class Kind:
    """A character in the legend."""

    character: Character
    letter: str
    background: str
    ink: str
    heads: int


@dataclass(frozen=True)
class CharacterCell:
    """One head in the map."""

    index: int
    """its place in the head table"""
    name: str
    kind: Kind
    about: str
    """its description, and what else fits"""


@dataclass(frozen=True)
class CharacterMap:
    """The character of every head over layers and heads."""

    kinds: tuple[Kind, ...]
    rows: tuple[tuple[int, tuple[CharacterCell, ...]], ...]
    """layer by layer"""

    @property
    def cells(self) -> list[CharacterCell]:
        return [cell for _, row in self.rows for cell in row]

    @property
    def summary(self) -> str:
        """How many heads are what, in one line."""
        return ", ".join(f"{kind.heads:,} {kind.character.name}" for kind in self.kinds if kind.heads)


def character_map(study: Study) -> CharacterMap:
    """The map of a study, in its own order of layers and heads."""
    table = characters(study)
    number = counts(table)
    of_words = {p.name for p in PREFERENCES if p.rate in OF_WORDS and study.of_images}
    kinds = {c.name: Kind(c, *_look(c.name), int(number[c.name])) for c in CHARACTERS if c.name not in of_words}
    of = table.set_index("name")

    def cell(index: int, name: str) -> CharacterCell:
        head = of.loc[name]
        also = f"; also {', '.join(head['also'])}" if head["also"] else ""
        return CharacterCell(index, name, kinds[str(head["character"])], f"{head['description']}{also}")

    width = len(study.heads)
    rows = tuple(
        (layer, tuple(cell(i * width + j, f"L{layer}H{head}") for j, head in enumerate(study.heads)))
        for i, layer in enumerate(study.layers)
    )
    return CharacterMap(tuple(kinds.values()), rows)


def character_data(drawn: CharacterMap) -> dict[str, Any]:
    """What the report's script needs of them."""
    names = [kind.character.name for kind in drawn.kinds]
    return {
        "characters": names,
        "character": [names.index(cell.kind.character.name) for cell in drawn.cells],
        "about": [cell.about for cell in drawn.cells],
    }


def _look(name: str) -> tuple[str, str, str]:
    letter, light, dark = LOOKS[name]
    return letter, f"light-dark({light}, {dark})", f"light-dark({ink(light)}, {ink(dark)})"

"""Maps of all heads, layers down and heads across: heat maps of rates, and the map of types.

Heat maps of the rates of all heads: the contents of the cells, the colour scale, and the chance level.

Maps of the types of all heads, one for each part: the letter and colour of each cell, and the legend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.page.formatting import NOTHING, RATE_WORDS, format_brief, format_fixed, pick_color, pick_text_color
from headscope.studies.attention_types import TARGETS, UNMEASURED
from headscope.studies.head_table import as_csv
from headscope.studies.head_types import PARTS, HeadType, TypePart, count_heads
from headscope.studies.labels import format_head
from headscope.studies.output_types import PREFERENCES, SILENT
from headscope.studies.rates import ATTENTION_SCORES, OF_WORDS, RATES, RateWords
from headscope.studies.result import Study
from headscope.studies.sample_size import adapt_wording
from headscope.studies.type_criteria import UNKNOWN

TICKS = 5
"""approximate number of ticks on a colour scale"""
MAX_DECIMALS = 3


@dataclass(frozen=True)
class Scale:
    """Range and ticks of a colour scale, in displayed units."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Cell:
    """A head in a heat map."""

    index: int
    """its row in the head table"""
    name: str
    text: str
    """the short number inside the cell; empty where nothing was counted"""
    background: str
    ink: str
    value: str
    """with as many decimals as its error justifies"""
    error: str
    """standard error; empty where unknown"""

    def describe(self, unit: str) -> str:
        return f"{self.value}{f' ± {self.error}' if self.error else ''}{f' {unit}' if self.background else ''}"


@dataclass(frozen=True)
class HeatMap:
    """One rate over layers and heads, in displayed units (percent, tokens). NaN where nothing was counted."""

    name: str
    words: RateWords
    decimals: int
    values: Floats
    errors: Floats
    chance: Floats
    """chance level of each head; the same for all heads except for the dominant share"""
    mean_chance: float
    scale: Scale
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]
    """layer by layer"""

    def shown(self, number: float) -> str:
        return f"{format_fixed(number, self.decimals)} {self.words.unit}"


def build_heat_maps(study: Study) -> list[HeatMap]:
    """Return a heat map for each rate of a study."""
    names = [format_head(layer, head) for layer in study.layers for head in study.head_numbers]
    table = study.heads().set_index("head").reindex(names)  # NaN where a layer lacks a head
    shape = len(study.layers), len(study.head_numbers)
    return [
        _build_heat_map(
            study, name, *(table[column].to_numpy(np.float64).reshape(shape) for column in (name, f"{name}_error"))
        )
        for name in RATE_WORDS
        if not (study.has_images and name in OF_WORDS) and (name in RATES or table[name].notna().any())
    ]


def _build_heat_map(study: Study, name: str, values: Floats, errors: Floats) -> HeatMap:
    words = RATE_WORDS[name]
    words = replace(words, unit=adapt_wording(study, words.unit), description=adapt_wording(study, words.description))
    values, errors = values * words.factor, errors * words.factor
    chance_levels = study.chance(name).values if name in RATES else 0.0
    chance = np.broadcast_to(chance_levels * words.factor, values.shape)
    finite_chance = chance[np.isfinite(chance)]
    mean_chance = float(finite_chance.mean()) if finite_chance.size else math.nan
    scale = _choose_scale(np.append(values, mean_chance))
    decimals = _choose_decimals(errors)
    rows = tuple(
        (
            layer,
            tuple(
                _build_cell(study, words, scale, decimals, i, j, values, errors) for j in range(len(study.head_numbers))
            ),
        )
        for i, layer in enumerate(study.layers)
    )
    return HeatMap(name, words, decimals, values, errors, chance, mean_chance, scale, rows)


def _build_cell(
    study: Study, words: RateWords, scale: Scale, decimals: int, i: int, j: int, values: Floats, errors: Floats
) -> Cell:
    index, name = i * len(study.head_numbers) + j, format_head(study.layers[i], study.head_numbers[j])
    value, error = float(values[i, j]), float(errors[i, j])
    if not math.isfinite(value):
        return Cell(index, name, "", "", "", NOTHING, "")
    background = pick_color(scale.position(value))
    digits = _choose_digits(error, decimals)
    error_text = format_fixed(error, digits) if math.isfinite(error) else ""
    return Cell(
        index,
        name,
        format_brief(value),
        background,
        pick_text_color(background),
        format_fixed(value, digits),
        error_text,
    )


def _choose_digits(error: float, decimals: int) -> int:
    """Return the number of decimals: more where the error would otherwise be written as 0."""
    if not math.isfinite(error) or error <= 0 or round(error, decimals) > 0:
        return decimals
    return min(math.ceil(-math.log10(error)), MAX_DECIMALS + 1)


def _choose_decimals(errors: Floats) -> int:
    """Return the number of decimals up to the first significant digit of the median standard error."""
    known_errors = errors[np.isfinite(errors) & (errors > 0)]
    if not known_errors.size:
        return 1
    return int(np.clip(math.ceil(-math.log10(float(np.median(known_errors)))), 1, MAX_DECIMALS))


def _choose_scale(numbers: Floats) -> Scale:
    """Return a scale with round ticks around all numbers; it starts at 0 where this takes few of the colours."""
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return Scale(0.0, 1.0, (0.0, 1.0))
    low, high = float(finite.min()), float(finite.max())
    if 0 <= low < high / 3 or low == high:
        low = min(low, 0.0)
    if low == high:
        high = low + 1.0
    step = _choose_step((high - low) / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(k * step, 10) for k in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def _choose_step(min_step: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(min_step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step * (1 - 1e-9))


def collect_script_data(study: Study, maps: list[HeatMap]) -> dict[str, Any]:
    """Return the data of the heads for the report's script; NaN becomes null."""
    return {
        "heads": [cell.name for _, row in maps[0].rows for cell in row],
        "layer": [layer for layer in study.layers for _ in study.head_numbers],
        "head_number": study.head_numbers * len(study.layers),
        "columns": len(study.head_numbers),
        "pairs": [int(count) for count in study.data["pairs"].values.ravel()],
        "csv": as_csv(study.heads()),
        "rates": [_collect_rate_data(heat_map) for heat_map in maps],
    }


def _collect_rate_data(heat_map: HeatMap) -> dict[str, Any]:
    words = heat_map.words
    return {
        "name": heat_map.name,
        "label": words.label,
        "unit": words.unit,
        "factor": words.factor,
        "decimals": heat_map.decimals,
        "low": heat_map.scale.low,
        "high": heat_map.scale.high,
        "values": _list_numbers(heat_map.values / words.factor),
        "errors": _list_numbers(heat_map.errors / words.factor),
        "chance": _list_numbers(heat_map.chance / words.factor),
    }


def _list_numbers(array: Floats) -> list[float | None]:
    # Twelve digits are more than any rate has, and keep 0.1 × 100 / 100 from showing in the CSV.
    return [float(f"{number:.12g}") if math.isfinite(number) else None for number in array.ravel().tolist()]


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
            (layer, tuple(_build_type_cell(heads, part, legend, i, j, study) for j in range(len(study.head_numbers))))
            for i, layer in enumerate(study.layers)
        )
        maps.append(HeadTypeMap(part, shown, rows))
    return maps


def _build_type_cell(
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

"""Heat maps of the rates of all heads: the contents of the cells, the colour scale, and the chance level."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.page.colors import pick_color, pick_text_color
from headscope.page.formatting import NOTHING, RATE_WORDS, format_brief, format_fixed
from headscope.studies.head_table import as_csv
from headscope.studies.labels import format_head
from headscope.studies.rates import OF_WORDS, RATES, RateWords
from headscope.studies.result import Study
from headscope.studies.wording import adapt_wording

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

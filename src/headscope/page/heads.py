"""The rates of all heads as heat maps: what is drawn in each cell, on which scale, against which chance level."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headscope.page.colours import colour, ink
from headscope.page.words import NOTHING, RATE_WORDS, RateWords, brief, fixed
from headscope.studies.labels import OF_WORDS
from headscope.studies.result import Study
from headscope.studies.speaking import spoken
from headscope.types import Floats

TICKS = 5
"""about so many numbers on a colour scale"""
MOST_DECIMALS = 3


@dataclass(frozen=True)
class Scale:
    """From the lowest to the highest number of a colour scale, in shown units."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Cell:
    """One head in a heat map."""

    index: int
    """its place in the head table"""
    name: str
    text: str
    """the number inside the cell, brief; empty where nothing was counted"""
    background: str
    ink: str
    value: str
    """as exact as its error allows"""
    error: str
    """standard error; empty where unknown"""

    def about(self, unit: str) -> str:
        return f"{self.value}{f' ± {self.error}' if self.error else ''}{f' {unit}' if self.background else ''}"


@dataclass(frozen=True)
class HeatMap:
    """One rate over layers and heads, in shown units (percent, tokens). NaN where nothing was counted."""

    name: str
    words: RateWords
    decimals: int
    values: Floats
    errors: Floats
    chance: Floats
    """for each head; the same for all but the dominant share"""
    mean_chance: float
    scale: Scale
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]
    """layer by layer"""

    def shown(self, number: float) -> str:
        return f"{fixed(number, self.decimals)} {self.words.unit}"


def heat_maps(study: Study) -> list[HeatMap]:
    """A heat map for each rate of a study."""
    table = study.table()
    shape = len(study.layers), len(study.heads)
    return [
        _heat_map(
            study, name, *(table[column].to_numpy(np.float64).reshape(shape) for column in (name, f"{name}_error"))
        )
        for name in RATE_WORDS
        if name in table and not (study.of_images and name in OF_WORDS)
    ]


def _heat_map(study: Study, name: str, values: Floats, errors: Floats) -> HeatMap:
    words = RATE_WORDS[name]
    words = replace(words, unit=spoken(study, words.unit), about=spoken(study, words.about))
    values, errors = values * words.factor, errors * words.factor
    chances = 0.0 if name == "signal_to_noise" else study.chance(name).values
    chance = np.broadcast_to(chances * words.factor, values.shape)
    known = chance[np.isfinite(chance)]
    mean_chance = float(known.mean()) if known.size else math.nan
    scale = _scale(np.append(values, mean_chance))
    decimals = _decimals(errors)
    rows = tuple(
        (layer, tuple(_cell(study, words, scale, decimals, i, j, values, errors) for j in range(len(study.heads))))
        for i, layer in enumerate(study.layers)
    )
    return HeatMap(name, words, decimals, values, errors, chance, mean_chance, scale, rows)


def _cell(
    study: Study, words: RateWords, scale: Scale, decimals: int, i: int, j: int, values: Floats, errors: Floats
) -> Cell:
    index, name = i * len(study.heads) + j, f"L{study.layers[i]}H{study.heads[j]}"
    value, error = float(values[i, j]), float(errors[i, j])
    if not math.isfinite(value):
        return Cell(index, name, "", "", "", NOTHING, "")
    background = colour(scale.position(value))
    digits = _digits(error, decimals)
    known_error = fixed(error, digits) if math.isfinite(error) else ""
    return Cell(index, name, brief(value), background, ink(background), fixed(value, digits), known_error)


def _digits(error: float, decimals: int) -> int:
    """More decimals where the error would otherwise be written as 0."""
    if not math.isfinite(error) or error <= 0 or round(error, decimals) > 0:
        return decimals
    return min(math.ceil(-math.log10(error)), MOST_DECIMALS + 1)


def _decimals(errors: Floats) -> int:
    """As many as the usual standard error has any say about."""
    known = errors[np.isfinite(errors) & (errors > 0)]
    if not known.size:
        return 1
    return int(np.clip(math.ceil(-math.log10(float(np.median(known)))), 1, MOST_DECIMALS))


def _scale(numbers: Floats) -> Scale:
    """Round numbers around all that has to be shown; from 0 where that costs little of the colours."""
    known = numbers[np.isfinite(numbers)]
    if not known.size:
        return Scale(0.0, 1.0, (0.0, 1.0))
    low, high = float(known.min()), float(known.max())
    if 0 <= low < high / 3 or low == high:
        low = min(low, 0.0)
    if low == high:
        high = low + 1.0
    step = _round_step((high - low) / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(k * step, 10) for k in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def _round_step(wanted: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))


def script_data(study: Study, maps: list[HeatMap]) -> dict[str, Any]:
    """What the report's script needs of the heads. NaN is null."""
    return {
        "heads": [cell.name for _, row in maps[0].rows for cell in row],
        "layer": [layer for layer in study.layers for _ in study.heads],
        "head_number": study.heads * len(study.layers),
        "columns": len(study.heads),
        "pairs": [int(count) for count in study.data["pairs"].values.ravel()],
        "rates": [_rate_data(heat_map) for heat_map in maps],
    }


def _rate_data(heat_map: HeatMap) -> dict[str, Any]:
    words = heat_map.words
    return {
        "name": heat_map.name,
        "label": words.label,
        "unit": words.unit,
        "factor": words.factor,
        "decimals": heat_map.decimals,
        "low": heat_map.scale.low,
        "high": heat_map.scale.high,
        "values": _numbers(heat_map.values / words.factor),
        "errors": _numbers(heat_map.errors / words.factor),
        "chance": _numbers(heat_map.chance / words.factor),
    }


def _numbers(array: Floats) -> list[float | None]:
    # Twelve digits are more than any rate has, and keep 0.1 × 100 / 100 from showing in the CSV.
    return [float(f"{number:.12g}") if math.isfinite(number) else None for number in array.ravel().tolist()]

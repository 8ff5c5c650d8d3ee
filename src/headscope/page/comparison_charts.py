"""Drawings of a comparison: curves of rates over depth, and maps of the differences of heads.

Drawings of rates over depth: positions of points, error bars and ticks, in the units of an SVG's view box.

Maps of the differences of heads: colours around zero, and the numbers for the page's script.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headscope.comparison.measures import DEPTH_PANELS, MEASURES, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.page.formatting import format_brief, format_fixed, pick_text_color

WIDTH, HEIGHT = 380.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 8.0, 10.0, 34.0
TICKS = 5
SHAPES = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z",
    "M-3 -3h6v6h-6z",
    "M0 -4L3.8 2.9H-3.8z",
    "M0 -4.2L4.2 0L0 4.2L-4.2 0z",
    "M0 4L3.8 -2.9H-3.8z",
    "M-1.3 -3.9h2.6v2.6h2.6v2.6h-2.6v2.6h-2.6v-2.6h-2.6v-2.6h2.6z",
    "M-3.6 -2L-2 -3.6L0 -1.6L2 -3.6L3.6 -2L1.6 0L3.6 2L2 3.6L0 1.6L-2 3.6L-3.6 2L-1.6 0z",
    "M0 -4.6L1.4 -1.4L4.6 0L1.4 1.4L0 4.6L-1.4 1.4L-4.6 0L-1.4 -1.4z",
)
"""SVG path of the mark of each of eight models, around the origin"""


@dataclass(frozen=True)
class Point:
    """A layer of a model."""

    x: float
    y: float
    low: float
    high: float
    """the ends of its error bar"""
    words: str


@dataclass(frozen=True)
class Line:
    """A model."""

    model: int
    path: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """A drawing."""

    title: str
    words: str
    description: str
    ticks: tuple[tuple[float, str], ...]
    chance: float | None
    lines: tuple[Line, ...]

    @property
    def measurable(self) -> bool:
        return bool(self.lines)


def build_panels(comparison: Comparison) -> list[Panel]:
    """Return the drawings of all rates over depth."""
    return [_build_panel(comparison, MEASURES[rate], column) for rate, column in DEPTH_PANELS]


def compute_x(depth: float) -> float:
    """Return the x coordinate of a relative depth."""
    return round(LEFT + depth * (WIDTH - LEFT - RIGHT), 2)


def _build_panel(comparison: Comparison, measure: Measure, column: str) -> Panel:
    against_chance = column == "against_chance"
    scale = 1.0 if against_chance and measure.over else measure.factor
    rows = comparison.depth[comparison.depth["rate"] == measure.name].assign(
        shown=lambda table: table[column] * scale,
        bar=lambda table: table["against_chance_error" if against_chance else "error"].fillna(0.0) * scale,
    )
    rows = rows[rows["shown"].notna()]
    unit, words = _choose_units(measure, against_chance=against_chance)
    if not len(rows):
        return Panel(measure.label, words, measure.description, (), None, ())
    chance = (1.0 if measure.over else 0.0) if against_chance else None
    ends = [float((rows["shown"] - rows["bar"]).min()), float((rows["shown"] + rows["bar"]).max())]
    ticks = _choose_ticks([*ends, chance] if chance is not None else ends)
    low, high = ticks[0], ticks[-1]

    def compute_y(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 2)

    lines = []
    for k, name in enumerate(comparison.names):
        model_rows = rows[rows["model"] == name]
        if len(model_rows):
            points = tuple(_build_point(row, compute_y, unit, name) for _, row in model_rows.iterrows())
            lines.append(Line(k, "M" + "L".join(f"{p.x} {p.y}" for p in points), points))
    labeled_ticks = tuple((compute_y(tick), f"{tick:g}".replace("-", "−")) for tick in ticks)
    chance_y = None if chance is None else compute_y(chance)
    return Panel(measure.label, words, measure.description, labeled_ticks, chance_y, tuple(lines))


def _choose_units(measure: Measure, *, against_chance: bool) -> tuple[str, str]:
    if not against_chance:
        return f" {measure.unit}", measure.unit
    return (" × chance", "over chance") if measure.over else (" points", "minus chance, percentage points")


def _build_point(row: pd.Series, compute_y: Callable[[float], float], unit: str, name: str) -> Point:
    value, bar = float(row["shown"]), float(row["bar"])
    digits = 2 if abs(value) < 10 else 1
    error = f" ± {format_fixed(bar, digits)}" if bar > 0 else ""
    description = f"{name}, L{int(row['layer'])}: {format_fixed(value, digits)}{error}{unit}"
    return Point(
        compute_x(float(row["depth"])), compute_y(value), compute_y(value - bar), compute_y(value + bar), description
    )


def _choose_ticks(numbers: list[float]) -> tuple[float, ...]:
    """Return round numbers that enclose all numbers."""
    low, high = min(numbers), max(numbers)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    min_step = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(k * step, 10) for k in range(first, max(last, first + 1) + 1))


COLOR_STOPS = ("#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b")
"""ColorBrewer's RdBu, from negative to positive; people with any common colour vision can tell its ends apart"""
NUMBER_COLUMNS = ("one", "other", "difference", "error", "t", "p", "p_corrected")


@dataclass(frozen=True)
class Cell:
    """A head in a map."""

    index: int
    text: str
    background: str
    ink: str
    significant: bool


@dataclass(frozen=True)
class DifferenceMap:
    """The differences of one rate between a pair of studies, over layers and heads."""

    pair: int
    measure: Measure
    unit: str
    reach: float
    """the largest difference, in displayed units"""
    tests: int
    significant: int
    correlation: float
    heads: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]

    @property
    def end(self) -> str:
        return format_fixed(self.reach, 2 if self.reach < 10 else 1)


def pick_diverging_color(position: float) -> str:
    """Return the colour at a position from −1 to 1.

    >>> pick_diverging_color(-1.0), pick_diverging_color(0.0), pick_diverging_color(1.0)
    ('#2166ac', '#f7f7f7', '#b2182b')
    """
    stop_position = (min(max(position, -1.0), 1.0) + 1) / 2 * (len(COLOR_STOPS) - 1)
    lower = min(int(stop_position), len(COLOR_STOPS) - 2)
    channels = []
    for k in (1, 3, 5):
        low, high = (int(stop[k : k + 2], 16) for stop in COLOR_STOPS[lower : lower + 2])
        channels.append(round(low + (high - low) * (stop_position - lower)))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def format_gradient() -> str:
    """Return the scale as a CSS background."""
    return f"linear-gradient(to right, {', '.join(COLOR_STOPS)})"


def build_difference_maps(comparison: Comparison) -> list[DifferenceMap]:
    """Return a map for every pair of studies and every rate."""
    return [
        _build_map(comparison, number, pair, measure)
        for number, pair in enumerate(comparison.pairs)
        for measure in MEASURES.values()
    ]


def _build_map(comparison: Comparison, number: int, pair: Pair, measure: Measure) -> DifferenceMap:
    table, study = comparison.differences(measure.name, pair.model), comparison.study(pair.baseline)
    values = table["difference"].to_numpy(np.float64) * measure.factor
    magnitudes = np.abs(values[np.isfinite(values)])
    reach = float(magnitudes.max()) if magnitudes.size and magnitudes.max() > 0 else 1.0
    columns = len(study.head_numbers)
    cells = [
        _build_cell(index, float(value), reach, bool(significant))
        for index, (value, significant) in enumerate(zip(values, table["significant"], strict=True))
    ]
    correlations = comparison.correlations[
        (comparison.correlations["model"] == pair.model) & (comparison.correlations["rate"] == measure.name)
    ]["correlation"]
    return DifferenceMap(
        number,
        measure,
        "percentage points" if measure.unit == "%" else measure.unit,
        reach,
        int(table["p"].notna().sum()),
        int(table["significant"].sum()),
        float(correlations.iloc[0]),
        tuple(study.head_numbers),
        tuple((layer, tuple(cells[row * columns : (row + 1) * columns])) for row, layer in enumerate(study.layers)),
    )


def _build_cell(index: int, value: float, reach: float, significant: bool) -> Cell:
    if not math.isfinite(value):
        return Cell(index, "", "", "", False)
    background = pick_diverging_color(value / reach)
    text = format_brief(value)
    return Cell(index, "0" if text.lstrip("−") == "0.0" else text, background, pick_text_color(background), significant)


def collect_script_data(comparison: Comparison) -> dict[str, Any]:
    """Return the differences for the page's script to show, sort and save; NaN becomes null."""
    return {
        "pairs": [_collect_pair_data(comparison, pair) for pair in comparison.pairs],
        "rates": [
            {"name": measure.name, "label": measure.label, "unit": measure.unit, "factor": measure.factor}
            for measure in MEASURES.values()
        ],
    }


def _collect_pair_data(comparison: Comparison, pair: Pair) -> dict[str, Any]:
    tables = {name: comparison.differences(name, pair.model) for name in MEASURES}
    first_table = next(iter(tables.values()))
    return {
        "baseline": pair.baseline,
        "model": pair.model,
        "paired": pair.paired,
        "heads": first_table["head"].tolist(),
        "layer": first_table["layer"].tolist(),
        "head_number": first_table["head_number"].tolist(),
        "columns": len(comparison.study(pair.baseline).head_numbers),
        "rates": {name: _collect_columns(table) for name, table in tables.items()},
    }


def _collect_columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    numbers = {name: [_round_number(value) for value in table[name].tolist()] for name in NUMBER_COLUMNS}
    return {**numbers, "significant": [bool(value) for value in table["significant"]]}


def _round_number(value: float) -> float | None:
    return float(f"{value:.12g}") if math.isfinite(value) else None

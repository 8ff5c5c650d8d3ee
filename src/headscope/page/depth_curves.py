"""Drawings of rates over depth: positions of points, error bars and ticks, in the units of an SVG's view box."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from headscope.comparison.measures import DEPTH_PANELS, MEASURES, Measure
from headscope.comparison.result import Comparison
from headscope.page.formatting import format_fixed

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

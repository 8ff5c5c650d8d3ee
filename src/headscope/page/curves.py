"""Rates over depth as drawings for a page: places of points, bars and ticks, in the units of an SVG's view box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from headscope.comparison.measures import MEASURES, NEAR, Measure
from headscope.comparison.result import Comparison
from headscope.page.words import fixed

WIDTH, HEIGHT = 380.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 8.0, 10.0, 34.0
TICKS = 5
PANELS = (
    *((rate, "against_chance") for rate in ("repeat_rate", "same_sentence_rate", "dominant_share", "mean_distance")),
    ("mean_distance", "value"),
    (NEAR, "against_chance"),
)
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
"""a mark for each of eight models, around the origin"""


@dataclass(frozen=True)
class Point:
    """One layer of one model."""

    x: float
    y: float
    low: float
    high: float
    """the ends of its error bar"""
    words: str


@dataclass(frozen=True)
class Line:
    """One model."""

    model: int
    path: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Panel:
    """One drawing."""

    title: str
    words: str
    about: str
    ticks: tuple[tuple[float, str], ...]
    chance: float | None
    lines: tuple[Line, ...]

    @property
    def measurable(self) -> bool:
        return bool(self.lines)


def panels(made: Comparison) -> list[Panel]:
    """Every drawing of the rates over depth."""
    return [_panel(made, MEASURES[rate], column) for rate, column in PANELS]


def place(depth: float) -> float:
    """Where a relative depth lies across."""
    return round(LEFT + depth * (WIDTH - LEFT - RIGHT), 2)


def _panel(made: Comparison, measure: Measure, column: str) -> Panel:
    against = column == "against_chance"
    scale = 1.0 if against and measure.over else measure.factor
    rows = made.depth[made.depth["rate"] == measure.name].assign(
        shown=lambda table: table[column] * scale,
        bar=lambda table: table["against_chance_error" if against else "error"].fillna(0.0) * scale,
    )
    rows = rows[rows["shown"].notna()]
    unit, words = _units(measure, against=against)
    if not len(rows):
        return Panel(measure.label, words, measure.about, (), None, ())
    chance = (1.0 if measure.over else 0.0) if against else None
    ends = [float((rows["shown"] - rows["bar"]).min()), float((rows["shown"] + rows["bar"]).max())]
    ticks = _ticks([*ends, chance] if chance is not None else ends)
    low, high = ticks[0], ticks[-1]

    def down(value: float) -> float:
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 2)

    lines = []
    for k, name in enumerate(made.names):
        own = rows[rows["model"] == name]
        if len(own):
            points = tuple(_point(row, down, unit, name) for _, row in own.iterrows())
            lines.append(Line(k, "M" + "L".join(f"{p.x} {p.y}" for p in points), points))
    labelled = tuple((down(tick), f"{tick:g}".replace("-", "−")) for tick in ticks)
    return Panel(measure.label, words, measure.about, labelled, None if chance is None else down(chance), tuple(lines))


def _units(measure: Measure, *, against: bool) -> tuple[str, str]:
    if not against:
        return f" {measure.unit}", measure.unit
    return (" × chance", "over chance") if measure.over else (" points", "minus chance, percentage points")


def _point(row: pd.Series, down: object, unit: str, name: str) -> Point:
    assert callable(down)
    value, bar = float(row["shown"]), float(row["bar"])
    digits = 2 if abs(value) < 10 else 1
    error = f" ± {fixed(bar, digits)}" if bar > 0 else ""
    words = f"{name}, L{int(row['layer'])}: {fixed(value, digits)}{error}{unit}"
    return Point(place(float(row["depth"])), down(value), down(value - bar), down(value + bar), words)


def _ticks(numbers: list[float]) -> tuple[float, ...]:
    """Round numbers around all of them."""
    low, high = min(numbers), max(numbers)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    wanted = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(k * step, 10) for k in range(first, max(last, first + 1) + 1))

"""Head by head differences as maps for a page: colours around zero, and the numbers the page's script sorts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headscope.comparison.measures import MEASURES, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.page.colours import ink
from headscope.page.words import brief, fixed

STOPS = ("#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d", "#b2182b")
"""Brewer's RdBu, from below to above; people with any common colour vision can tell its ends apart"""
NUMBERS = ("one", "other", "difference", "error", "t", "p", "p_corrected")


@dataclass(frozen=True)
class Cell:
    """One head."""

    index: int
    text: str
    background: str
    ink: str
    significant: bool


@dataclass(frozen=True)
class DifferenceMap:
    """One rate of one pair over layers and heads."""

    pair: int
    measure: Measure
    unit: str
    reach: float
    """the largest difference, in shown units"""
    tests: int
    found: int
    correlation: float
    heads: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]

    @property
    def end(self) -> str:
        return fixed(self.reach, 2 if self.reach < 10 else 1)


def diverging(position: float) -> str:
    """The colour at a position from −1 to 1.

    >>> diverging(-1.0), diverging(0.0), diverging(1.0)
    ('#2166ac', '#f7f7f7', '#b2182b')
    """
    place = (min(max(position, -1.0), 1.0) + 1) / 2 * (len(STOPS) - 1)
    below = min(int(place), len(STOPS) - 2)
    channels = []
    for k in (1, 3, 5):
        low, high = (int(stop[k : k + 2], 16) for stop in STOPS[below : below + 2])
        channels.append(round(low + (high - low) * (place - below)))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def gradient() -> str:
    """The scale as a CSS background."""
    return f"linear-gradient(to right, {', '.join(STOPS)})"


def difference_maps(made: Comparison) -> list[DifferenceMap]:
    """A map for every pair and rate."""
    return [_map(made, k, pair, measure) for k, pair in enumerate(made.pairs) for measure in MEASURES.values()]


def _map(made: Comparison, number: int, pair: Pair, measure: Measure) -> DifferenceMap:
    table, study = made.differences(measure.name, pair.other), made.study(pair.one)
    values = table["difference"].to_numpy(np.float64) * measure.factor
    known = np.abs(values[np.isfinite(values)])
    reach = float(known.max()) if known.size and known.max() > 0 else 1.0
    columns = len(study.heads)
    cells = [
        _cell(k, float(value), reach, bool(significant))
        for k, (value, significant) in enumerate(zip(values, table["significant"], strict=True))
    ]
    alike = made.correlations[(made.correlations["model"] == pair.other) & (made.correlations["rate"] == measure.name)][
        "correlation"
    ]
    return DifferenceMap(
        number,
        measure,
        "percentage points" if measure.unit == "%" else measure.unit,
        reach,
        int(table["p"].notna().sum()),
        int(table["significant"].sum()),
        float(alike.iloc[0]),
        tuple(study.heads),
        tuple((layer, tuple(cells[row * columns : (row + 1) * columns])) for row, layer in enumerate(study.layers)),
    )


def _cell(index: int, value: float, reach: float, significant: bool) -> Cell:
    if not math.isfinite(value):
        return Cell(index, "", "", "", False)
    background = diverging(value / reach)
    text = brief(value)
    return Cell(index, "0" if text.lstrip("−") == "0.0" else text, background, ink(background), significant)


def script_data(made: Comparison) -> dict[str, Any]:
    """What the page's script needs to show, sort and save the differences. NaN is null."""
    return {
        "pairs": [_pair_data(made, pair) for pair in made.pairs],
        "rates": [
            {"name": each.name, "label": each.label, "unit": each.unit, "factor": each.factor}
            for each in MEASURES.values()
        ],
    }


def _pair_data(made: Comparison, pair: Pair) -> dict[str, Any]:
    tables = {name: made.differences(name, pair.other) for name in MEASURES}
    first = next(iter(tables.values()))
    return {
        "baseline": pair.one,
        "model": pair.other,
        "paired": pair.paired,
        "heads": first["name"].tolist(),
        "layer": first["layer"].tolist(),
        "head": first["head"].tolist(),
        "columns": len(made.study(pair.one).heads),
        "rates": {name: _columns(table) for name, table in tables.items()},
    }


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    numbers = {name: [_number(value) for value in table[name].tolist()] for name in NUMBERS}
    return {**numbers, "significant": [bool(value) for value in table["significant"]]}


def _number(value: float) -> float | None:
    return float(f"{value:.12g}") if math.isfinite(value) else None

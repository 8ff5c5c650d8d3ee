"""Maps of the differences of heads: colours around zero, and the numbers for the page's script."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headscope.comparison.measures import MEASURES, Measure
from headscope.comparison.result import Comparison, Pair
from headscope.page.colors import pick_text_color
from headscope.page.formatting import format_brief, format_fixed

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

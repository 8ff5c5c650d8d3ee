"""Rates over relative depth: the mean over the heads of each layer, also against chance.

The first layer is at depth 0, the last at 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headscope.array_types import Floats
from headscope.comparison.measures import MEASURES, OVER_DEPTH, Measure
from headscope.studies.jackknife import compute_jackknife_error
from headscope.studies.result import Study

COLUMNS = (
    "model", "rate", "layer", "depth", "heads", "value", "error", "chance", "against_chance", "against_chance_error",
)  # fmt: skip


def compute_relative_depth(study: Study) -> Floats:
    """Return where each layer lies between the first (0) and the last (1) of its model.

    A study may hold only some layers of a model. Their numbers are then those of the model, and the attribute `depth`
    is its number of layers.
    """
    layers = np.asarray(study.layers, dtype=np.float64)
    last = max(float(study.data.attrs.get("depth", 0)) - 1, float(layers[-1]))
    return layers / last if last > 0 else np.zeros_like(layers)


def tabulate_depth(names: Sequence[str], studies: Sequence[Study]) -> pd.DataFrame:
    """Return a table with a row for each model, rate and layer; NaN where nothing was counted."""
    parts = [
        _tabulate_study(name, study, MEASURES[rate])
        for name, study in zip(names, studies, strict=True)
        for rate in OVER_DEPTH
    ]
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def _tabulate_study(name: str, study: Study, measure: Measure) -> pd.DataFrame:
    sums = measure.compute_sums(study)
    rates, chance = sums.compute_rates(), sums.compute_chance()
    jackknifed, chance_jackknifed = sums.jackknife_rates(), sums.jackknife_chance()
    relative = measure.compare_with_chance(rates, chance)
    relative_jackknifed = measure.compare_with_chance(jackknifed, chance_jackknifed)
    return pd.DataFrame(
        {
            "model": name,
            "rate": measure.name,
            "layer": study.layers,
            "depth": compute_relative_depth(study),
            "heads": np.isfinite(rates).sum(axis=-1),
            "value": average_heads(rates),
            "error": compute_jackknife_error(average_heads(jackknifed)),
            "chance": average_heads(np.broadcast_to(chance, rates.shape)),
            "against_chance": average_heads(relative),
            "against_chance_error": compute_jackknife_error(average_heads(relative_jackknifed)),
        }
    )


def average_heads(rates: Floats) -> Floats:
    """Return the mean over heads that have a rate; NaN where none has.

    Args:
        rates: Of shape (…, heads).
    """
    known = np.isfinite(rates)
    count = known.sum(axis=-1)
    sums = np.where(known, rates, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, count, out=np.full(sums.shape, np.nan), where=count > 0)
    return means

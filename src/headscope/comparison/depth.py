"""Rates over relative depth: the mean over a layer's heads, against chance, from first layer (0) to last (1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headscope.comparison.measures import MEASURES, OVER_DEPTH, Measure, jackknife_error
from headscope.studies.result import Study
from headscope.types import Floats

COLUMNS = (
    "model", "rate", "layer", "depth", "heads", "value", "error", "chance", "against_chance", "against_chance_error",
)  # fmt: skip


def relative_depth(study: Study) -> Floats:
    """Where each layer lies between the first (0) and the last (1) of its model.

    Where a study holds only some of the model's layers, their numbers are the model's own, and its attribute `depth`
    says how many the model has.
    """
    layers = np.asarray(study.layers, dtype=np.float64)
    last = max(float(study.data.attrs.get("depth", 0)) - 1, float(layers[-1]))
    return layers / last if last > 0 else np.zeros_like(layers)


def over_depth(names: Sequence[str], studies: Sequence[Study]) -> pd.DataFrame:
    """A table with a row for each model, rate and layer; NaN where nothing was counted."""
    parts = [
        _rows(name, study, MEASURES[rate]) for name, study in zip(names, studies, strict=True) for rate in OVER_DEPTH
    ]
    return pd.concat(parts, ignore_index=True)[list(COLUMNS)]


def _rows(name: str, study: Study, measure: Measure) -> pd.DataFrame:
    sums = measure.sums(study)
    rates, chance = sums.rates(), sums.chance()
    left, chance_left = sums.rates_left_out(), sums.chance_left_out()
    against, against_left = measure.relative(rates, chance), measure.relative(left, chance_left)
    return pd.DataFrame(
        {
            "model": name,
            "rate": measure.name,
            "layer": study.layers,
            "depth": relative_depth(study),
            "heads": np.isfinite(rates).sum(axis=-1),
            "value": over_heads(rates),
            "error": jackknife_error(over_heads(left)),
            "chance": over_heads(np.broadcast_to(chance, rates.shape)),
            "against_chance": over_heads(against),
            "against_chance_error": jackknife_error(over_heads(against_left)),
        }
    )


def over_heads(rates: Floats) -> Floats:
    """The mean over heads that have a rate; NaN where none has."""
    known = np.isfinite(rates)
    number = known.sum(axis=-1)
    sums = np.where(known, rates, 0.0).sum(axis=-1)
    means: Floats = np.divide(sums, number, out=np.full(sums.shape, np.nan), where=number > 0)
    return means

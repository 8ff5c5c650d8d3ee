"""Studies whose heads have chosen attention scores: every sum is set by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from headscope.studies.labels import compute_derived
from headscope.studies.result import Study

EVEN = {
    "attends_previous": 0.01,
    "attends_next": 0.01,
    "attends_self": 0.01,
    "attends_first": 0.01,
    "attends_special": 0.02,
    "attends_punctuation": 0.12,
    "attends_duplicate": 0.03,
    "attends_induction": 0.02,
    "attention_entropy": 1.0,
    "attention_distance": 34.0,
}
"""scores of even attention"""
USUAL = EVEN | {"attention_entropy": 0.8}
"""a head without a preference that is not broad either"""
QUERIES = 1000
"""in each block"""


def plant_attention(study: Study, *rows: Sequence[dict[str, float]], swing: float = 0.0) -> Study:
    """Return the study with these attention scores; those that a head does not give are `USUAL`.

    Args:
        study: A study, of whose attention nothing else is changed.
        rows: The scores of each head, layer by layer.
        swing: How much all scores are raised in even blocks and lowered in odd blocks.
    """
    filled = study.data["texts_blocks"].values > 0
    signs = np.where(np.arange(len(filled)) % 2, -1, 1)
    variables: dict[str, xr.Variable] = {}
    for name, even in EVEN.items():
        scores = np.array([[{**USUAL, **head}[name] for head in row] for row in rows])
        sums = (scores + swing * signs[:, None, None]) * QUERIES * filled[:, None, None]
        variables[f"{name}_sum_blocks"] = xr.Variable(("block", "layer", "head"), sums)
        variables[f"{name}_queries_blocks"] = xr.Variable("block", QUERIES * filled)
        if name != "attention_entropy":
            variables[f"{name}_chance_sum_blocks"] = xr.Variable("block", even * QUERIES * filled)
    totals = {name.removesuffix("_blocks"): blocks.sum("block", skipna=False) for name, blocks in variables.items()}
    data = study.data.assign({**variables, **totals})
    return Study(data.assign(compute_derived(data.variables, data.attrs)))


VARIED_ATTENTION = [
    {"attends_previous": 0.98},
    {"attends_next": 0.5},
    {"attends_self": 0.5},
    {"attends_duplicate": 0.25},
    {"attends_induction": 0.15},
    {"attention_distance": 5.0},
    {"attends_first": 0.6},
    {"attends_special": 0.7},
    {"attends_punctuation": 0.5},
    {"attention_entropy": 0.95},
    {"attends_previous": 0.12},
]
"""one head of each type, in their order, but for the last two"""

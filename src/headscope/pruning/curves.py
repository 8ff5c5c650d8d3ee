"""Measure the objective as a function of the share of heads that are silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headscope.array_types import Floats
from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.head_selection import Head
from headscope.model.interventions import AblationType, list_heads
from headscope.model.model import Model
from headscope.pruning.ablation import AblationRunner, ProgressCallback
from headscope.pruning.ablation_result import compute_standard_error
from headscope.pruning.rankings import order_heads, score_heads

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 5


def select_share(head_scores: Floats, share: float, numbers: Sequence[int] | None = None) -> list[Head]:
    """Return this share of all heads, those with the lowest scores (layers, heads); ties by layer and head.

    At least one head is left out. `numbers` are the layers' numbers in the model, 0, 1, 2, … by default.

    >>> select_share(np.array([[3.0, 1.0], [1.0, 2.0]]), 0.5)
    [(0, 1), (1, 0)]
    """
    return take_share(order_heads(np.asarray(head_scores, dtype=np.float64), numbers), share)


def take_share(order: Sequence[Head], share: float) -> list[Head]:
    """Return the first `share` of an order, rounded to whole heads; at least one head is left out."""
    if not 0 <= share <= 1:
        raise StudyError(f"the share is {share}: choose one from 0 to 1")
    return list(order[: min(int(share * len(order) + 0.5), len(order) - 1)])


def measure_curve(
    model: Model,
    order: Sequence[Head],
    windows: Sequence[Window],
    shares: Sequence[float] = SHARES,
    *,
    ablation_type: AblationType = "zero",
    means: Floats | None = None,
    batch_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> pd.DataFrame:
    """Measure the objective while heads are silenced in this order, by zero or by their mean.

    Args:
        means: Mean outputs of the heads, as `compute_head_means` returns them; by default those over these texts.

    Returns:
        One row for each share, with the number of heads `removed`, the mean `loss`, and its standard `error` over
        texts.
    """
    return _measure_curves(
        AblationRunner.create(model, windows, ablation_type, batch_size, means), [order], shares, progress
    )[0]


def measure_random_curve(
    model: Model,
    windows: Sequence[Window],
    shares: Sequence[float] = SHARES,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    ablation_type: AblationType = "zero",
    means: Floats | None = None,
    batch_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> pd.DataFrame:
    """Measure the same for `draws` random orders, of seeds `seed`, `seed` + 1, ….

    Returns:
        One row for each share, with the number of heads `removed`, the mean `loss`, its standard `error` over the
        draws (NaN for a single draw), and the `lowest` and the `highest` loss of a draw.
    """
    if draws < 1:
        raise StudyError(f"draws is {draws}: at least 1")
    orders = [
        order_heads(score_heads(model, "random", windows, seed=seed + k), model.architecture.numbers)
        for k in range(draws)
    ]
    tables = _measure_curves(
        AblationRunner.create(model, windows, ablation_type, batch_size, means), orders, shares, progress
    )
    losses = np.stack([table["loss"].to_numpy() for table in tables])
    return tables[0][["share", "removed"]].assign(
        loss=losses.mean(axis=0),
        error=compute_standard_error(losses),
        lowest=losses.min(axis=0),
        highest=losses.max(axis=0),
    )


def _measure_curves(
    runner: AblationRunner, orders: Sequence[Sequence[Head]], shares: Sequence[float], progress: ProgressCallback | None
) -> list[pd.DataFrame]:
    expected = set(list_heads(runner.model.architecture))
    for order in orders:
        if len(order) != len(expected) or {(int(layer), int(head)) for layer, head in order} != expected:
            raise StudyError(f"an order contains each of the model's {len(expected)} heads once; this one does not")
    tables, done = [], 0
    for order in orders:
        rows = []
        for share in shares:
            heads = take_share(order, share)
            losses = runner.measure_losses(heads)
            rows.append((share, len(heads), float(losses.mean()), float(compute_standard_error(losses))))
            done += 1
            if progress is not None:
                progress("removing heads", done, len(orders) * len(shares))
        tables.append(pd.DataFrame(rows, columns=["share", "removed", "loss", "error"]))
    return tables

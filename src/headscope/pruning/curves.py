"""The objective against the share of heads that are silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.pruning.ablation import standard_error
from headscope.pruning.measuring import Bench, Told
from headscope.pruning.naming import Head, all_heads
from headscope.pruning.rankings import order_of, scores
from headscope.pruning.silencing import By
from headscope.types import Floats

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 5


def removed(found: Floats, share: float, numbers: Sequence[int] | None = None) -> list[Head]:
    """The heads that go when this share of all is to go: those with the least scores (layers, heads), ties by layer
    and head; never all of them. `numbers` are the layers' true ones, if not 0, 1, 2, …

    >>> removed(np.array([[3.0, 1.0], [1.0, 2.0]]), 0.5)
    [(0, 1), (1, 0)]
    """
    return first(order_of(np.asarray(found, dtype=np.float64), numbers), share)


def first(order: Sequence[Head], share: float) -> list[Head]:
    """The share of an order that comes first, rounded to whole heads; one is always left."""
    if not 0 <= share <= 1:
        raise StudyError(f"the share is {share}: choose one from 0 to 1")
    return list(order[: min(int(share * len(order) + 0.5), len(order) - 1)])


def curve(
    model: Model,
    order: Sequence[Head],
    windows: Sequence[Window],
    shares: Sequence[float] = SHARES,
    *,
    by: By = "zero",
    means: Floats | None = None,
    batch_size: int | None = None,
    progress: Told | None = None,
) -> pd.DataFrame:
    """The objective when heads are silenced in this order, by zero or by their mean: one row for each share, with the
    number of heads `removed`, the mean `loss`, and its standard `error` over texts.

    `means` are those of these texts where they are not given.
    """
    return _curves(Bench.of(model, windows, by, batch_size, means), [order], shares, progress)[0]


def random_curve(
    model: Model,
    windows: Sequence[Window],
    shares: Sequence[float] = SHARES,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    by: By = "zero",
    means: Floats | None = None,
    batch_size: int | None = None,
    progress: Told | None = None,
) -> pd.DataFrame:
    """The same of `draws` random orders, of seeds `seed`, `seed` + 1, …: their mean `loss`, the band from the `lowest`
    to the `highest`, and `error`, the mean's standard error over the draws (NaN of one)."""
    if draws < 1:
        raise StudyError(f"draws is {draws}: at least 1")
    orders = [order_of(scores(model, "random", windows, seed=seed + k), model.anatomy.numbers) for k in range(draws)]
    found = _curves(Bench.of(model, windows, by, batch_size, means), orders, shares, progress)
    losses = np.stack([each["loss"].to_numpy() for each in found])
    return found[0][["share", "removed"]].assign(
        loss=losses.mean(axis=0),
        error=standard_error(losses),
        lowest=losses.min(axis=0),
        highest=losses.max(axis=0),
    )


def _curves(
    bench: Bench, orders: Sequence[Sequence[Head]], shares: Sequence[float], progress: Told | None
) -> list[pd.DataFrame]:
    every = set(all_heads(bench.model.anatomy))
    for order in orders:
        if len(order) != len(every) or {(int(layer), int(head)) for layer, head in order} != every:
            raise StudyError(f"an order holds each of the model's {len(every)} heads once; this one does not")
    found, done = [], 0
    for order in orders:
        rows = []
        for share in shares:
            heads = first(order, share)
            losses = bench.losses(heads)
            rows.append((share, len(heads), float(losses.mean()), float(standard_error(losses))))
            done += 1
            if progress is not None:
                progress("removing heads", done, len(orders) * len(shares))
        found.append(pd.DataFrame(rows, columns=["share", "removed", "loss", "error"]))
    return found

"""Which heads can go: a number for each head, by many rules. The least goes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.pruning.gradient import gradients
from headscope.pruning.measuring import Bench, Told
from headscope.pruning.naming import Head, all_heads
from headscope.pruning.outputs import output_norms
from headscope.pruning.silencing import By
from headscope.pruning.texts import batches_of
from headscope.studies.result import Study
from headscope.types import Floats

STUDIED: dict[str, Callable[[Study], Floats]] = {
    "snr": lambda study: study.signal_to_noise().values,
    "snr-contrast": lambda study: study.signal_to_noise("contrast").values,
    "snr-explained": lambda study: study.signal_to_noise("explained").values,
    "snr-energy": lambda study: study.signal_to_noise("energy").values,
    "repeat": lambda study: study.rate("repeat_rate").values,
    "same-sentence": lambda study: study.rate("same_sentence_rate").values,
    "distance": lambda study: study.rate("mean_distance").values,
    "dominant-share": lambda study: study.rate("dominant_share").values,
    "pairs": lambda study: study.data["pairs"].values,
}
"""Rules that need a study of the model: what it says of each head."""

MEASURED = ("norm", "projected-norm", "gradient", "ablation")
"""Rules that need texts: `output_norms`, `gradients`, and the objective's change when the head alone is silenced."""

RULES = (*STUDIED, *MEASURED, "random")

STEPS = 20
"""A greedy order is found in about so many steps where nothing else is said."""


def scores(
    model: Model,
    by: str,
    windows: Sequence[Window],
    *,
    study: Study | None = None,
    seed: int = 0,
    batch_size: int | None = None,
) -> Floats:
    """A number for each head (layers, heads); when heads are removed, the least goes first. What cannot be measured of
    a head (NaN) counts as least: −∞.

    `by` is one of `RULES`. Those in `STUDIED` take a `study` of this model and no windows; `random` takes its `seed`.
    """
    if by not in RULES:
        raise StudyError(f"unknown ranking {by!r}; there are: {', '.join(RULES)}")
    shape = (model.anatomy.layers, model.anatomy.heads)
    found: Floats
    if by == "random":
        found = np.random.default_rng(seed).random(shape)
    elif by in STUDIED:
        found = np.asarray(STUDIED[by](_of_model(model, by, study)), dtype=np.float64)
    elif by == "ablation":
        found = Bench.of(model, windows, batch_size=batch_size).mean_changes(all_heads(model.anatomy)).reshape(shape)
    elif by == "gradient":
        found = gradients(model, batches_of(model, windows, batch_size))
    else:
        batches = batches_of(model, windows, batch_size)
        found = output_norms(model, batches, projected=by == "projected-norm")
    return np.where(np.isnan(found), -np.inf, found)


def order_of(found: Floats, numbers: Sequence[int] | None = None) -> list[Head]:
    """All heads, those first that go first: the least scores, NaN before all, ties by layer and head.

    `numbers` are the layers' true ones, if not 0, 1, 2, …

    >>> order_of(np.array([[0.5, 0.1], [0.1, np.nan]]))
    [(1, 1), (0, 1), (1, 0), (0, 0)]
    """
    held = np.where(np.isnan(found), -np.inf, found)
    layers = range(len(held)) if numbers is None else numbers
    places = np.argsort(held, axis=None, kind="stable")
    return [(layers[int(k) // held.shape[1]], int(k) % held.shape[1]) for k in places]


def greedy(
    model: Model,
    windows: Sequence[Window],
    *,
    step: int | None = None,
    by: By = "zero",
    batch_size: int | None = None,
    progress: Told | None = None,
) -> list[Head]:
    """All heads in the order in which they go when each step takes those that the objective misses least, measured with
    all that went before silent: what the other rankings strive for.

    Each step silences every head that is left, alone, and takes the `step` best of them at once (a twentieth of all, at
    least one, where it is None; 1 is the full greedy search). Heads that go in one step were not measured together.
    """
    left = all_heads(model.anatomy)
    size = max(1, len(left) // STEPS) if step is None else step
    if size < 1:
        raise StudyError(f"step is {step}: take at least one head at a time")
    bench, total = Bench.of(model, windows, by, batch_size), len(left)
    gone: list[Head] = []
    while len(left) > 1:
        changes = bench.mean_changes(left, silent=gone)
        order = [left[k] for k in np.argsort(changes, kind="stable")]
        gone += order[:size]
        left = [head for head in left if head in order[size:]]
        if progress is not None:
            progress("choosing heads", len(gone), total)
    return gone + left


def _of_model(model: Model, by: str, study: Study | None) -> Study:
    if study is None:
        raise StudyError(f"the ranking {by!r} needs a study of the model: make one with headscope study, and give it")
    about, anatomy = study.manifest, model.anatomy
    stack = about.get("stack", anatomy.stack)  # studies of earlier versions say nothing
    if (about["weight_hash"], stack) != (model.weight_hash, anatomy.stack):
        raise StudyError(
            f"the study is of {about['model']} ({stack}), and the model is {model.name} ({anatomy.stack}), "
            "or its weights are others: study this model"
        )
    if (study.layers, study.heads) != (list(anatomy.numbers), list(range(anatomy.heads))):
        raise StudyError(f"the study holds {study.size}, not all heads of {model.name}: give the whole study")
    return study

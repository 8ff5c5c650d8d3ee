"""Rank heads by many rules: a score for each head; heads with the lowest scores are removed first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headscope.array_types import Floats
from headscope.corpus.windows import Window
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.pruning.ablation_runner import AblationRunner, ProgressCallback
from headscope.pruning.gate_gradients import compute_gate_gradients
from headscope.pruning.head_names import Head, list_heads
from headscope.pruning.output_norms import compute_output_norms
from headscope.pruning.silencing import SilencingMode
from headscope.pruning.text_batches import batch_windows
from headscope.studies.result import Study

STUDY_RULES: dict[str, Callable[[Study], Floats]] = {
    "signal-share": lambda study: study.signal_shares()["signal_share"].values,
    "repeat": lambda study: study.rate("repeat_rate").values,
    "same-sentence": lambda study: study.rate("same_sentence_rate").values,
    "distance": lambda study: study.rate("mean_distance").values,
    "dominant-share": lambda study: study.rate("dominant_share").values,
    "pairs": lambda study: study.data["pairs"].values,
}
"""rules that need a study of the model, and how the scores (layers, heads) are read from it"""

TEXT_RULES = ("norm", "projected-norm", "gradient", "ablation")
"""rules that need texts: `output_norms`, `compute_gate_gradients`, and how the objective
changes when the head alone is silenced"""

RULES = (*STUDY_RULES, *TEXT_RULES, "random")

DEFAULT_RULE = "gradient"
"""nearly as good as measuring each head (docs/pruning.md), for one backward pass over the texts"""

GREEDY_STEPS = 20
"""approximate number of steps of a greedy search by default"""


def score_heads(
    model: Model,
    by: str,
    windows: Sequence[Window],
    *,
    study: Study | None = None,
    seed: int = 0,
    batch_size: int | None = None,
) -> Floats:
    """Return a score for each head (layers, heads); heads with the lowest scores are removed first.

    Heads for which the rule is undefined (NaN) get the lowest score, −∞.

    Args:
        by: One of `RULES`.
        windows: Texts for the rules in `TEXT_RULES`; the others ignore them.
        study: A study of this model, for the rules in `STUDY_RULES`.
        seed: For the rule `random`.
    """
    if by not in RULES:
        raise StudyError(f"unknown ranking {by!r}; there are: {', '.join(RULES)}")
    shape = (model.architecture.layers, model.architecture.heads)
    head_scores: Floats
    if by == "random":
        head_scores = np.random.default_rng(seed).random(shape)
    elif by in STUDY_RULES:
        head_scores = np.asarray(STUDY_RULES[by](_check_study(model, by, study)), dtype=np.float64)
    elif by == "ablation":
        bench = AblationRunner.create(model, windows, batch_size=batch_size)
        head_scores = bench.compute_mean_changes(list_heads(model.architecture)).reshape(shape)
    elif by == "gradient":
        head_scores = compute_gate_gradients(model, batch_windows(model, windows, batch_size))
    else:
        batches = batch_windows(model, windows, batch_size)
        head_scores = compute_output_norms(model, batches, projected=by == "projected-norm")
    return np.where(np.isnan(head_scores), -np.inf, head_scores)


def order_heads(head_scores: Floats, numbers: Sequence[int] | None = None) -> list[Head]:
    """Return all heads in the order of removal: lowest scores first, NaN before all, ties by layer and head.

    `numbers` are the layers' numbers in the model, 0, 1, 2, … by default.

    >>> order_heads(np.array([[0.5, 0.1], [0.1, np.nan]]))
    [(1, 1), (0, 1), (1, 0), (0, 0)]
    """
    filled = np.where(np.isnan(head_scores), -np.inf, head_scores)
    layers = range(len(filled)) if numbers is None else numbers
    order = np.argsort(filled, axis=None, kind="stable")
    return [(layers[int(k) // filled.shape[1]], int(k) % filled.shape[1]) for k in order]


def rank_greedily(
    model: Model,
    windows: Sequence[Window],
    *,
    step: int | None = None,
    by: SilencingMode = "zero",
    batch_size: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[Head]:
    """Return all heads in the order of a greedy removal, which the other rankings approximate.

    Each step silences every remaining head, alone, with all that were removed before silent, and removes those whose
    silence raises the objective least. Heads removed in one step were not measured together.

    Args:
        step: Heads removed per step: 1 is the full greedy search; a twentieth of all heads, at least one, by default.
    """
    left = list_heads(model.architecture)
    size = max(1, len(left) // GREEDY_STEPS) if step is None else step
    if size < 1:
        raise StudyError(f"step is {step}: take at least one head at a time")
    bench, total = AblationRunner.create(model, windows, by, batch_size), len(left)
    removed: list[Head] = []
    while len(left) > 1:
        changes = bench.compute_mean_changes(left, silent=removed)
        order = [left[k] for k in np.argsort(changes, kind="stable")]
        removed += order[:size]
        left = [head for head in left if head in order[size:]]
        if progress is not None:
            progress("choosing heads", len(removed), total)
    return removed + left


def _check_study(model: Model, by: str, study: Study | None) -> Study:
    """Return the study if it is one of all heads of this model."""
    if study is None:
        raise StudyError(f"the ranking {by!r} needs a study of the model: make one with headscope study, and pass it")
    manifest, architecture = study.manifest, model.architecture
    stack = manifest.get("stack", architecture.stack)  # studies of earlier versions have no such entry
    if (manifest["weight_hash"], stack) != (model.weight_hash, architecture.stack):
        raise StudyError(
            f"the study is of {manifest['model']} ({stack}), and the model is {model.name} ({architecture.stack}), "
            "or its weights differ: study this model"
        )
    if (study.layers, study.heads) != (list(architecture.numbers), list(range(architecture.heads))):
        raise StudyError(f"the study holds {study.size}, not all heads of {model.name}: pass the whole study")
    return study

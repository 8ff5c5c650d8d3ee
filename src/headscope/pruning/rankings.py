"""Which heads go first: rankings by many rules, the selection of the lowest, and curves that compare rankings.

Rank heads by many rules: a score for each head; heads with the lowest scores are removed first.

The rule `gradient` is the sensitivity of the objective to each head, to first order: each head's output is multiplied
by a gate, and the gradient with respect to the gates is taken where all are 1 (Michel, Levy, Neubig: "Are Sixteen Heads
Really Better than One?", 2019).

Select the heads to remove: how many, and those with the lowest scores.

Measure the objective as a function of the share of heads that are silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch

from headscope.array_types import Floats
from headscope.corpus.windows import Batch, Window
from headscope.devices import send, to_float64
from headscope.errors import ModelError, StudyError
from headscope.head_selection import Head
from headscope.model.head_surgery import get_head_weights
from headscope.model.interventions import AblationType, gated, list_heads
from headscope.model.model import Model
from headscope.pruning.ablation import AblationRunner, ProgressCallback
from headscope.pruning.ablation_result import compute_standard_error
from headscope.pruning.objective import EmbeddingDistance, NumberedBatch, batch_windows, choose_objective
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
"""rules that need texts: `compute_output_norms`, `compute_gate_gradients`, and how the objective changes when the head
alone is silenced"""

RULES = (*STUDY_RULES, *TEXT_RULES, "random")

DEFAULT_RULE = "gradient"
"""nearly as good as measuring each head (docs/pruning.md), for one backward pass over the texts"""

GREEDY_STEPS = 20
"""approximate number of steps of a greedy search by default"""

PROBES = 8
"""random directions for each text, along which the change of an embedding is measured"""


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
    if len(counts := set(model.architecture.head_counts)) > 1:
        raise ModelError(
            f"{model.name}: its layers differ in their number of heads ({', '.join(map(str, sorted(counts)))}), and "
            "rankings are for models with the same number in all: name the heads to remove with --heads"
        )
    shape = (model.architecture.layers, model.architecture.heads)
    head_scores: Floats
    if by == "random":
        head_scores = np.random.default_rng(seed).random(shape)
    elif by in STUDY_RULES:
        head_scores = np.asarray(STUDY_RULES[by](_check_study(model, by, study)), dtype=np.float64)
    elif by == "ablation":
        runner = AblationRunner.create(model, windows, batch_size=batch_size)
        head_scores = runner.compute_mean_changes(list_heads(model.architecture)).reshape(shape)
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
    ablation_type: AblationType = "zero",
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
    runner, total = AblationRunner.create(model, windows, ablation_type, batch_size), len(left)
    removed: list[Head] = []
    while len(left) > 1:
        changes = runner.compute_mean_changes(left, silent=removed)
        order = [left[k] for k in np.argsort(changes, kind="stable")]
        removed += order[:size]
        left = [head for head in left if head in order[size:]]
        if progress is not None:
            progress("choosing heads", len(removed), total)
    return removed + left


def compute_output_norms(model: Model, batches: list[NumberedBatch], *, projected: bool = False) -> Floats:
    """Return the root mean square, over real tokens, of the length of each head's output: (layers, heads).

    Args:
        projected: Measure what the output projection makes of it and adds to the token.
    """
    weights = [get_head_weights(model, layer) for layer in range(model.architecture.layers)] if projected else None
    sums = np.zeros((model.architecture.layers, model.architecture.heads))
    tokens = 0
    for numbered in batches:
        (real,) = send([numbered.batch.real], model.device)

        def add_squares(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            written = to_float64(output[real])
            if weights is not None:
                written = torch.einsum("thd,hdo->tho", written, weights[layer])
            sums[layer] += written.square().sum(dim=(0, 2)).cpu().numpy()

        model.observe(numbered.batch, add_squares)
        tokens += int(numbered.batch.real.sum())
    return np.sqrt(sums / tokens)


def compute_gate_gradients(model: Model, batches: list[NumberedBatch]) -> Floats:
    """Return the mean over texts of |∂loss/∂gate|: (layers, heads).

    The embedding distance has its minimum at the untouched model, where its gradient is 0. In its place stands how fast
    the embedding e, normalized to length 1, moves: the root mean square over texts of ‖∂e/∂gate‖, half the square of
    which is the distance to second order. It is estimated from `PROBES` random directions v, seeded by the text alone,
    as the root of the mean of (∂(v·e)/∂gate)².
    """
    objective = choose_objective(model)
    sums = np.zeros((model.architecture.layers, model.architecture.heads))
    texts = 0
    for window in (window for numbered in batches for window in numbered.batch.windows):
        batch = Batch.of([window], model.tokens.pad_id)  # the absolute value is taken for each text
        gates = torch.ones(sums.shape, device=model.device, requires_grad=True)
        with model.prepared(), torch.enable_grad(), gated(model, gates):
            if isinstance(objective, EmbeddingDistance):
                sums += _estimate_squared_speeds(objective.compute_embeddings(batch)[0], gates, window.digest)
            else:
                sums += to_float64(_compute_gradient(objective.compute_losses(batch)[0], gates).abs()).cpu().numpy()
        texts += 1
    means = sums / texts
    return np.sqrt(means) if isinstance(objective, EmbeddingDistance) else means


def _compute_gradient(value: torch.Tensor, gates: torch.Tensor, *, keep_graph: bool = False) -> torch.Tensor:
    return torch.autograd.grad(value, gates, retain_graph=keep_graph)[0]


def _estimate_squared_speeds(embedding: torch.Tensor, gates: torch.Tensor, seed: int) -> Floats:
    """Estimate ‖∂e/∂gate‖² from random directions: (layers, heads)."""
    unit = torch.nn.functional.normalize(embedding, dim=0)
    drawn = np.random.default_rng(seed).standard_normal((PROBES, len(unit)))
    directions = torch.from_numpy(drawn).to(unit.dtype).to(unit.device)
    squares = [
        to_float64(_compute_gradient(v @ unit, gates, keep_graph=k < PROBES - 1)).square()
        for k, v in enumerate(directions)
    ]
    return np.asarray(torch.stack(squares).mean(dim=0).cpu().numpy())


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
    if (study.layers, study.head_numbers) != (list(architecture.numbers), list(range(architecture.heads))):
        raise StudyError(f"the study holds {study.size}, not all heads of {model.name}: pass the whole study")
    return study


Keep = str | int | float
Groups = tuple[frozenset[int], ...]


def parse_keep(keep: Keep, heads: int) -> int:
    """Return how many of `heads` heads are kept: `70%`, `0.7` and 0.7 are a share, an integer is a number of heads.

    >>> parse_keep("70%", 72), parse_keep(0.5, 72), parse_keep("12", 72), parse_keep(1, 72), parse_keep("100%", 72)
    (50, 36, 12, 1, 72)
    """
    value, is_share = check_keep(keep)
    number = int(value * heads + 0.5) if is_share else int(value)
    if not 1 <= number <= heads:
        raise StudyError(
            f"keep {keep!r}: that is {number} of {heads} heads; keep at least one, and at most all"
            f"{'' if is_share else f' (a share is written {keep}%)'}"
        )
    return number


def check_keep(keep: Keep) -> tuple[float, bool]:
    """Return the number that `keep` states, and whether it is a share; raise a StudyError if it is neither.

    >>> check_keep("70%"), check_keep(12)
    ((0.7, True), (12.0, False))
    """
    text = str(keep).strip()
    match = re.fullmatch(r"(\d{1,9}(?:\.\d*)?|\.\d+)\s*(%?)", text, re.ASCII)
    if match is None or isinstance(keep, bool):
        raise StudyError(f"keep {text!r}: write a share, like 70% or 0.7, or a number of heads, like 50")
    is_share = bool(match[2]) or "." in match[1]
    value = float(match[1]) / (100 if match[2] else 1)
    if is_share and not 0 < value <= 1:
        raise StudyError(f"keep {text!r}: a share must be above 0 and at most 100%")
    return value, is_share


def select_lowest(
    head_scores: Floats, numbers: tuple[int, ...], keep: Keep, shared: list[tuple[int, ...]]
) -> list[Head]:
    """Return the heads to remove so that `keep` stay.

    Args:
        head_scores: (layers, heads)
        numbers: The layers' numbers in the model.
        shared: Groups of layers that share a module. They lose the same heads, by their mean score.
    """
    rows = np.stack([head_scores[[numbers.index(layer) for layer in layers]].mean(axis=0) for layers in shared])
    left, removed = head_scores.size, list[Head]()
    target = parse_keep(keep, head_scores.size)
    for row, head in order_heads(rows):
        if left - len(shared[row]) >= target:
            removed += [(layer, head) for layer in shared[row]]
            left -= len(shared[row])
    return sorted(removed)


def select_lowest_per_layer(head_scores: Floats, numbers: tuple[int, ...], keep: Keep, groups: Groups) -> list[Head]:
    """Return the heads to remove so that every layer keeps the same number.

    Where groups of heads share their keys, every group keeps the same number too, if the number is divisible: only then
    do all shapes stay equal.
    """
    layers, heads = head_scores.shape
    kept_per_layer = int(parse_keep(keep, head_scores.size) / layers + 0.5)
    if kept_per_layer < 1:
        raise StudyError(f"keep {keep!r}: that is less than one head for each of {layers} layers: keep more")
    is_divisible = bool(groups) and kept_per_layer % len(groups) == 0
    removed: list[Head] = []
    for number, row in zip(numbers, head_scores, strict=True):
        parts = [sorted(group) for group in groups] if is_divisible else [list(range(heads))]
        for part in parts:
            order = [part[k] for _, k in order_heads(row[None, part])]
            removed += [(number, head) for head in order[: len(part) - kept_per_layer // len(parts)]]
    return sorted(removed)


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

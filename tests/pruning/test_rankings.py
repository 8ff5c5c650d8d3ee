"""Scores of heads by every rule, orders of removal, and curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headscope.corpus.windows import Batch
from headscope.errors import ModelError, StudyError
from headscope.model.interventions import compute_head_means, list_heads, silenced
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.ablation import AblationRunner
from headscope.pruning.ablation_result import compute_standard_error
from headscope.pruning.objective import batch_windows, choose_objective
from headscope.pruning.rankings import (
    PROBES,
    RULES,
    STUDY_RULES,
    TEXT_RULES,
    compute_gate_gradients,
    measure_curve,
    measure_random_curve,
    order_heads,
    rank_greedily,
    score_heads,
    select_share,
    take_share,
)
from headscope.studies.result import Study
from tests.helpers import language_models, tiny
from tests.helpers.architectures import watched
from tests.helpers.families import FAMILIES
from tests.helpers.planted import Planted, planted
from tests.helpers.zeroed_weights import get_width, select_columns


def make_study(model: Model, *rows: list[Planted], **changes: Any) -> Study:
    return planted(*rows, weight_hash=model.weight_hash, stack=model.architecture.stack, **changes)


@pytest.fixture(scope="module")
def bert() -> Model:
    return language_models.load_model("bert")


@pytest.fixture(scope="module")
def windows(bert: Model) -> list[Any]:
    return language_models.make_windows(bert, 9, 6, 4, 8)


# From a study


VARIED = [
    [Planted(equal=0.4), Planted(same=0.9), Planted(distance=5.0), Planted(dominant=0.7)],
    [Planted(pairs=0), Planted(pairs=5), Planted(), Planted()],
]


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ("repeat", "repeat_rate"),
        ("same-sentence", "same_sentence_rate"),
        ("distance", "mean_distance"),
        ("dominant-share", "dominant_share"),
        ("pairs", "pairs"),
    ],
)
def test_the_measures_of_the_paper(bert: Model, by: str, name: str) -> None:
    study = make_study(bert, *VARIED)
    head_scores, expected = score_heads(bert, by, [], study=study), study.data[name].values.astype(float)
    np.testing.assert_array_equal(head_scores, np.where(np.isnan(expected), -np.inf, expected))
    assert not np.isnan(head_scores).any()
    assert head_scores.argmin() == (2 if by == "distance" and np.isfinite(head_scores[1, 0]) else 4)


def test_the_signal_share_is_that_of_the_study(bert: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(bert, *VARIED)
    values = np.arange(8.0).reshape(2, 4)
    values[0, 0] = np.nan
    shares = study.data["pairs"].copy(data=values).rename("signal_share").to_dataset()
    monkeypatch.setattr(Study, "signal_shares", lambda self: shares)
    head_scores = score_heads(bert, "signal-share", [], study=study)
    assert head_scores.ravel().tolist() == [-np.inf, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("by", STUDY_RULES)
def test_a_rule_that_needs_a_study_says_so(bert: Model, windows: list[Any], by: str) -> None:
    with pytest.raises(StudyError, match=f"the ranking '{by}' needs a study"):
        score_heads(bert, by, windows)


def test_a_study_of_something_else_is_refused(bert: Model) -> None:
    with pytest.raises(StudyError, match=r"the study is of other \(encoder\)"):
        score_heads(bert, "repeat", [], study=planted(*VARIED, model="other", stack="encoder"))
    with pytest.raises(StudyError, match="or its weights differ"):
        score_heads(bert, "repeat", [], study=planted(*VARIED, weight_hash="1" * 64))
    with pytest.raises(StudyError, match=r"\(cross\)"):
        score_heads(bert, "repeat", [], study=planted(*VARIED, weight_hash=bert.weight_hash, stack="cross"))
    with pytest.raises(StudyError, match="not all heads of"):
        score_heads(bert, "repeat", [], study=make_study(bert, *VARIED).select(layers=1))


def test_an_unknown_rule_lists_the_known(bert: Model) -> None:
    with pytest.raises(StudyError) as refused:
        score_heads(bert, "size", [])
    assert "unknown ranking 'size'; there are: signal-share, " in str(refused.value)
    assert all(name in str(refused.value) for name in RULES)


@pytest.mark.parametrize("by", TEXT_RULES)
def test_a_rule_that_needs_texts_says_so(bert: Model, by: str) -> None:
    with pytest.raises(StudyError, match="there are no texts"):
        score_heads(bert, by, [])


# From the model


@pytest.mark.parametrize("name", ["bert", "squeezebert", "convbert", "afmoe", "deepseek_v3", "gpt2", "t5"])
def test_norms_by_hand(name: str) -> None:
    model = watched(name)
    windows = [model.adapt_window(window) for window in tiny.batch(9, 4, seed=2).windows]
    observers = [tiny.LayerRecorder() for _ in windows]
    for window, observer in zip(windows, observers, strict=True):
        model.observe(Batch.of([window], FAMILIES[name].pad_id), observer)
    norms, projected = np.zeros((2, model.architecture.heads)), np.zeros((2, model.architecture.heads))
    calls = model.attention_plan.of([model.architecture.stack])
    width = get_width(model, Batch.of(windows[:1]))
    for layer, call in enumerate(calls):
        written = torch.cat([observer.outputs[layer][0] for observer in observers]).double()
        for head in range(model.architecture.heads):
            norms[layer, head] = np.sqrt(np.mean([float(row @ row) for row in written[:, head]]))
            part = select_columns(call.projection.module.weight.detach().double(), call.projection.module, head, width)
            if part.dim() == 2:
                output = written[:, head] @ (part if name == "gpt2" else part.T)
                projected[layer, head] = np.sqrt(np.mean([float(row @ row) for row in output]))
    np.testing.assert_allclose(score_heads(model, "norm", windows), norms, rtol=1e-4)
    if name == "squeezebert":
        with pytest.raises(ModelError, match="layer 0 is no plain linear map"):
            score_heads(model, "projected-norm", windows)
    else:
        np.testing.assert_allclose(score_heads(model, "projected-norm", windows), projected, rtol=1e-4)


def measure_loss(model: Model, window: Any, layer: int, head: int, gate: float) -> float:
    """Return the loss with a head's columns of the projection's weight scaled, which is equivalent to a gate."""
    module = model.attention_plan.of([model.architecture.stack])[layer].projection.module
    before = module.weight.detach().clone()
    with torch.no_grad():
        select_columns(module.weight, module, head, 8).mul_(gate)
    try:
        return float(choose_objective(model).measure_texts(Batch.of([window], model.tokens.pad_id))[0])
    finally:
        with torch.no_grad():
            module.weight.copy_(before)


@pytest.mark.parametrize(("name", "stack"), [("bert", "encoder"), ("gpt2", "decoder"), ("t5", "encoder")])
def test_the_gradient_is_the_slope_of_the_loss(name: str, stack: str) -> None:
    model = language_models.load_model(name).on(stack)
    windows = language_models.make_windows(model, 9, 5)
    head_scores = score_heads(model, "gradient", windows)
    for layer, head in ((0, 1), (1, 2)):
        step = 1e-3  # a ReLU turns within larger ones
        slopes = [
            (measure_loss(model, window, layer, head, 1 + step) - measure_loss(model, window, layer, head, 1 - step))
            / 2
            / step
            for window in windows
        ]
        assert head_scores[layer, head] == pytest.approx(np.mean(np.abs(slopes)), rel=1e-2, abs=5e-4)


def test_the_gradient_of_an_embedding_is_how_fast_it_moves() -> None:
    """Half its square is the distance to second order; with many probes the estimate is close to that."""
    model = load(tiny.network("bert"), tiny.tokenizer())
    (window,) = language_models.make_windows(model, 8)
    step = 0.05
    expected = np.zeros((2, 4))
    objective = choose_objective(model)
    objective.record_baseline(Batch.of([window]))
    for layer, head in list_heads(model.architecture):
        module = model.attention_plan.calls[layer].projection.module
        before = module.weight.detach().clone()
        with torch.no_grad():
            select_columns(module.weight, module, head, 8).mul_(1 + step)
        expected[layer, head] = np.sqrt(2 * objective.measure_texts(Batch.of([window]))[0]) / step
        with torch.no_grad():
            module.weight.copy_(before)
    import headscope.pruning.rankings as gradient_module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_module, "PROBES", 600)
        many = compute_gate_gradients(model, batch_windows(model, [window]))
    np.testing.assert_allclose(many, expected, rtol=0.2)
    few = compute_gate_gradients(model, batch_windows(model, [window]))
    assert PROBES == 8
    assert np.array_equal(few, compute_gate_gradients(model, batch_windows(model, [window])))
    assert np.corrcoef(few.ravel(), expected.ravel())[0, 1] > 0.5


def test_gradients_leave_no_trace(bert: Model, windows: list[Any]) -> None:
    score_heads(bert, "gradient", windows)
    assert all(parameter.grad is None for parameter in bert.network.parameters())


def test_ablation_is_the_mean_change(bert: Model, windows: list[Any]) -> None:
    head_scores, objective, batch = score_heads(bert, "ablation", windows), choose_objective(bert), Batch.of(windows)
    base = objective.measure_texts(batch)
    for layer, head in list_heads(bert.architecture):
        with silenced(bert, [(layer, head)]):
            assert head_scores[layer, head] == pytest.approx((objective.measure_texts(batch) - base).mean(), abs=1e-6)


def test_chance_depends_on_its_seed(bert: Model) -> None:
    first, second = score_heads(bert, "random", []), score_heads(bert, "random", [], seed=1)
    assert np.array_equal(first, score_heads(bert, "random", []))
    assert not np.array_equal(first, second)
    assert sorted(order_heads(first)) == list_heads(bert.architecture)


@pytest.mark.parametrize("by", ["norm", "gradient", "ablation", "projected-norm"])
@pytest.mark.parametrize("name", ["albert", "llama", "jamba", "bart", "vit"])
def test_every_rule_on_other_architectures(name: str, by: str) -> None:
    if name == "vit":
        from tests.helpers.architectures import batch

        model = watched(name)
        windows = batch(model, FAMILIES[name], "right").windows
    else:
        model = language_models.load_model(name)
        windows = language_models.make_windows(model, 6, 4)
    head_scores = score_heads(model, by, windows)
    assert head_scores.shape == (model.architecture.layers, model.architecture.heads)
    assert np.isfinite(head_scores).all()
    assert len(np.unique(head_scores)) == head_scores.size
    np.testing.assert_allclose(score_heads(model, by, windows, batch_size=1), head_scores, rtol=2e-3, atol=1e-5)


# Orders


def test_the_least_goes_first_and_one_is_left() -> None:
    head_scores = np.array([[3.0, 1.0, np.nan], [1.0, 2.0, -np.inf]])
    assert order_heads(head_scores) == [(0, 2), (1, 2), (0, 1), (1, 0), (1, 1), (0, 0)]
    assert order_heads(head_scores, (4, 7))[:3] == [(4, 2), (7, 2), (4, 1)]
    assert select_share(head_scores, 0) == []
    assert select_share(head_scores, 0.5) == [(0, 2), (1, 2), (0, 1)]
    assert select_share(head_scores, 0.4) == [(0, 2), (1, 2)]
    assert select_share(head_scores, 1) == [(0, 2), (1, 2), (0, 1), (1, 0), (1, 1)]
    assert select_share(head_scores, 0.2, (4, 7)) == [(4, 2)]
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(StudyError, match="choose one from 0 to 1"):
            select_share(head_scores, share)


def test_greedy_takes_the_best_of_those_left_each_time(bert: Model, windows: list[Any]) -> None:
    order = rank_greedily(bert, windows, step=1)
    assert sorted(order) == list_heads(bert.architecture)
    bench = AblationRunner.create(bert, windows)
    for k in range(len(order) - 1):
        totals = {head: bench.measure_losses([*order[:k], head]).mean() for head in order[k:]}
        assert totals[order[k]] <= min(totals.values()) + 1e-6


def test_greedy_takes_several_at_a_time(bert: Model, windows: list[Any]) -> None:
    reported: list[tuple[str, int, int]] = []
    order = rank_greedily(bert, windows, step=3, progress=lambda *step: reported.append(step))
    assert sorted(order) == list_heads(bert.architecture)
    changes = score_heads(bert, "ablation", windows)
    assert order[:3] == order_heads(changes)[:3]
    assert [done for _, done, _ in reported] == [3, 6, 8]
    assert rank_greedily(bert, windows) == rank_greedily(bert, windows, step=1)
    with pytest.raises(StudyError, match="step is 0"):
        rank_greedily(bert, windows, step=0)


# Curves


@pytest.mark.parametrize("ablation_type", ["zero", "mean"])
def test_a_curve_is_the_loss_with_those_heads_silent(bert: Model, windows: list[Any], ablation_type: Any) -> None:
    order = order_heads(score_heads(bert, "random", []))
    table = measure_curve(bert, order, windows, (0, 0.3, 0.5, 1), ablation_type=ablation_type)
    assert list(table.columns) == ["share", "removed", "loss", "error"]
    assert table["removed"].tolist() == [0, 2, 4, 7]
    objective, batch = choose_objective(bert), Batch.of(windows)
    means = compute_head_means(bert, [batch])
    losses = [objective.measure_texts(batch)]
    for count in (2, 4, 7):
        with silenced(bert, order[:count], ablation_type=ablation_type, means=means):
            losses.append(objective.measure_texts(batch))
    np.testing.assert_allclose(table["loss"], [text_losses.mean() for text_losses in losses], rtol=1e-5)
    np.testing.assert_allclose(table["error"], [text_losses.std(ddof=1) / 2 for text_losses in losses], rtol=1e-4)


def test_a_curve_of_an_embedding_begins_at_nothing() -> None:
    model = tiny.model("bert")
    windows = language_models.make_windows(model, 7, 5)
    table = measure_curve(model, order_heads(score_heads(model, "norm", windows)), windows)
    assert table["share"].tolist() == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert table["loss"][0] == pytest.approx(0, abs=1e-9)
    assert (table["loss"][2:] > 1e-4).all()


def test_the_band_of_random_orders(bert: Model, windows: list[Any]) -> None:
    table = measure_random_curve(bert, windows, (0, 0.5), draws=3, seed=4)
    losses = [
        measure_curve(bert, order_heads(score_heads(bert, "random", [], seed=seed)), windows, (0, 0.5))[
            "loss"
        ].to_numpy()
        for seed in (4, 5, 6)
    ]
    np.testing.assert_allclose(table["loss"], np.mean(losses, axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["lowest"], np.min(losses, axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["highest"], np.max(losses, axis=0), rtol=1e-6)
    np.testing.assert_allclose(table["error"], np.std(losses, axis=0, ddof=1) / np.sqrt(3), rtol=1e-4, atol=1e-9)
    with pytest.raises(StudyError, match="draws is 0"):
        measure_random_curve(bert, windows, draws=0)


@pytest.mark.parametrize("order", [[], [(0, 0)], [(0, 0)] * 8, [(0, k) for k in range(8)]])
def test_an_order_holds_every_head_once(bert: Model, windows: list[Any], order: Any) -> None:
    with pytest.raises(StudyError, match="each of the model's 8 heads once"):
        measure_curve(bert, order, windows)


def test_standard_errors_by_hand() -> None:
    assert float(compute_standard_error(np.array([1.0, 3.0]))) == pytest.approx(1.0)
    assert np.isnan(compute_standard_error(np.array([1.0])))
    assert take_share([(0, 0), (0, 1)], 0.9) == [(0, 0)]

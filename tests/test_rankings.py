"""A number for each head by every rule, orders, and curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headscope.corpus.windows import Batch
from headscope.errors import ModelError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.ablation import standard_error
from headscope.pruning.curves import curve, first, random_curve, removed
from headscope.pruning.gradient import PROBES, gradients
from headscope.pruning.measuring import Bench
from headscope.pruning.naming import all_heads
from headscope.pruning.objective import objective_of
from headscope.pruning.rankings import MEASURED, RULES, STUDIED, greedy, order_of, scores
from headscope.pruning.silencing import head_means, silenced
from headscope.pruning.texts import batches_of
from headscope.studies.result import Study
from tests import predicting, tiny
from tests.architectures import watched
from tests.families import FAMILIES
from tests.planted import Planted, planted
from tests.test_silencing import columns, width_of


def study_of(model: Model, *rows: list[Planted], **changes: Any) -> Study:
    return planted(*rows, weight_hash=model.weight_hash, stack=model.anatomy.stack, **changes)


@pytest.fixture(scope="module")
def bert() -> Model:
    return predicting.model("bert")


@pytest.fixture(scope="module")
def windows(bert: Model) -> list[Any]:
    return predicting.windows(bert, 9, 6, 4, 8)


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
    study = study_of(bert, *VARIED)
    found, expected = scores(bert, by, [], study=study), study.data[name].values.astype(float)
    np.testing.assert_array_equal(found, np.where(np.isnan(expected), -np.inf, expected))
    assert not np.isnan(found).any()
    assert found.argmin() == (2 if by == "distance" and np.isfinite(found[1, 0]) else 4)


@pytest.mark.parametrize("by", [name for name in STUDIED if name.startswith("snr")])
def test_signal_to_noise_is_that_of_the_study(bert: Model, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    study, asked = study_of(bert, *VARIED), []
    values = np.arange(8.0).reshape(2, 4)
    values[0, 0] = np.nan

    def ratio(self: Study, *name: str) -> Any:
        asked.append(name)
        return self.data["pairs"].copy(data=values)

    monkeypatch.setattr(Study, "signal_to_noise", ratio)
    found = scores(bert, by, [], study=study)
    assert asked == [() if by == "snr" else (by.removeprefix("snr-"),)]
    assert found.ravel().tolist() == [-np.inf, 1, 2, 3, 4, 5, 6, 7]


def test_the_real_signal_to_noise_has_these_names(bert: Model) -> None:
    from headscope.studies.noise import DEFINITIONS

    assert {name.removeprefix("snr-") for name in STUDIED if name.startswith("snr-")} <= set(DEFINITIONS)


@pytest.mark.parametrize("by", STUDIED)
def test_a_rule_that_needs_a_study_says_so(bert: Model, windows: list[Any], by: str) -> None:
    with pytest.raises(StudyError, match=f"the ranking '{by}' needs a study"):
        scores(bert, by, windows)


def test_a_study_of_something_else_is_refused(bert: Model) -> None:
    with pytest.raises(StudyError, match=r"the study is of other \(encoder\)"):
        scores(bert, "repeat", [], study=planted(*VARIED, model="other", stack="encoder"))
    with pytest.raises(StudyError, match="or its weights are others"):
        scores(bert, "repeat", [], study=planted(*VARIED, weight_hash="1" * 64))
    with pytest.raises(StudyError, match=r"\(cross\)"):
        scores(bert, "repeat", [], study=planted(*VARIED, weight_hash=bert.weight_hash, stack="cross"))
    with pytest.raises(StudyError, match="not all heads of"):
        scores(bert, "repeat", [], study=study_of(bert, *VARIED).select(layers=1))


def test_an_unknown_rule_lists_the_known(bert: Model) -> None:
    with pytest.raises(StudyError) as refused:
        scores(bert, "size", [])
    assert "unknown ranking 'size'; there are: snr, " in str(refused.value)
    assert all(name in str(refused.value) for name in RULES)


@pytest.mark.parametrize("by", MEASURED)
def test_a_rule_that_needs_texts_says_so(bert: Model, by: str) -> None:
    with pytest.raises(StudyError, match="there are no texts"):
        scores(bert, by, [])


# From the model


@pytest.mark.parametrize("name", ["bert", "squeezebert", "convbert", "afmoe", "deepseek_v3", "gpt2", "t5"])
def test_norms_by_hand(name: str) -> None:
    model = watched(name)
    held = [model.reads(window) for window in tiny.batch(9, 4, seed=2).windows]
    see = [tiny.Seen() for _ in held]
    for window, seen in zip(held, see, strict=True):
        model.observe(Batch.of([window], FAMILIES[name].pad_id), seen)
    norms, projected = np.zeros((2, model.anatomy.heads)), np.zeros((2, model.anatomy.heads))
    calls = model._plan.of([model.anatomy.stack])
    width = width_of(model, Batch.of(held[:1]))
    for layer, call in enumerate(calls):
        written = torch.cat([seen.outputs[layer][0] for seen in see]).double()
        for head in range(model.anatomy.heads):
            norms[layer, head] = np.sqrt(np.mean([float(row @ row) for row in written[:, head]]))
            part = columns(call.projection.module.weight.detach().double(), call.projection.module, head, width)
            if part.dim() == 2:
                made = written[:, head] @ (part if name == "gpt2" else part.T)
                projected[layer, head] = np.sqrt(np.mean([float(row @ row) for row in made]))
    np.testing.assert_allclose(scores(model, "norm", held), norms, rtol=1e-4)
    if name == "squeezebert":
        with pytest.raises(ModelError, match="layer 0 is no plain linear map"):
            scores(model, "projected-norm", held)
    else:
        np.testing.assert_allclose(scores(model, "projected-norm", held), projected, rtol=1e-4)


def losses_at(model: Model, window: Any, layer: int, head: int, gate: float) -> float:
    """The loss with a head's columns of the projection's weight scaled: another way to a gate."""
    module = model._plan.of([model.anatomy.stack])[layer].projection.module
    before = module.weight.detach().clone()
    with torch.no_grad():
        columns(module.weight, module, head, 8).mul_(gate)
    try:
        return float(objective_of(model).per_text(Batch.of([window], model.tokens.pad_id))[0])
    finally:
        with torch.no_grad():
            module.weight.copy_(before)


@pytest.mark.parametrize(("name", "stack"), [("bert", "encoder"), ("gpt2", "decoder"), ("t5", "encoder")])
def test_the_gradient_is_the_slope_of_the_loss(name: str, stack: str) -> None:
    model = predicting.model(name).on(stack)
    held = predicting.windows(model, 9, 5)
    found = scores(model, "gradient", held)
    for layer, head in ((0, 1), (1, 2)):
        step = 1e-3  # a ReLU turns within larger ones
        slopes = [
            (losses_at(model, window, layer, head, 1 + step) - losses_at(model, window, layer, head, 1 - step))
            / 2
            / step
            for window in held
        ]
        assert found[layer, head] == pytest.approx(np.mean(np.abs(slopes)), rel=1e-2, abs=5e-4)


def test_the_gradient_of_an_embedding_is_how_fast_it_moves() -> None:
    """Half its square is the distance to second order; many probes bring the estimate close to that."""
    model = load(tiny.network("bert"), tiny.tokenizer())
    (window,) = predicting.windows(model, 8)
    step = 0.05
    expected = np.zeros((2, 4))
    objective = objective_of(model)
    objective.learn(Batch.of([window]))
    for layer, head in all_heads(model.anatomy):
        module = model._plan.calls[layer].projection.module
        before = module.weight.detach().clone()
        with torch.no_grad():
            columns(module.weight, module, head, 8).mul_(1 + step)
        expected[layer, head] = np.sqrt(2 * objective.per_text(Batch.of([window]))[0]) / step
        with torch.no_grad():
            module.weight.copy_(before)
    import headscope.pruning.gradient as gradient

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "PROBES", 600)
        found = gradients(model, batches_of(model, [window]))
    np.testing.assert_allclose(found, expected, rtol=0.2)
    few = gradients(model, batches_of(model, [window]))
    assert PROBES == 8
    assert np.array_equal(few, gradients(model, batches_of(model, [window])))
    assert np.corrcoef(few.ravel(), expected.ravel())[0, 1] > 0.5


def test_gradients_leave_no_trace(bert: Model, windows: list[Any]) -> None:
    scores(bert, "gradient", windows)
    assert all(parameter.grad is None for parameter in bert.network.parameters())


def test_ablation_is_the_mean_change(bert: Model, windows: list[Any]) -> None:
    found, objective, made = scores(bert, "ablation", windows), objective_of(bert), Batch.of(windows)
    base = objective.per_text(made)
    for layer, head in all_heads(bert.anatomy):
        with silenced(bert, [(layer, head)]):
            assert found[layer, head] == pytest.approx((objective.per_text(made) - base).mean(), abs=1e-6)


def test_chance_depends_on_its_seed(bert: Model) -> None:
    one, two = scores(bert, "random", []), scores(bert, "random", [], seed=1)
    assert np.array_equal(one, scores(bert, "random", []))
    assert not np.array_equal(one, two)
    assert sorted(order_of(one)) == all_heads(bert.anatomy)


@pytest.mark.parametrize("by", ["norm", "gradient", "ablation", "projected-norm"])
@pytest.mark.parametrize("name", ["albert", "llama", "jamba", "bart", "vit"])
def test_every_rule_on_other_architectures(name: str, by: str) -> None:
    if name == "vit":
        from tests.architectures import batch

        model = watched(name)
        held = batch(model, FAMILIES[name], "right").windows
    else:
        model = predicting.model(name)
        held = predicting.windows(model, 6, 4)
    found = scores(model, by, held)
    assert found.shape == (model.anatomy.layers, model.anatomy.heads)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) == found.size
    np.testing.assert_allclose(scores(model, by, held, batch_size=1), found, rtol=2e-3, atol=1e-5)


# Orders


def test_the_least_goes_first_and_one_is_left() -> None:
    found = np.array([[3.0, 1.0, np.nan], [1.0, 2.0, -np.inf]])
    assert order_of(found) == [(0, 2), (1, 2), (0, 1), (1, 0), (1, 1), (0, 0)]
    assert order_of(found, (4, 7))[:3] == [(4, 2), (7, 2), (4, 1)]
    assert removed(found, 0) == []
    assert removed(found, 0.5) == [(0, 2), (1, 2), (0, 1)]
    assert removed(found, 0.4) == [(0, 2), (1, 2)]
    assert removed(found, 1) == [(0, 2), (1, 2), (0, 1), (1, 0), (1, 1)]
    assert removed(found, 0.2, (4, 7)) == [(4, 2)]
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(StudyError, match="choose one from 0 to 1"):
            removed(found, share)


def test_greedy_takes_the_best_of_those_left_each_time(bert: Model, windows: list[Any]) -> None:
    order = greedy(bert, windows, step=1)
    assert sorted(order) == all_heads(bert.anatomy)
    bench = Bench.of(bert, windows)
    for k in range(len(order) - 1):
        totals = {head: bench.losses([*order[:k], head]).mean() for head in order[k:]}
        assert totals[order[k]] <= min(totals.values()) + 1e-6


def test_greedy_takes_several_at_a_time(bert: Model, windows: list[Any]) -> None:
    told: list[tuple[str, int, int]] = []
    order = greedy(bert, windows, step=3, progress=lambda *words: told.append(words))
    assert sorted(order) == all_heads(bert.anatomy)
    changes = scores(bert, "ablation", windows)
    assert order[:3] == order_of(changes)[:3]
    assert [done for _, done, _ in told] == [3, 6, 8]
    assert greedy(bert, windows) == greedy(bert, windows, step=1)
    with pytest.raises(StudyError, match="step is 0"):
        greedy(bert, windows, step=0)


# Curves


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_a_curve_is_the_loss_with_those_heads_silent(bert: Model, windows: list[Any], by: Any) -> None:
    order = order_of(scores(bert, "random", []))
    found = curve(bert, order, windows, (0, 0.3, 0.5, 1), by=by)
    assert list(found.columns) == ["share", "removed", "loss", "error"]
    assert found["removed"].tolist() == [0, 2, 4, 7]
    objective, made = objective_of(bert), Batch.of(windows)
    means = head_means(bert, [made])
    losses = [objective.per_text(made)]
    for count in (2, 4, 7):
        with silenced(bert, order[:count], by=by, means=means):
            losses.append(objective.per_text(made))
    np.testing.assert_allclose(found["loss"], [each.mean() for each in losses], rtol=1e-5)
    np.testing.assert_allclose(found["error"], [each.std(ddof=1) / 2 for each in losses], rtol=1e-4)


def test_a_curve_of_an_embedding_begins_at_nothing() -> None:
    model = tiny.model("bert")
    held = predicting.windows(model, 7, 5)
    found = curve(model, order_of(scores(model, "norm", held)), held)
    assert found["share"].tolist() == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert found["loss"][0] == pytest.approx(0, abs=1e-9)
    assert (found["loss"][2:] > 1e-4).all()


def test_the_band_of_random_orders(bert: Model, windows: list[Any]) -> None:
    found = random_curve(bert, windows, (0, 0.5), draws=3, seed=4)
    alone = [
        curve(bert, order_of(scores(bert, "random", [], seed=seed)), windows, (0, 0.5))["loss"].to_numpy()
        for seed in (4, 5, 6)
    ]
    np.testing.assert_allclose(found["loss"], np.mean(alone, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found["lowest"], np.min(alone, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found["highest"], np.max(alone, axis=0), rtol=1e-6)
    np.testing.assert_allclose(found["error"], np.std(alone, axis=0, ddof=1) / np.sqrt(3), rtol=1e-4, atol=1e-9)
    with pytest.raises(StudyError, match="draws is 0"):
        random_curve(bert, windows, draws=0)


@pytest.mark.parametrize("order", [[], [(0, 0)], [(0, 0)] * 8, [(0, k) for k in range(8)]])
def test_an_order_holds_every_head_once(bert: Model, windows: list[Any], order: Any) -> None:
    with pytest.raises(StudyError, match="each of the model's 8 heads once"):
        curve(bert, order, windows)


def test_standard_errors_by_hand() -> None:
    assert float(standard_error(np.array([1.0, 3.0]))) == pytest.approx(1.0)
    assert np.isnan(standard_error(np.array([1.0])))
    assert first([(0, 0), (0, 1)], 0.9) == [(0, 0)]

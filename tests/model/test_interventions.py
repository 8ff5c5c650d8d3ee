"""Heads are silenced exactly on every architecture, and the model is unchanged afterwards."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.modeling_utils import AttentionInterface

import headscope
from headscope.corpus.windows import Batch
from headscope.errors import ModelError, StudyError
from headscope.model.interventions import compute_head_means, find_sites, gated, silenced
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.architectures import batch, record_projections, result, watched
from tests.helpers.families import FAMILIES
from tests.helpers.zeroed_weights import get_width, zero_weights

SHARED = {"albert"}
"""one projection serves all layers"""
families = pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.verified])


def choose_heads(model: Model) -> list[tuple[int, int]]:
    """Return one head in the first layer and another in the last, if there are several layers."""
    numbers = model.architecture.numbers
    return [(numbers[0], 1)] if len(numbers) == 1 else [(numbers[0], 1), (numbers[-1], 0)]


@cache
def list_stacks(name: str) -> list[Model]:
    model = watched(name)
    return [model.on(stack) for stack in model.stacks]


def capture_inputs(model: Model, inputs: Batch) -> list[torch.Tensor]:
    """Return what enters each projection of the observed stack, layer by layer, channels last."""
    with record_projections(model) as calls:
        result(model, inputs)
    tokens = inputs.ids.shape[1]
    entered = [call.given[0] for call in calls]
    return [x.transpose(1, 2) if x.dim() == 3 and x.shape[2] == tokens != x.shape[1] else x for x in entered]


def get_state(network: PreTrainedModel) -> Any:
    """Return everything that a run could change in a network."""
    return (
        [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training, sorted(vars(m))) for m in network.modules()],
        copy.deepcopy(network.config.to_dict()),
        AttentionInterface.get_interface,
        [parameter._version for parameter in network.parameters()],
    )


# Every architecture


@families
def test_silent_heads_are_those_whose_columns_of_the_weight_are_zero(name: str) -> None:
    for model in list_stacks(name):
        inputs = batch(model, FAMILIES[name], "right")
        width, untouched, before = get_width(model, inputs), result(model, inputs), get_state(model.network)
        heads = [(n, 1) for n in model.architecture.numbers] if name in SHARED else choose_heads(model)
        with silenced(model, heads):
            silent = result(model, inputs)
        assert get_state(model.network) == before
        assert torch.equal(result(model, inputs), untouched)
        with zero_weights(model, heads[:1] if name in SHARED else heads, width):
            expected = result(model, inputs)
        largest = float(expected.abs().max())
        torch.testing.assert_close(silent, expected, rtol=0, atol=2e-5 * largest)
        assert (silent - untouched).abs().max() > 1e-3 * largest


@families
def test_nothing_else_of_the_layer_changes(name: str) -> None:
    for model in list_stacks(name):
        inputs = batch(model, FAMILIES[name], "right")
        width, head, last = get_width(model, inputs), 1, model.architecture.numbers[-1]
        before = capture_inputs(model, inputs)
        with silenced(model, [(last, head)]):
            after = capture_inputs(model, inputs)
        assert all(torch.equal(a, b) for a, b in zip(before[:-1], after[:-1], strict=True))
        cut = slice(head * width, (head + 1) * width)
        assert before[-1][..., cut].abs().max() > 1e-4
        assert not after[-1][..., cut].any()
        expected = before[-1].clone()
        expected[..., cut] = 0
        assert torch.equal(after[-1], expected)


@families
def test_gates_of_zero_and_one_silence_and_leave(name: str) -> None:
    for model in list_stacks(name):
        inputs, heads = batch(model, FAMILIES[name], "right"), choose_heads(model)
        gates = torch.ones(model.architecture.layers, model.architecture.heads)
        with gated(model, gates):
            opened = result(model, inputs)
        torch.testing.assert_close(opened, result(model, inputs), rtol=0, atol=1e-6)
        for layer, head in heads:
            gates[model.architecture.numbers.index(layer), head] = 0
        with silenced(model, heads):
            silent = result(model, inputs)
        with gated(model, gates):
            torch.testing.assert_close(result(model, inputs), silent, rtol=0, atol=1e-5)


def test_other_stacks_stay_untouched() -> None:
    model = watched("bart")
    for stack, others in (("encoder", ()), ("decoder", ("encoder",)), ("cross", ("encoder",))):
        inputs = batch(model.on("cross"), FAMILIES["bart"], "right")
        for other in others:
            before = capture_inputs(model.on(other), inputs)
            with silenced(model.on(stack), [(0, 1)]):
                after = capture_inputs(model.on(other), inputs)
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_projection_that_is_no_module_is_refused() -> None:
    model = watched("xlnet")
    with pytest.raises(ModelError, match=r"cannot be silenced.*layer 1 is no module.*'xlnet'"), silenced(model, "L1H0"):
        pass


# One projection for all layers


def find_zeroed_layers(model: Model, inputs: Batch) -> list[bool]:
    return [not entered[..., 8:16].any() for entered in capture_inputs(model, inputs)]


def test_layers_that_share_a_projection_are_told_apart() -> None:
    model = watched("albert")
    inputs = batch(model, FAMILIES["albert"], "right")
    for layer in range(3):
        with silenced(model, [(layer, 1)]):
            assert find_zeroed_layers(model, inputs) == [layer == k for k in range(3)]
            model.observe(inputs, tiny.LayerRecorder())
            assert find_zeroed_layers(model, inputs) == [layer == k for k in range(3)]


def test_calls_are_counted_anew_after_a_run_that_broke() -> None:
    model = watched("albert")
    inputs = batch(model, FAMILIES["albert"], "right")
    _ = find_sites(model)

    def raise_at_second_layer(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        if layer == 1:
            raise KeyError

    with silenced(model, [(1, 1)]):
        with pytest.raises(KeyError):
            model.observe(inputs, raise_at_second_layer)
        assert find_zeroed_layers(model, inputs) == [False, True, False]


# Ways to call the network


def make_generator(kind: str, auto: Any) -> Model:
    network = auto.from_config(tiny.network(kind).config, attn_implementation="sdpa")
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return load(network.eval(), tiny.tokenizer())


@pytest.mark.parametrize(
    ("kind", "auto", "stack"),
    [
        ("llama", AutoModelForCausalLM, "decoder"),
        ("gpt2", AutoModelForCausalLM, "decoder"),
        ("t5", AutoModelForSeq2SeqLM, "encoder"),
        ("bart", AutoModelForSeq2SeqLM, "cross"),
    ],
)
def test_generate_runs_with_silent_heads_and_a_cache(kind: str, auto: Any, stack: str) -> None:
    model = make_generator(kind, auto).on(stack)
    ids = torch.tensor([[2, 10, 20, 30]])
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def generate_logits() -> torch.Tensor:
        return torch.stack(model.network.generate(ids, attention_mask=torch.ones_like(ids), **options).logits)

    plain, heads = generate_logits(), choose_heads(model)
    with silenced(model, heads):
        silent = generate_logits()
    with zero_weights(model, heads, 8):
        expected = generate_logits()
    torch.testing.assert_close(silent, expected, rtol=0, atol=1e-4)
    assert silent.shape != plain.shape or (silent - plain).abs().max() > 1e-2


def test_contexts_nest() -> None:
    model = watched("bert")
    inputs = batch(model, FAMILIES["bert"], "right")
    with silenced(model, "L0H1,L1H2"):
        both = result(model, inputs)
    with silenced(model, "L0H1") as outer, silenced(outer, "L1H2"):
        assert torch.equal(result(model, inputs), both)
    with silenced(model, "L0H1"), gated(model, torch.ones(2, 4)), silenced(model, "L1H2"):
        assert torch.equal(result(model, inputs), both)


def test_all_is_as_before_after_an_exception() -> None:
    model = watched("t5")
    _ = find_sites(model)
    model.network.train()
    try:
        before = get_state(model.network)
        with pytest.raises(KeyError), silenced(model, "L0H1"):
            raise KeyError
        assert get_state(model.network) == before
        with pytest.raises(StudyError), silenced(model, "L0H1", ablation_type="mean"):
            pass
        assert get_state(model.network) == before
    finally:
        model.network.eval()


def test_a_head_that_writes_no_numbers_is_silent_too() -> None:
    model = load(copy.deepcopy(tiny.network("bert")), tiny.tokenizer())
    inputs = batch(model, FAMILIES["bert"], "right")
    _ = find_sites(model)
    value_map = model.network.encoder.layer[1].attention.self.value
    with torch.no_grad():
        value_map.bias[8:16] = torch.inf
    assert not torch.isfinite(result(model, inputs)).all()
    with silenced(model, "L1H1"):
        assert torch.isfinite(result(model, inputs)).all()


def test_half_precision_stays_half() -> None:
    model = load(copy.deepcopy(tiny.network("llama")).bfloat16(), tiny.tokenizer())
    inputs = batch(model, FAMILIES["llama"], "right")
    with gated(model, torch.full((2, 4), 0.5)):
        assert result(model, inputs).dtype == torch.bfloat16
    means = compute_head_means(model, [inputs])
    with silenced(model, "L0H0", ablation_type="mean", means=means):
        assert result(model, inputs).dtype == torch.bfloat16


# Means


@pytest.mark.parametrize("name", ["bert", "squeezebert", "convbert", "afmoe", "llama", "albert", "vit"])
def test_a_silent_head_writes_its_mean(name: str) -> None:
    model = watched(name)
    inputs = batch(model, FAMILIES[name], "right")
    observer = tiny.LayerRecorder()
    model.observe(inputs, observer)
    real = torch.from_numpy(inputs.real)
    expected = np.stack([torch.stack([row[mask].sum(0) for row, mask in zip(output, real, strict=True)]).sum(0).numpy()
                         for output in observer.outputs]) / inputs.real.sum()  # fmt: skip
    means = compute_head_means(
        model, [Batch.of([window], inputs.pad_id) for window in inputs.windows] if name != "vit" else [inputs]
    )
    if name != "convbert":  # it sees its padding
        np.testing.assert_allclose(means, expected, atol=1e-5)
    width, last = means.shape[-1], model.architecture.numbers[-1]
    with silenced(model, [(last, 1)], ablation_type="mean", means=means):
        entered = capture_inputs(model, inputs)[-1][..., width : 2 * width]
    np.testing.assert_allclose(
        entered.reshape(-1, width), np.tile(means[-1, 1], (entered.numel() // width, 1)), rtol=1e-6
    )
    assert means.dtype == np.float64


def test_means_over_padding_count_nothing() -> None:
    model = watched("bert")
    windows = tiny.batch(9, 4, 2, seed=5).windows
    alone = compute_head_means(model, [Batch.of([window]) for window in windows])
    np.testing.assert_allclose(compute_head_means(model, [Batch.of(windows)]), alone, atol=1e-6)


# Gates are differentiable


@pytest.mark.parametrize("name", ["bert", "squeezebert", "albert", "llama", "bitnet"])
def test_the_gradient_of_a_gate_is_that_of_differences(name: str) -> None:
    model = load(copy.deepcopy(tiny.network(name)).double(), tiny.tokenizer())
    batch_of_one = tiny.batch(6, seed=2)
    inputs = {"input_ids": torch.from_numpy(batch_of_one.ids), "attention_mask": torch.ones(1, 6, dtype=torch.int64)}
    weight = torch.linspace(-1, 1, 32, dtype=torch.float64)

    def compute_value(gates: torch.Tensor) -> torch.Tensor:
        with gated(model, gates):
            return (model.network(**inputs).last_hidden_state * weight).sum()

    shape = (model.architecture.layers, model.architecture.heads)
    gates = torch.full(shape, 0.9, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(compute_value(gates), gates)
    for layer, head in ((0, 1), (shape[0] - 1, 3)):
        step = torch.zeros(shape, dtype=torch.float64)
        step[layer, head] = 2e-3
        with torch.no_grad():
            slope = (compute_value(gates + step) - compute_value(gates - step)) / 4e-3
        assert gradient[layer, head].item() == pytest.approx(slope.item(), rel=1e-2)  # some norms are in float32
        assert abs(slope) > 1e-4


# Names of heads, and errors


def test_a_whole_layer_is_silenced() -> None:
    model = watched("bert")
    inputs = batch(model, FAMILIES["bert"], "right")
    with silenced(model, "L1"):
        silent = result(model, inputs)
    with silenced(model, "L1H0-3"):
        assert torch.equal(result(model, inputs), silent)
    assert not torch.equal(result(model, inputs), silent)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "heads '': not a head"),
        ("3,4", "heads '3': not a head"),
        ("L1H2,L1H1-3", "L1H2 is named twice"),
        ("L2H0", "heads 'L2H0': layer 2: the model's decoder has attention in layers 1, 3; write heads like L3H7"),
        ("L1H4", "heads 'L1H4': head 4: a layer has heads 0 to 3"),
        ("L1,L3", "these are all 8 heads of the model's decoder: leave at least one"),
    ],
)
def test_what_is_no_head_is_refused(text: str, message: str) -> None:
    with pytest.raises(StudyError) as refused, silenced(watched("jamba"), text):
        pass
    assert message in str(refused.value)


def test_pairs_are_checked_as_names_are() -> None:
    model = watched("bert")
    for heads in ([(0, -1)], [(0, 4)], [(-1, 0)], [(0, 1), (0, 1)], [0, 1], [("a", 1)], [(0, 1, 2)]):
        with pytest.raises(StudyError), silenced(model, heads):  # type: ignore[arg-type]
            pass
    with silenced(model, [(np.int64(0), np.int64(1))]):  # type: ignore[list-item]
        pass


def test_means_and_gates_of_another_shape_are_refused() -> None:
    model = watched("bert")
    for means, message in (
        (None, "needs the means"),
        (np.zeros((2, 4, 7)), "means are (2, 4, 7): BertModel needs (2, 4, 8)"),
        (np.full((2, 4, 8), np.nan), "not finite"),
    ):
        with pytest.raises(StudyError) as refused, silenced(model, "L0H0", ablation_type="mean", means=means):
            pass
        assert message in str(refused.value)
    with (
        pytest.raises(StudyError, match="ablation type 'max': choose one of zero, mean"),
        silenced(model, "L0H0", ablation_type="max"),
    ):  # type: ignore[arg-type]
        pass
    with pytest.raises(StudyError, match=r"gates are \(4, 2\)"), gated(model, torch.ones(4, 2)):
        pass
    with pytest.raises(StudyError, match="at least one text"):
        compute_head_means(model, [])


def test_the_bundled_model_by_its_public_name(minilm: Model) -> None:
    text = ["Two ravens met. The ravens left."]
    plain = headscope.study(minilm, text)
    with headscope.silenced(minilm, "L2H0-11"):
        silent = headscope.study(minilm, text)
    assert np.array_equal(plain.data["attention"][:3], silent.data["attention"][:3])
    assert not np.allclose(plain.data["attention"][3], silent.data["attention"][3], atol=1e-3)

"""Heads are silenced on every architecture, exactly, and the model is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.modeling_utils import AttentionInterface
from transformers.pytorch_utils import Conv1D

import headscope
from headscope.corpus.windows import Batch
from headscope.errors import ModelError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.pruning.silencing import gated, head_means, parse_heads, silenced
from headscope.pruning.sites import sites
from tests import tiny
from tests.architectures import batch, result, returning, watched
from tests.families import FAMILIES

SHARED = {"albert"}
"""one projection serves all layers"""
families = pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.verified])


def some_heads(model: Model) -> list[tuple[int, int]]:
    """One in the first layer and another in the last; where layers share a projection, the same in all."""
    numbers = model.anatomy.numbers
    return [(numbers[0], 1)] if len(numbers) == 1 else [(numbers[0], 1), (numbers[-1], 0)]


@cache
def stacks(name: str) -> list[Model]:
    model = watched(name)
    return [model.on(stack) for stack in model.stacks]


def width_of(model: Model, made: Batch) -> int:
    see = tiny.Seen()
    model.observe(made, see)
    return see.outputs[0].shape[-1]


def columns(weight: torch.Tensor, module: torch.nn.Module, head: int, width: int) -> torch.Tensor:
    """A head's part of a projection's weight."""
    cut = slice(head * width, (head + 1) * width)
    return weight[cut] if isinstance(module, Conv1D) else weight[:, cut]


@contextmanager
def weights_zeroed(model: Model, heads: list[tuple[int, int]], width: int) -> Iterator[None]:
    """The other way to silence heads: their columns of the projection's weight are 0."""
    calls = model._plan.of([model.anatomy.stack])
    changed = []
    for layer, head in heads:
        module = calls[model.anatomy.numbers.index(layer)].projection.module
        changed.append((module, module.weight.detach().clone()))
        with torch.no_grad():
            columns(module.weight, module, head, width).zero_()
    try:
        yield
    finally:
        for module, before in reversed(changed):
            with torch.no_grad():
                module.weight.copy_(before)


def entered(model: Model, made: Batch) -> list[torch.Tensor]:
    """What enters each projection of the watched stack, layer by layer, channels last."""
    with returning(model) as held:
        result(model, made)
    width = made.ids.shape[1]
    given = [each.given[0] for each in held]
    return [one.transpose(1, 2) if one.dim() == 3 and one.shape[2] == width != one.shape[1] else one for one in given]


def state(network: PreTrainedModel) -> Any:
    """All that a run could leave behind."""
    return (
        [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training, sorted(vars(m))) for m in network.modules()],
        copy.deepcopy(network.config.to_dict()),
        AttentionInterface.get_interface,
        [parameter._version for parameter in network.parameters()],
    )


# Every architecture


@families
def test_silent_heads_are_those_whose_columns_of_the_weight_are_zero(name: str) -> None:
    for model in stacks(name):
        made = batch(model, FAMILIES[name], "right")
        width, untouched, before = width_of(model, made), result(model, made), state(model.network)
        heads = [(n, 1) for n in model.anatomy.numbers] if name in SHARED else some_heads(model)
        with silenced(model, heads):
            silent = result(model, made)
        assert state(model.network) == before
        assert torch.equal(result(model, made), untouched)
        with weights_zeroed(model, heads[:1] if name in SHARED else heads, width):
            expected = result(model, made)
        largest = float(expected.abs().max())
        torch.testing.assert_close(silent, expected, rtol=0, atol=2e-5 * largest)
        assert (silent - untouched).abs().max() > 1e-3 * largest


@families
def test_nothing_else_of_the_layer_changes(name: str) -> None:
    for model in stacks(name):
        made = batch(model, FAMILIES[name], "right")
        width, head, last = width_of(model, made), 1, model.anatomy.numbers[-1]
        before = entered(model, made)
        with silenced(model, [(last, head)]):
            after = entered(model, made)
        assert all(torch.equal(a, b) for a, b in zip(before[:-1], after[:-1], strict=True))
        cut = slice(head * width, (head + 1) * width)
        assert before[-1][..., cut].abs().max() > 1e-4
        assert not after[-1][..., cut].any()
        expected = before[-1].clone()
        expected[..., cut] = 0
        assert torch.equal(after[-1], expected)


@families
def test_gates_of_zero_and_one_silence_and_leave(name: str) -> None:
    for model in stacks(name):
        made, heads = batch(model, FAMILIES[name], "right"), some_heads(model)
        gates = torch.ones(model.anatomy.layers, model.anatomy.heads)
        with gated(model, gates):
            opened = result(model, made)
        torch.testing.assert_close(opened, result(model, made), rtol=0, atol=1e-6)
        for layer, head in heads:
            gates[model.anatomy.numbers.index(layer), head] = 0
        with silenced(model, heads):
            silent = result(model, made)
        with gated(model, gates):
            torch.testing.assert_close(result(model, made), silent, rtol=0, atol=1e-5)


def test_other_stacks_stay_untouched() -> None:
    model = watched("bart")
    for stack, others in (("encoder", ()), ("decoder", ("encoder",)), ("cross", ("encoder",))):
        made = batch(model.on("cross"), FAMILIES["bart"], "right")
        for other in others:
            before = entered(model.on(other), made)
            with silenced(model.on(stack), [(0, 1)]):
                after = entered(model.on(other), made)
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_projection_that_is_no_module_is_refused() -> None:
    model = watched("xlnet")
    with pytest.raises(ModelError, match=r"cannot be silenced.*layer 1 is no module.*'xlnet'"), silenced(model, "L1H0"):
        pass


# One projection for all layers


def zeroed_layers(model: Model, made: Batch) -> list[bool]:
    return [not given[..., 8:16].any() for given in entered(model, made)]


def test_layers_that_share_a_projection_are_told_apart() -> None:
    model = watched("albert")
    made = batch(model, FAMILIES["albert"], "right")
    for layer in range(3):
        with silenced(model, [(layer, 1)]):
            assert zeroed_layers(model, made) == [layer == k for k in range(3)]
            model.observe(made, tiny.Seen())
            assert zeroed_layers(model, made) == [layer == k for k in range(3)]


def test_calls_are_counted_anew_after_a_run_that_broke() -> None:
    model = watched("albert")
    made = batch(model, FAMILIES["albert"], "right")
    _ = sites(model)

    def broken(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        if layer == 1:
            raise KeyError

    with silenced(model, [(1, 1)]):
        with pytest.raises(KeyError):
            model.observe(made, broken)
        assert zeroed_layers(model, made) == [False, True, False]


# Ways to call the network


def generating(kind: str, auto: Any) -> Model:
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
    model = generating(kind, auto).on(stack)
    ids = torch.tensor([[2, 10, 20, 30]])
    options = {"max_new_tokens": 6, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}

    def written() -> torch.Tensor:
        return torch.stack(model.network.generate(ids, attention_mask=torch.ones_like(ids), **options).logits)

    plain, heads = written(), some_heads(model)
    with silenced(model, heads):
        silent = written()
    with weights_zeroed(model, heads, 8):
        expected = written()
    torch.testing.assert_close(silent, expected, rtol=0, atol=1e-4)
    assert silent.shape != plain.shape or (silent - plain).abs().max() > 1e-2


def test_contexts_nest() -> None:
    model = watched("bert")
    made = batch(model, FAMILIES["bert"], "right")
    with silenced(model, "L0H1,L1H2"):
        both = result(model, made)
    with silenced(model, "L0H1") as one, silenced(one, "L1H2"):
        assert torch.equal(result(model, made), both)
    with silenced(model, "L0H1"), gated(model, torch.ones(2, 4)), silenced(model, "L1H2"):
        assert torch.equal(result(model, made), both)


def test_all_is_as_before_after_an_exception() -> None:
    model = watched("t5")
    _ = sites(model)
    model.network.train()
    try:
        before = state(model.network)
        with pytest.raises(KeyError), silenced(model, "L0H1"):
            raise KeyError
        assert state(model.network) == before
        with pytest.raises(StudyError), silenced(model, "L0H1", by="mean"):
            pass
        assert state(model.network) == before
    finally:
        model.network.eval()


def test_a_head_that_writes_no_numbers_is_silent_too() -> None:
    model = load(copy.deepcopy(tiny.network("bert")), tiny.tokenizer())
    made = batch(model, FAMILIES["bert"], "right")
    _ = sites(model)
    value = model.network.encoder.layer[1].attention.self.value
    with torch.no_grad():
        value.bias[8:16] = torch.inf
    assert not torch.isfinite(result(model, made)).all()
    with silenced(model, "L1H1"):
        assert torch.isfinite(result(model, made)).all()


def test_half_precision_stays_half() -> None:
    model = load(copy.deepcopy(tiny.network("llama")).bfloat16(), tiny.tokenizer())
    made = batch(model, FAMILIES["llama"], "right")
    with gated(model, torch.full((2, 4), 0.5)):
        assert result(model, made).dtype == torch.bfloat16
    means = head_means(model, [made])
    with silenced(model, "L0H0", by="mean", means=means):
        assert result(model, made).dtype == torch.bfloat16


# Means


@pytest.mark.parametrize("name", ["bert", "squeezebert", "convbert", "afmoe", "llama", "albert", "vit"])
def test_a_silent_head_writes_its_mean(name: str) -> None:
    model = watched(name)
    made = batch(model, FAMILIES[name], "right")
    see = tiny.Seen()
    model.observe(made, see)
    real = torch.from_numpy(made.real)
    expected = np.stack([torch.stack([row[mask].sum(0) for row, mask in zip(output, real, strict=True)]).sum(0).numpy()
                         for output in see.outputs]) / made.real.sum()  # fmt: skip
    means = head_means(model, [Batch.of([window], made.pad_id) for window in made.windows] if name != "vit" else [made])
    if name != "convbert":  # it sees its padding
        np.testing.assert_allclose(means, expected, atol=1e-5)
    width, last = means.shape[-1], model.anatomy.numbers[-1]
    with silenced(model, [(last, 1)], by="mean", means=means):
        given = entered(model, made)[-1][..., width : 2 * width]
    np.testing.assert_allclose(given.reshape(-1, width), np.tile(means[-1, 1], (given.numel() // width, 1)), rtol=1e-6)
    assert means.dtype == np.float64


def test_means_over_padding_count_nothing() -> None:
    model = watched("bert")
    windows = tiny.batch(9, 4, 2, seed=5).windows
    alone = head_means(model, [Batch.of([window]) for window in windows])
    np.testing.assert_allclose(head_means(model, [Batch.of(windows)]), alone, atol=1e-6)


# Gates are differentiable


@pytest.mark.parametrize("name", ["bert", "squeezebert", "albert", "llama", "bitnet"])
def test_the_gradient_of_a_gate_is_that_of_differences(name: str) -> None:
    model = load(copy.deepcopy(tiny.network(name)).double(), tiny.tokenizer())
    made = tiny.batch(6, seed=2)
    inputs = {"input_ids": torch.from_numpy(made.ids), "attention_mask": torch.ones(1, 6, dtype=torch.int64)}
    weight = torch.linspace(-1, 1, 32, dtype=torch.float64)

    def value(gates: torch.Tensor) -> torch.Tensor:
        with gated(model, gates):
            return (model.network(**inputs).last_hidden_state * weight).sum()

    shape = (model.anatomy.layers, model.anatomy.heads)
    gates = torch.full(shape, 0.9, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(value(gates), gates)
    for layer, head in ((0, 1), (shape[0] - 1, 3)):
        step = torch.zeros(shape, dtype=torch.float64)
        step[layer, head] = 2e-3
        with torch.no_grad():
            slope = (value(gates + step) - value(gates - step)) / 4e-3
        assert found[layer, head].item() == pytest.approx(slope.item(), rel=1e-2)  # some norms are in float32
        assert abs(slope) > 1e-4


# Names, and what is refused


def test_heads_are_read_as_they_are_written() -> None:
    assert parse_heads("L0H1,L3H4-7") == [(0, 1), (3, 4), (3, 5), (3, 6), (3, 7)]
    assert parse_heads(" l11h8 , L2H0-H1 ") == [(11, 8), (2, 0), (2, 1)]
    jamba = watched("jamba").anatomy
    assert parse_heads("L3H0-2", jamba) == [(3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is no head: write them like L0H1,L3H4-7"),
        ("L0", "'L0' is no head"),
        ("3,4", "'3' is no head"),
        ("L1H1,", "'' is no head"),
        ("L0H٣", "is no head"),
        ("L1H3-2", "the last head comes before the first"),
        ("L1H2,L1H1-3", "L1H2 is named twice"),
        ("L2H0", "no layer 2 with attention in the model's decoder; there are 1, 3"),
        ("L1H4", "L1H4: there is no head 4; the heads of a layer are 0 to 3"),
        ("L1H0-999999", "L1H999999: there is no head 999999"),
        ("L1H0-3,L3H0-3", "these are all 8 heads of the model's decoder: leave at least one"),
    ],
)
def test_what_is_no_head_is_refused(text: str, said: str) -> None:
    model = watched("jamba")
    with pytest.raises(StudyError) as refused:
        parse_heads(text, model.anatomy)
    assert said in str(refused.value)
    with pytest.raises(StudyError), silenced(model, text):
        pass


def test_pairs_are_checked_as_names_are() -> None:
    model = watched("bert")
    for heads in ([(0, -1)], [(0, 4)], [(-1, 0)], [(0, 1), (0, 1)], [0, 1], [("a", 1)], [(0, 1, 2)]):
        with pytest.raises(StudyError), silenced(model, heads):  # type: ignore[arg-type]
            pass
    with silenced(model, [(np.int64(0), np.int64(1))]):  # type: ignore[list-item]
        pass


def test_means_and_gates_of_another_shape_are_refused() -> None:
    model = watched("bert")
    for means, said in (
        (None, "needs the means"),
        (np.zeros((2, 4, 7)), "means are (2, 4, 7): BertModel needs (2, 4, 8)"),
        (np.full((2, 4, 8), np.nan), "not finite"),
    ):
        with pytest.raises(StudyError) as refused, silenced(model, "L0H0", by="mean", means=means):
            pass
        assert said in str(refused.value)
    with pytest.raises(StudyError, match="by is 'max': choose one of zero, mean"), silenced(model, "L0H0", by="max"):  # type: ignore[arg-type]
        pass
    with pytest.raises(StudyError, match=r"gates are \(4, 2\)"), gated(model, torch.ones(4, 2)):
        pass
    with pytest.raises(StudyError, match="at least one text"):
        head_means(model, [])


def test_the_bundled_model_by_its_public_name(minilm: Model) -> None:
    text = ["Two ravens met. The ravens left."]
    plain = headscope.study(minilm, text)
    with headscope.silenced(minilm, "L2H0-11"):
        silent = headscope.study(minilm, text)
    assert np.array_equal(plain.data["attention"][:3], silent.data["attention"][:3])
    assert not np.allclose(plain.data["attention"][3], silent.data["attention"][3], atol=1e-3)

"""Removing heads: every architecture gives what it gives with them silent, and is smaller."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headscope.errors import ModelError, StudyError
from headscope.model.head_surgery import find_units, make_trial_inputs
from headscope.model.loading import load
from headscope.pruning import removal as removing
from headscope.pruning.removal import Division, find_division, remove
from tests.helpers import tiny
from tests.helpers.architectures import batch, result, watched
from tests.helpers.families import FAMILIES
from tests.helpers.pruning import PATTERNS, TEXTS, choose_heads, compute_error, get_expected_outcome, run_silenced
from tests.helpers.removed_heads import NEAR, count_parameters, replace_network


@pytest.mark.parametrize("name", TEXTS)
def test_every_architecture_gives_what_it_gives_with_these_heads_silent(name: str) -> None:
    family = FAMILIES[name]
    stacks = watched(name).stacks
    for stack in stacks if name in ("t5", "umt5", "bart", "mvp") else stacks[:1]:
        model = watched(name).on(stack)
        for pattern in PATTERNS:
            heads = choose_heads(model, pattern)
            removal = remove(model, heads)
            outcome = get_expected_outcome(name, pattern)
            assert {layer.how for layer in removal.layers} == {outcome}, (stack, pattern)
            is_smaller = count_parameters(removal.network) < count_parameters(model.network)
            assert is_smaller is (outcome == "removed")
            assert removal.difference <= NEAR
            inputs = batch(model, family, "left" if pattern == "uneven" and family.padding == "both" else "right")
            silent, unchanged = run_silenced(model, heads, inputs), result(model, inputs)
            smaller = result(replace_network(model, removal.network), inputs)
            assert compute_error(silent, smaller, inputs) <= NEAR, (stack, pattern)
            assert compute_error(silent, unchanged, inputs) > 1e-3, "these heads change nothing: nothing was tested"


@pytest.mark.parametrize("name", ["vit", "dinov2", "clip_vision_model", "beit"])
def test_vision_transformers(name: str) -> None:
    model = watched(name)
    removal = remove(model, "L0H1,L1H0,L1H2")
    inputs = batch(model, FAMILIES[name], "right")
    assert {layer.how for layer in removal.layers} == {"masked" if name == "beit" else "removed"}
    silent = run_silenced(model, [(0, 1), (1, 0), (1, 2)], inputs)
    assert compute_error(silent, result(replace_network(model, removal.network), inputs), inputs) <= NEAR


def test_rows_and_columns_that_are_left_are_those_of_the_other_heads() -> None:
    model = tiny.model("bert")  # 4 heads of width 8
    removal = remove(model, "L0H1,L0H3")
    before, after = (network.encoder.layer[0].attention for network in (model.network, removal.network))
    rows = [*range(8), *range(16, 24)]
    for name in ("query", "key", "value"):
        linear, smaller = getattr(before.self, name), getattr(after.self, name)
        assert torch.equal(smaller.weight, linear.weight[rows])
        assert torch.equal(smaller.bias, linear.bias[rows])
        assert (smaller.out_features, smaller.in_features) == (16, 32)
    assert torch.equal(after.output.dense.weight, before.output.dense.weight[:, rows])
    assert torch.equal(after.output.dense.bias, before.output.dense.bias)
    assert (after.self.num_attention_heads, after.self.all_head_size, after.self.attention_head_size) == (2, 16, 8)
    assert [(layer.how, layer.sizes.heads) for layer in removal.layers] == [("removed", 2), ("whole", 4)]


def test_fused_maps_lose_the_right_rows() -> None:
    gpt2, neox = tiny.model("gpt2"), tiny.model("gpt_neox")
    fused = remove(gpt2, "L0H0").network.h[0].attn.c_attn  # queries, keys, values, each by head; transposed
    columns = [start + k for start in (0, 32, 64) for k in range(8, 32)]
    assert torch.equal(fused.weight, gpt2.network.h[0].attn.c_attn.weight[:, columns])
    assert (fused.nf, fused.nx) == (72, 32)
    interleaved = remove(neox, "L0H0").network.layers[0].attention.query_key_value  # by head query, key, value
    assert torch.equal(interleaved.weight, neox.network.layers[0].attention.query_key_value.weight[24:])


def test_the_original_is_untouched_or_changed_in_place() -> None:
    for name in ("bert", "llama", "t5", "switch_transformers"):
        model = load(copy.deepcopy(tiny.network(name)), tiny.tokenizer())
        before = {key: weight.clone() for key, weight in model.network.state_dict().items()}
        flags = [weight.requires_grad for weight in model.network.parameters()]
        heads = choose_heads(model, "even")
        removal = remove(model, heads)
        assert removal.network is not model.network
        assert all(torch.equal(weight, before[key]) for key, weight in model.network.state_dict().items())
        assert flags == [weight.requires_grad for weight in model.network.parameters()]
        assert {weight.dtype for weight in removal.network.parameters()} == {torch.float32}
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in removal.network.modules())
        again = remove(model, heads, in_place=True)
        assert again.network is model.network
        assert count_parameters(model.network) == count_parameters(removal.network)


def test_half_precision_loses_the_same_weights() -> None:
    model = load(tiny.network("llama").to(torch.bfloat16), tiny.tokenizer())
    removal = remove(model, "L0H1,L0H3")
    assert removal.layers[0].how == "removed"
    assert {weight.dtype for weight in removal.network.parameters()} == {torch.bfloat16}
    assert torch.equal(
        removal.network.layers[0].self_attn.v_proj.weight, model.network.layers[0].self_attn.v_proj.weight
    )


def test_a_pruned_network_can_be_studied_and_pruned_again() -> None:
    model = tiny.model("bert")
    smaller = load(remove(model, "L0H1,L1H2").network, tiny.tokenizer())
    assert smaller.architecture.heads == 3
    again = remove(smaller, "L0H0,L1H0")  # once heads 0 of layers 0 and 1
    inputs = tiny.batch(9, 4)
    silent = run_silenced(model, [(0, 0), (0, 1), (1, 0), (1, 2)], inputs)
    assert compute_error(silent, tiny.run(again.network, inputs), inputs) <= NEAR


# How the division is found


def find_first_division(name: str) -> Division:
    model = watched(name)
    return find_division(model.network, find_units(model)[0], make_trial_inputs(model))


def test_the_gradient_shows_whose_a_row_is() -> None:
    query = find_first_division("bert").find_weight("query.weight")
    assert query is not None
    assert (query.users == np.kron(np.eye(4, dtype=bool), np.ones(8, dtype=bool))).all()
    assert find_first_division("bert").groups == ()
    keys = find_first_division("llama").find_weight("k_proj.weight")
    assert keys is not None
    assert (keys.users == np.kron([[1, 0], [1, 0], [0, 1], [0, 1]], np.ones(8)).astype(bool)).all()
    assert find_first_division("llama").groups == (frozenset({0, 1}), frozenset({2, 3}))
    assert find_first_division("falcon").groups == (frozenset({0, 1, 2, 3}),)
    assert find_first_division("olmo2").find_weight("q_proj.weight") is None  # a norm over all heads


def test_rows_of_another_head_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find a wrong division with valid shapes: only the network's results show that it is wrong."""
    correct = find_division

    def find_wrong_division(*args: Any) -> Division:
        division = correct(*args)
        return replace(division, weights=tuple(replace(w, users=w.users[::-1]) for w in division.weights))

    monkeypatch.setattr(removing, "find_division", find_wrong_division)
    model = tiny.model("bert")
    removal = remove(model, "L0H0")
    assert removal.layers[0].how == "masked"
    assert removal.difference == 0
    assert count_parameters(removal.network) == count_parameters(model.network)
    inputs = tiny.batch(9, 5)
    assert compute_error(run_silenced(model, [(0, 0)], inputs), tiny.run(removal.network, inputs), inputs) <= NEAR


# What is refused


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("L7H0", "layer 7: "), ("L0H4", "head 4: "), ("L0H1,L0H1", "twice"), ("first", "not a head"),
        ([1, 2], "not a pair of numbers"),
        ("L0H0-3,L1H0-3", "all 8 heads"),
    ],
)  # fmt: skip
def test_heads_that_are_not_there(heads: object, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        remove(tiny.model("bert"), heads)  # type: ignore[arg-type]


def test_what_cannot_be_removed_is_said() -> None:
    with pytest.raises(ModelError, match="'bloom' cannot be removed in layer 0, 1: other parts"):
        remove(watched("bloom"), "L0H0,L1H1", how="remove")
    with pytest.raises(ModelError, match=r"'olmo2'.*layer 1"):
        remove(watched("olmo2"), "L1H1", how="remove")
    with pytest.raises(ModelError, match=r"'xlnet'.*no module"):
        remove(watched("xlnet"), "L0H0")
    with pytest.raises(StudyError, match="how is 'cut'"):
        remove(watched("bert"), "L0H0", how="cut")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="0, 1, 2 share one attention module"):
        remove(watched("albert"), "L0H0")


def test_masking_on_request_changes_no_shape() -> None:
    model = watched("bert")
    removal = remove(model, "L0H1", how="mask")
    assert count_parameters(removal.network) == count_parameters(model.network)
    columns = removal.network.encoder.layer[0].attention.output.dense.weight
    assert not columns[:, 8:16].any()
    assert columns[:, :8].any()
    assert (removal.layers[0].how, removal.layers[0].why) == ("masked", "")


def test_hybrid_layers_keep_their_numbers() -> None:
    removal = remove(watched("jamba"), "L3H0-1")
    assert [(layer.layer, layer.how) for layer in removal.layers] == [(1, "whole"), (3, "removed")]

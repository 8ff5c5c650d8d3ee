"""Captures are verified by what a model does with its heads' outputs: models built to break the check do not pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headscope
from headscope.errors import ModelError
from headscope.model.capture.attention_interface import watch_attention
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.families import COMMON, HEADS, MLA, WIDTH

SIZE = WIDTH // HEADS
TEXTS = ["the cat sat. the dog, a cat, ran!", "a b c. d e f, g h.", "owl the owl. owl, the owl."]


class PlainAttention(torch.nn.Module):
    """Attention in code of its own; `change` may do anything to the context (text, head, token, width)."""

    def __init__(self, change: Callable[[PlainAttention, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.gate, self.dense, self.extra = (
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)
        )
        self.narrow = torch.nn.Linear(WIDTH - SIZE, WIDTH)
        self.norm, self.layer_norm = torch.nn.RMSNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.change = change
        self.buffer: torch.Tensor | None = None

    def split(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)

    def attend(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.split(linear(hidden)) for linear in (self.query, self.key, self.value))
        return (query @ key.transpose(-1, -2) / SIZE**0.5).softmax(-1) @ value

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.change(self, self.attend(hidden), hidden)


def join(context: torch.Tensor) -> torch.Tensor:
    return context.transpose(1, 2).flatten(2)


def do_nothing(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context))


def add_in_place(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    context += module.split(module.value(hidden))
    return module.dense(join(context))


def scale_in_place(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    context *= 1.5
    return module.dense(join(context))


def permute_heads(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context.roll(1, 1)))


def swap_two_heads(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context[:, [1, 0, *range(2, HEADS)]]))


def reverse_tokens(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context.flip(2)))


def exchange_texts(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context.roll(1, 0)))


def rotate_in_heads(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    left, right = context.chunk(2, -1)
    return module.dense(join(torch.cat([0.6 * left - 0.8 * right, 0.8 * left + 0.6 * right], -1)))


def rotate_across_heads(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    left, right = join(context).chunk(2, -1)
    return module.dense(torch.cat([0.6 * left - 0.8 * right, 0.8 * left + 0.6 * right], -1))


def gate_by_input(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context) * module.gate(hidden).sigmoid())


def gate_by_outputs(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The gate's linear map gets exactly the captured outputs, and is not the projection."""
    outputs = join(context)
    return module.dense(outputs * module.gate(outputs).sigmoid())


def apply_norm(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(module.norm(join(context)))


def apply_layer_norm(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(module.layer_norm(join(context)))


def project_twice(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """A second linear map of equal width runs after the projection, in the same module."""
    return module.extra(module.dense(join(context)))


def change_then_project_twice(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.extra(module.dense(join(context).cumsum(-1)))


def project_in_parallel(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context)) + module.extra(join(context))


def reuse_buffer(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """What was captured is overwritten when the projection has read it."""
    result = module.dense(join(context))
    context.zero_()
    return result


def drop_a_head(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.narrow(join(context[:, 1:]))


def silence_a_head(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    context = context.clone()
    context[:, 0] = 0
    return module.dense(join(context))


def add_residual(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context) + hidden)


def add_neighbours(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context + context.roll(1, 2)))


def attend_twice(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    query = module.split(hidden)
    return module.dense(join(context - 0.5 * (query @ query.transpose(-1, -2)).softmax(-1) @ query))


def bypass_projection(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context)) + join(context)


def ignore_outputs(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(hidden)


def route_to_slots(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """A mixture of heads: outputs are sorted by the expert that projects them."""
    slots = context.transpose(1, 2)
    order = module.gate(hidden)[..., :HEADS].argsort(-1)
    return module.dense(slots.gather(2, order[..., None].expand_as(slots)).flatten(2))


def draw_random_numbers(module: PlainAttention, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return module.dense(join(context)) + torch.rand(())


class TracedLayer(torch.nn.Module):
    """Takes the place of BERT's attention in a layer."""

    def __init__(self, attention: PlainAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, hidden: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, None]:
        return hidden + 0.5 * self.attention(hidden), None


def build_model(change: Callable[..., torch.Tensor]) -> Model:
    network = tiny.network("bert")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for layer in network.encoder.layer:
            layer.attention = TracedLayer(PlainAttention(change))
    return load(network.eval(), tiny.tokenizer())


VERIFIED = [do_nothing, project_twice, reuse_buffer]
CHANGED = [scale_in_place, silence_a_head, gate_by_input, apply_norm, rotate_in_heads]
REFUSED = {
    add_in_place: "something else is added to its heads' outputs",
    add_residual: "something else is added to its heads' outputs",
    permute_heads: "heads or tokens are rearranged",
    swap_two_heads: "heads or tokens are rearranged",
    reverse_tokens: "heads or tokens are rearranged",
    exchange_texts: "heads or tokens are rearranged",
    route_to_slots: "heads or tokens are rearranged",
    rotate_across_heads: "mixed with each other or with something else",
    add_neighbours: "mixed with each other or with something else",
    apply_layer_norm: "mixed with each other or with something else",
    change_then_project_twice: "mixed with each other or with something else",
    gate_by_outputs: "its heads' outputs enter 2 linear maps",
    project_in_parallel: "its heads' outputs enter 2 linear maps",
    drop_a_head: "heads are left out or merged",
    bypass_projection: "reach the next layers by another way than its output projection",
    ignore_outputs: "no linear map takes its heads' outputs",
    draw_random_numbers: "the model draws random numbers",
}


def name_of(change: object) -> str:
    return getattr(change, "__name__", "")


class TestBuiltToBreakTheCheck:
    @pytest.mark.parametrize("change", VERIFIED, ids=name_of)
    def test_outputs_that_enter_the_projection_are_verified(self, change: Callable[..., torch.Tensor]) -> None:
        architecture = build_model(change).architecture
        assert (architecture.verified, architecture.gated, architecture.problem) == (True, False, "")

    @pytest.mark.parametrize("change", CHANGED, ids=name_of)
    def test_outputs_changed_head_by_head_are_taken_where_they_enter_the_projection(
        self, change: Callable[..., torch.Tensor]
    ) -> None:
        model = build_model(change)
        assert (model.architecture.verified, model.architecture.gated) == (True, True)
        entered: list[torch.Tensor] = []
        for layer in model.network.encoder.layer:
            layer.attention.attention.dense.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        seen = tiny.LayerRecorder()
        model.observe(tiny.batch(7, 7, 4), seen)
        for output, inputs in zip(seen.outputs, entered, strict=True):
            assert torch.equal(output.flatten(2), inputs)

    @pytest.mark.parametrize("change", REFUSED, ids=name_of)
    def test_anything_else_is_refused_with_the_reason(self, change: Callable[..., torch.Tensor]) -> None:
        architecture = build_model(change).architecture
        assert not architecture.verified
        assert architecture.problem.startswith("layer 0: ")
        assert REFUSED[change] in architecture.problem

    def test_two_maps_in_a_layer(self) -> None:
        with pytest.raises(ModelError, match="PlainAttention of the model type 'bert' computes attention"):
            _ = build_model(attend_twice).architecture

    def test_a_problem_in_a_later_layer_is_found(self) -> None:
        model = build_model(do_nothing)
        model.network.encoder.layer[1].attention.attention.change = add_residual
        assert model.architecture.problem.startswith("layer 1: something else is added")

    def test_a_study_of_a_reused_buffer_counts_what_entered_the_projection(self) -> None:
        expected = headscope.study(build_model(do_nothing), TEXTS, length=12)
        actual = headscope.study(build_model(reuse_buffer), TEXTS, length=12)
        assert (actual.data["pairs"] == expected.data["pairs"]).all()
        assert (actual.data["distance"] == expected.data["distance"]).all()

    def test_verification_changes_nothing(self) -> None:
        model, untouched = build_model(gate_by_input), build_model(gate_by_input)
        _ = model.architecture
        assert torch.equal(tiny.run(model.network, tiny.batch(6)), tiny.run(untouched.network, tiny.batch(6)))
        assert not torch.overrides._get_current_function_mode_stack()


class TestMaps:
    def test_maps_that_do_not_give_the_outputs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers.models.bert import modeling_bert

        eager = modeling_bert.eager_attention_forward

        def report_other_map(*args: Any, **options: Any) -> Any:
            output, maps = eager(*args, **options)
            return output, maps.flip(-1)

        monkeypatch.setattr(modeling_bert, "eager_attention_forward", report_other_map)
        architecture = tiny.model("bert").architecture
        assert architecture.problem == "layer 0: its maps multiplied with its values do not give its heads' outputs"

    def test_a_map_recomputed_for_scaled_dot_product_attention_is_compared(self) -> None:
        def attend(module: PlainAttention, hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(
                *(module.split(linear(hidden)) for linear in (module.query, module.key, module.value))
            )

        model = build_model(do_nothing)
        for layer in model.network.encoder.layer:
            layer.attention.attention.attend = attend.__get__(layer.attention.attention)
        assert model.architecture.verified


NYSTROMFORMER = {"num_landmarks": 48, "segment_means_seq_len": 48, "conv_kernel_size": 3}
DEEPSEEK_V4 = {
    "num_key_value_heads": 1, "head_dim": 8, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 8, "sliding_window": 8,
    "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
    "layer_types": ["sliding_attention"] * 2,
}  # fmt: skip
DEEPSEEK_V32 = {**MLA, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8}
JETMOE = {"num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2}


class TestArchitectures:
    def test_nystromformer_adds_a_convolution_in_place(self) -> None:
        model = tiny.model("nystromformer", **COMMON, **NYSTROMFORMER)
        assert "something else is added to its heads' outputs" in model.architecture.problem

    def test_nystromformer_without_the_convolution_is_verified(self) -> None:
        network = tiny.network("nystromformer", **COMMON, **NYSTROMFORMER)
        for layer in network.encoder.layer:
            layer.attention.self.conv_kernel_size = None
        model = load(network, tiny.tokenizer())
        assert (model.architecture.verified, model.architecture.gated) == (True, False)

    def test_jetmoe_sorts_heads_by_expert(self) -> None:
        model = tiny.model("jetmoe", **COMMON, **JETMOE)
        assert "heads or tokens are rearranged" in model.architecture.problem

    def test_deepseek_v4_is_watched_after_its_rotation(self) -> None:
        model = tiny.model("deepseek_v4", **COMMON, **DEEPSEEK_V4)
        assert (model.architecture.verified, model.architecture.gated) == (True, True)
        entered: list[torch.Tensor] = []
        for layer in model.network.layers:
            layer.self_attn.o_a_proj.register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        seen, returned = tiny.LayerRecorder(), tiny.LayerRecorder()
        batch = tiny.batch(9, 5)
        model.observe(batch, seen)
        with watch_attention(model.network, returned.record, batch=2, routes=["registry"]):
            tiny.run(model.network, batch)
        for k, output in enumerate(seen.outputs):
            assert torch.equal(output, entered[k].reshape(output.shape))
            assert (output - returned.outputs[k]).abs().max() > 0.1 * output.abs().max()


class BatchedLayer(torch.nn.Module):
    """Makes a text's hidden states depend on the batch, before the attention of a layer of BERT."""

    def __init__(self, attention: torch.nn.Module, depend: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.attention, self.depend = attention, depend

    def forward(self, hidden: torch.Tensor, *args: Any, **options: Any) -> Any:
        return self.attention(self.depend(hidden), *args, **options)


def normalize_over_texts(hidden: torch.Tensor) -> torch.Tensor:
    return hidden - 0.5 * hidden.mean(0, keepdim=True)


def limit_capacity(hidden: torch.Tensor) -> torch.Tensor:
    """Experts of limited capacity drop the tokens that come last in a batch."""
    rows = hidden.flatten(0, 1)
    return (rows * (torch.arange(len(rows)) < 20)[:, None]).view_as(hidden)


def see_length(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * (1 + hidden.shape[1] / 10)


BATCHINGS = {
    torch.relu: "mixed lengths",
    see_length: "equal lengths",
    normalize_over_texts: "single texts",
    limit_capacity: "single texts",
}


def build_batched(depend: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    network = tiny.network("bert")
    for layer in network.encoder.layer:
        layer.attention = BatchedLayer(layer.attention, depend)
    return load(network, tiny.tokenizer())


class TestBatching:
    @pytest.mark.parametrize("depend", BATCHINGS, ids=name_of)
    def test_texts_that_change_each_other_do_not_share_a_batch(self, depend: Callable[..., torch.Tensor]) -> None:
        model = build_batched(depend)
        assert model.batching == BATCHINGS[depend]
        alone, together = (headscope.study(model, TEXTS, length=18, batch_size=size) for size in (1, 3))
        assert together.manifest["batching"] == BATCHINGS[depend]
        assert (alone.data["pairs"] == together.data["pairs"]).all()
        assert (alone.data["distance"] == together.data["distance"]).all()

    def test_ties_in_deepseek_v32s_choice_of_tokens_depend_on_the_length(self) -> None:
        model = tiny.model("deepseek_v32", **COMMON, **DEEPSEEK_V32)
        assert (model.architecture.verified, model.batching) == (True, "equal lengths")
        alone, together = (headscope.study(model, TEXTS, length=18, batch_size=size) for size in (1, 3))
        assert (alone.data["pairs"] == together.data["pairs"]).all()

    def test_it_takes_three_runs_of_a_few_tokens(self) -> None:
        model, shapes = tiny.model("bert"), []
        _ = model.architecture
        model.network.register_forward_pre_hook(
            lambda _, args, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
        )
        assert model.batching == model.batching == "mixed lengths"
        assert shapes == [(6, 9), (1, 9), (7, 16)]

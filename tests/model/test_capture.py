"""Captured outputs and maps are what the model computes, in every architecture, and capturing changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedModel, T5EncoderModel
from transformers.modeling_utils import AttentionInterface

import headscope
from headscope.errors import ModelError
from headscope.model.capture.attention_interface import watch_attention
from headscope.model.capture.records import CapturedAttention
from tests.helpers import tiny
from tests.helpers.families import T5

BATCH = tiny.batch(11, 7, 2)


def make_padded_batch(kind: str, *lengths: int) -> Any:
    """Return a batch that is padded with the padding token of the architecture."""
    return tiny.batch(*lengths, pad_id=tiny.FAMILIES[kind].pad_id)


def capture(network: PreTrainedModel, batch: Any = BATCH) -> tiny.LayerRecorder:
    recorder = tiny.LayerRecorder()
    with watch_attention(network, recorder.record, batch=len(batch)):
        tiny.run(network, batch)
    return recorder


def record_inputs(network: PreTrainedModel, suffix: str) -> list[torch.Tensor]:
    """Return a list that fills with the inputs of the modules of that name, call by call."""
    inputs: list[torch.Tensor] = []
    for name, module in network.named_modules():
        if name.endswith(suffix):
            module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    return inputs


class TestProjections:
    """The same as in tests/model/test_architectures.py, with the projections named by hand."""

    @pytest.mark.parametrize(
        ("kind", "suffix"),
        [
            ("bert", "attention.output.dense"),
            ("distilbert", "attention.out_lin"),
            ("albert", "attention.dense"),
            ("modernbert", "attn.Wo"),
            ("gpt2", "attn.c_proj"),
            ("llama", "self_attn.o_proj"),
            ("gpt_neox", "attention.dense"),
            ("opt", "self_attn.out_proj"),
            ("mpnet", "attn.o"),
            ("deberta-v2", "attention.output.dense"),
            ("bloom", "self_attention.dense"),
            ("gptj", "attn.out_proj"),
        ],
    )
    def test_joined_heads_are_what_the_output_projection_gets(self, kind: str, suffix: str) -> None:
        network = tiny.network(kind)
        inputs = record_inputs(network, suffix)
        captured = capture(network, make_padded_batch(kind, 11, 7, 2))
        assert len(inputs) == len(captured.outputs) == network.config.num_hidden_layers
        for output, expected in zip(captured.outputs, inputs, strict=True):
            assert expected.abs().max() > 0.01
            torch.testing.assert_close(output.flatten(2), expected.reshape(3, 11, tiny.WIDTH), rtol=1e-5, atol=0)


class TestMeaning:
    @pytest.mark.parametrize(
        ("kind", "name"), [("bert", "attention.self.value"), ("llama", "self_attn.v_proj"), ("qwen3", "v_proj")]
    )
    def test_output_is_the_map_times_the_values(self, kind: str, name: str) -> None:
        network = tiny.network(kind)
        values: list[torch.Tensor] = []
        for path, module in network.named_modules():
            if path.endswith(name):
                module.register_forward_hook(lambda _, args, out: values.append(out))
        captured = capture(network)
        for output, attention, value in zip(captured.outputs, captured.maps, values, strict=True):
            by_head = value.reshape(3, 11, -1, tiny.WIDTH // tiny.HEADS)
            # Grouped heads share one set of values.
            by_head = by_head.repeat_interleave(tiny.HEADS // by_head.shape[2], dim=2)
            torch.testing.assert_close(output, torch.einsum("bhij,bjhd->bihd", attention, by_head), rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("kind", "layer", "back"), [("mistral", 0, 3), ("gemma3", 0, 3), ("modernbert", 1, 2)])
    def test_a_window_of_attention_is_the_models_own(self, kind: str, layer: int, back: int) -> None:
        attention = capture(tiny.network(kind), tiny.batch(12)).maps[layer][0]
        assert attention.diagonal(-back, dim1=-2, dim2=-1).all()
        assert not attention.tril(-back - 1).any()

    def test_grouped_heads_are_seen_apart(self) -> None:
        output = capture(tiny.network("llama")).outputs[0]
        assert all(not torch.equal(output[:, :, a], output[:, :, b]) for a in range(4) for b in range(a))

    def test_the_part_of_a_larger_model_that_reads_text(self) -> None:
        text = {**tiny.COMMON, **tiny.GROUPED, "num_hidden_layers": 3}
        vision = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 8,
            "patch_size": 4,
        }
        config = AutoConfig.for_model(
            "gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=4
        )
        model = headscope.load(AutoModel.from_config(config), tiny.tokenizer())
        architecture = model.architecture
        assert (architecture.layers, architecture.heads, model.max_length) == (3, tiny.HEADS, tiny.POSITIONS)


class TestObserving:
    def test_registry_is_as_before_on_leaving(self) -> None:
        before = AttentionInterface.get_interface
        with watch_attention(tiny.network("bert"), tiny.LayerRecorder().record, batch=3):
            assert AttentionInterface.get_interface is not before
        assert AttentionInterface.get_interface is before

    def test_registry_is_as_before_after_an_exception(self) -> None:
        before, network = AttentionInterface.get_interface, tiny.network("bert", attention="sdpa").train()

        def report(captured: CapturedAttention) -> None:
            raise KeyError(captured.route)

        with pytest.raises(KeyError), watch_attention(network, report, batch=3):
            tiny.run(network, BATCH)
        assert AttentionInterface.get_interface is before
        assert network.config._attn_implementation == "sdpa"
        assert all(module.training for module in network.modules())
        assert capture(network).layers == [0, 1]

    def test_a_registry_that_others_have_changed_is_left_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = AttentionInterface.get_interface
        requested: list[str] = []

        def get_other_interface(self: Any, name: str, default: Callable[..., Any]) -> Any:
            requested.append(name)
            return original(self, name, default)

        monkeypatch.setattr(AttentionInterface, "get_interface", get_other_interface)
        assert capture(tiny.network("bert")).layers == [0, 1]
        assert requested == ["eager", "eager"]
        assert AttentionInterface.get_interface is get_other_interface

    @pytest.mark.parametrize("kind", ["bert", "mpnet"], ids=["registry", "products"])
    @pytest.mark.parametrize("first_out", [0, 1], ids=["overlapping", "nested"])
    def test_two_models_at_once_see_their_own_layers(self, first_out: int, kind: str) -> None:
        before = AttentionInterface.get_interface
        networks = [tiny.network(kind), tiny.network(kind, seed=1, num_hidden_layers=3)]
        alone = [capture(network) for network in networks]
        recorders = [tiny.LayerRecorder(), tiny.LayerRecorder()]
        contexts = [ExitStack(), ExitStack()]
        for context, network, recorder in zip(contexts, networks, recorders, strict=True):
            context.enter_context(watch_attention(network, recorder.record, batch=len(BATCH)))
        for network in networks:
            tiny.run(network, BATCH)
        contexts[first_out].close()
        assert AttentionInterface.get_interface is not before
        for network in networks:
            tiny.run(network, BATCH)
        contexts[1 - first_out].close()
        assert AttentionInterface.get_interface is before
        assert not torch.overrides._get_current_function_mode_stack()
        for k, depth in enumerate((2, 3)):
            runs = 1 if k == first_out else 2
            assert recorders[k].layers == list(range(depth * runs))
            assert all(torch.equal(a, b) for a, b in zip(recorders[k].outputs, alone[k].outputs * runs, strict=True))

    @pytest.mark.parametrize("kind", ["gpt2", "bloom"], ids=["registry", "products"])
    def test_one_model_watched_twice(self, kind: str) -> None:
        network, outer, inner = tiny.network(kind), tiny.LayerRecorder(), tiny.LayerRecorder()
        if kind == "gpt2":
            network.set_attn_implementation("sdpa")
        with watch_attention(network, outer.record, batch=3), watch_attention(network, inner.record, batch=3):
            tiny.run(network, BATCH)
        assert outer.layers == inner.layers == [0, 1]
        assert network.config._attn_implementation == ("sdpa" if kind == "gpt2" else "eager")

    @pytest.mark.parametrize("kind", ["bert", "llama", "modernbert"])
    def test_a_fast_attention_gives_way_to_eager_and_comes_back(self, kind: str) -> None:
        network, same = tiny.network(kind, attention="sdpa"), tiny.network(kind)
        before = tiny.run(network, BATCH)
        recorder = tiny.LayerRecorder()
        with watch_attention(network, recorder.record, batch=len(BATCH)):
            assert network.config._attn_implementation == "eager"
            tiny.run(network, BATCH)
        assert network.config._attn_implementation == "sdpa"
        assert all(torch.equal(a, b) for a, b in zip(recorder.outputs, capture(same).outputs, strict=True))
        assert torch.equal(tiny.run(network, BATCH), before)

    def test_dropout_is_off_within_and_training_as_before_after(self) -> None:
        network = tiny.network("bert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
        quiet = capture(network)
        network.train()
        network.encoder.layer[0].eval()
        before = {name: module.training for name, module in network.named_modules()}
        assert set(before.values()) == {True, False}
        watched = capture(network)
        assert all(torch.equal(a, b) for a, b in zip(watched.outputs, quiet.outputs, strict=True))
        assert {name: module.training for name, module in network.named_modules()} == before

    @pytest.mark.parametrize("kind", ["bert", "mpnet"], ids=["registry", "products"])
    @pytest.mark.parametrize("shared", [False, True], ids=["two models", "one model"])
    def test_threads_see_their_own_runs(self, shared: bool, kind: str) -> None:
        networks = [tiny.network(kind), tiny.network(kind, seed=1)]
        if shared:
            networks[1] = networks[0]
        inputs = [tiny.batch(9, seed=1), tiny.batch(9, seed=2)]
        alone = [capture(*pair) for pair in zip(networks, inputs, strict=True)]
        together = [tiny.LayerRecorder(), tiny.LayerRecorder()]
        # Both threads wait for each other at every layer, so that the runs overlap.
        barrier = threading.Barrier(2, timeout=300)

        def run(k: int) -> None:
            def report(captured: CapturedAttention) -> None:
                together[k].record(captured)
                barrier.wait()

            with watch_attention(networks[k], report, batch=1):
                barrier.wait()
                tiny.run(networks[k], inputs[k])

        threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for k in range(2):
            assert together[k].layers == [0, 1]
            assert all(torch.equal(a, b) for a, b in zip(together[k].outputs, alone[k].outputs, strict=True))


def test_layers_that_differ_in_heads() -> None:
    model = tiny.model("bert")
    odd = model.network.encoder.layer[1].attention.self
    odd.num_attention_heads, odd.attention_head_size = 2, 16
    assert (model.architecture.heads, model.architecture.head_counts) == (4, (4, 2))
    assert model.architecture.list_heads() == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    recorder = tiny.LayerRecorder()
    model.observe(tiny.batch(6), recorder)
    assert [tuple(output.shape) for output in recorder.outputs] == [(1, 6, 4, 8), (1, 6, 4, 16)]
    assert [tuple(maps.shape) for maps in recorder.maps] == [(1, 4, 6, 6)] * 2
    assert not recorder.outputs[1][:, :, 2:].any()
    assert not recorder.maps[1][:, 2:].any()


class TestRefused:
    @pytest.mark.parametrize("kind", ["llama", "bert"], ids=["in the configuration", "in the module"])
    def test_heads_that_are_not_there(self, kind: str) -> None:
        model = tiny.model(kind)
        if kind == "bert":
            for layer in model.network.encoder.layer:
                layer.attention.self.num_attention_heads = 8
        else:
            model.network.config.num_attention_heads = 8
        with pytest.raises(ModelError, match="captured 4 heads per layer where the model says 8"):
            _ = model.architecture

    def test_attention_that_gives_no_map(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers.models.bert import modeling_bert

        eager = modeling_bert.eager_attention_forward
        monkeypatch.setattr(modeling_bert, "eager_attention_forward", lambda *a, **k: (eager(*a, **k)[0], None))
        with pytest.raises(ModelError, match="BertSelfAttention gives no attention map"):
            _ = tiny.model("bert").architecture

    def test_a_layer_lost_between_batches(self) -> None:
        model = tiny.model("bert", num_hidden_layers=3)
        assert model.architecture.layers == 3
        del model.network.encoder.layer[2]
        with pytest.raises(ModelError, match="captured 2 attention computations where there are 3"):
            model.observe(BATCH, tiny.LayerRecorder())

    def test_a_tokenizer_of_another_model(self) -> None:
        model = tiny.model("bert", vocab_size=20)
        with pytest.raises(ModelError, match=r"token id \d+, but the model knows 20 tokens"):
            model.observe(tiny.batch(30), tiny.LayerRecorder())


class TestMaxLength:
    @pytest.mark.parametrize(
        ("kind", "options", "expected"),
        [
            ("bert", {}, tiny.POSITIONS),
            ("roberta", {}, tiny.POSITIONS - 2),
            ("roberta", {"pad_token_id": 4}, tiny.POSITIONS - 5),
            ("gpt2", {"n_positions": 30, "max_position_embeddings": 30}, 30),
            ("opt", {}, tiny.POSITIONS),
        ],
    )
    def test_the_longest_window_runs_and_no_longer_one(self, kind: str, options: dict[str, Any], expected: int) -> None:
        model = tiny.model(kind, **options)
        assert model.max_length == expected
        pad_id = model.network.config.pad_token_id
        model.observe(tiny.batch(expected, pad_id=pad_id), tiny.LayerRecorder())
        with pytest.raises((IndexError, RuntimeError)):
            tiny.run(model.network, tiny.batch(expected + 1, pad_id=pad_id))

    def test_a_model_with_rotary_positions_has_its_configured_limit(self) -> None:
        assert tiny.model("llama", max_position_embeddings=77).max_length == 77

    def test_a_model_without_a_table_of_positions_has_none(self) -> None:
        network = T5EncoderModel(AutoConfig.for_model("t5", **T5))
        model = headscope.load(network, tiny.tokenizer())
        assert model.max_length is None
        architecture = model.architecture
        assert (architecture.layers, architecture.heads, architecture.causal) == (2, tiny.HEADS, False)


def test_a_run_leaves_the_batch_as_it_was() -> None:
    batch = tiny.batch(5, 3)
    ids, real = batch.ids.copy(), batch.real.copy()
    tiny.model("bert").observe(batch, tiny.LayerRecorder())
    np.testing.assert_array_equal(batch.ids, ids)
    np.testing.assert_array_equal(batch.real, real)

"""Capture is verified for every architecture, with padding on both sides, on all stacks.

The table of docs/architectures.md is the result of these runs; `HEADSCOPE_WRITE_TABLES=1` writes it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from headscope.errors import ModelError
from headscope.model.capture import attention_interface, records
from headscope.model.capture.records import CapturedAttention
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import architectures, tiny
from tests.helpers.architectures import TOLERANCE, batch, measure_error, result, verify, watched
from tests.helpers.families import FAMILIES, UNSEEN, UNSEEN_VISION

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
BEGIN, END = "<!-- the table, written by tests/model/test_architectures.py -->\n", "<!-- end of the table -->\n"
SINKS = {"gpt_oss"}
"""part of each row of attention goes to no token"""

SEES_PADDING = {"convbert"}

families = pytest.mark.parametrize("name", FAMILIES)


@families
def test_every_model_is_shown_in_one_line(name: str) -> None:
    pattern = r"<Model \w+: \d+ layers? × \d+ heads?, \d+ wide, (encoder|decoder|cross), \w+, float32>"
    assert re.fullmatch(pattern, repr(watched(name)))


def list_stacks(name: str) -> list[Model]:
    model = watched(name)
    return [model.on(stack) for stack in model.stacks]


def list_sides(name: str) -> tuple[str, ...]:
    padding = FAMILIES[name].padding
    return ("left", "right") if padding == "both" else (padding,)


def count_hooks(network: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@families
def test_the_architecture_is_the_declared_one(name: str) -> None:
    family, model = FAMILIES[name], watched(name)
    stacks = {stack_model.architecture.stack: stack_model.architecture for stack_model in list_stacks(name)}
    assert {stack: architecture.numbers for stack, architecture in stacks.items()} == dict(family.stacks)
    assert {architecture.heads for architecture in stacks.values()} == {family.heads}
    assert {architecture.routes for architecture in stacks.values()} == {(family.route,)}
    assert any(architecture.gated for architecture in stacks.values()) is family.gated
    assert [architecture.problem for architecture in stacks.values()] == [""] * len(stacks)
    assert all(architecture.verified for architecture in stacks.values())
    assert {stack: architecture.causal for stack, architecture in stacks.items()} == {
        stack: stack == "decoder" for stack in family.stacks
    }
    assert model.architecture.stack == next(iter(family.stacks))


@families
def test_projected_outputs_are_what_the_module_returned(name: str) -> None:
    for model in list_stacks(name) if FAMILIES[name].verified else ():
        for side in list_sides(name):
            assert measure_error(model, batch(model, FAMILIES[name], side)) <= TOLERANCE, (
                model.architecture.stack,
                side,
            )


@families
def test_watching_changes_no_bit_and_leaves_nothing_behind(name: str) -> None:
    for model in list_stacks(name):
        for side in list_sides(name):
            inputs = batch(model, FAMILIES[name], side)
            network = (
                model.network.get_encoder() if model.is_encoder_decoder and inputs.source is None else model.network
            )
            unwatched, hooked, interface = (
                result(model, inputs),
                count_hooks(model.network),
                AttentionInterface.get_interface,
            )
            results: list[torch.Tensor] = []
            handle = network.register_forward_hook(lambda _, args, output, results=results: results.append(output[0]))
            model.observe(inputs, tiny.LayerRecorder())
            handle.remove()
            assert torch.equal(results[-1], unwatched), (model.architecture.stack, side)
            assert count_hooks(model.network) == hooked
            assert AttentionInterface.get_interface is interface


@families
def test_rows_sum_to_one_and_padding_gets_nothing(name: str) -> None:
    for model in list_stacks(name):
        for side in list_sides(name):
            inputs, seen = batch(model, FAMILIES[name], side), tiny.LayerRecorder()
            model.observe(inputs, seen)
            real = torch.from_numpy(inputs.real)
            for attention in seen.maps:
                rows = attention.transpose(1, 2)[real]
                keys = real[:, None, None].expand_as(attention).transpose(1, 2)[real]
                sums = rows.sum(-1)
                assert (sums <= 1 + 1e-5).all()
                assert name in SINKS or (sums >= 1 - 1e-5).all()
                assert not rows[~keys].any()
                assert (rows[keys] >= 0).all()


@families
def test_padding_changes_nothing_of_a_text(name: str) -> None:
    """A model where padding does change a text never gets any."""
    assert watched(name).ignores_padding is (name not in SEES_PADDING)
    for model in list_stacks(name) if name not in SEES_PADDING else ():
        inputs, together = batch(model, FAMILIES[name], "right"), tiny.LayerRecorder()
        model.observe(inputs, together)
        for k, window in enumerate(inputs.windows):
            alone, n = tiny.LayerRecorder(), len(window)
            model.observe(inputs.of([window], inputs.pad_id), alone)
            for layer, output in enumerate(alone.outputs):
                atol = 3e-5 * float(output.abs().max())
                torch.testing.assert_close(together.outputs[layer][k, :n], output[0], rtol=0, atol=atol)
                torch.testing.assert_close(together.maps[layer][k, :, :n, :n], alone.maps[layer][0], rtol=0, atol=3e-5)


@families
def test_all_is_as_before_after_an_exception(name: str) -> None:
    model = watched(name)
    inputs, interface, before = batch(model, FAMILIES[name], "right"), AttentionInterface.get_interface, None
    model.observe(inputs, tiny.LayerRecorder())
    before = count_hooks(model.network)

    def fail(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        raise KeyError(layer)

    with pytest.raises(KeyError):
        model.observe(inputs, fail)
    assert AttentionInterface.get_interface is interface
    assert count_hooks(model.network) == before
    assert not torch.overrides._get_current_function_mode_stack()
    model.observe(inputs, tiny.LayerRecorder())


# Test of the test: a wrong capture is detected


def permute_heads(captured: CapturedAttention) -> CapturedAttention:
    return CapturedAttention(captured.module, captured.output.flip(2), captured.attention, captured.route)


def reverse_tokens(captured: CapturedAttention) -> CapturedAttention:
    return CapturedAttention(captured.module, captured.output.flip(1), captured.attention, captured.route)


def scale(captured: CapturedAttention) -> CapturedAttention:
    return CapturedAttention(captured.module, captured.output * 1.0001, captured.attention, captured.route)


def mix_layout(captured: CapturedAttention) -> CapturedAttention:
    """Return a layout that is right for one head or one token, and wrong for more."""
    output = captured.output
    return CapturedAttention(
        captured.module, output.transpose(1, 2).reshape(output.shape), captured.attention, captured.route
    )


def shift_texts(captured: CapturedAttention) -> CapturedAttention:
    return CapturedAttention(captured.module, captured.output.roll(1, 0), captured.attention, captured.route)


@pytest.mark.parametrize(
    "wrong", [permute_heads, reverse_tokens, scale, mix_layout, shift_texts], ids=lambda wrong: wrong.__name__
)
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "mpnet", "bloom", "xglm", "vit", "data2vec-vision"])
def test_a_broken_capture_breaks_the_invariant(
    name: str, wrong: Callable[[CapturedAttention], CapturedAttention], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, family = watched(name), FAMILIES[name]
    inputs = batch(model, family, "right")
    assert measure_error(model, inputs) <= TOLERANCE
    route = attention_interface if family.route == "registry" else records
    right = route.CapturedAttention
    monkeypatch.setattr(route, "CapturedAttention", lambda *args: wrong(right(*args)))
    assert measure_error(model, inputs) > TOLERANCE


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_a_capture_that_is_wrong_from_the_start_is_not_verified(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured here are flipped copies: multiplying them changes nothing."""
    route = attention_interface if FAMILIES[name].route == "registry" else records
    right = route.CapturedAttention
    monkeypatch.setattr(route, "CapturedAttention", lambda *args: permute_heads(right(*args)))
    architecture = watched(name).architecture
    assert (architecture.verified, architecture.gated) == (False, False)
    assert architecture.problem


def test_the_projection_that_is_no_module() -> None:
    """XLNet multiplies with a weight of its own."""
    model = watched("xlnet")
    returned: list[torch.Tensor] = []
    layers = [layer.rel_attn for layer in model.network.layer]
    for layer in layers:
        # post_attention(hidden, attn_vec, residual) projects the heads' outputs, then adds the residual
        post_attention = layer.post_attention

        def record(
            hidden: Any,
            written: torch.Tensor,
            residual: bool = True,
            post_attention: Any = post_attention,
            layer: Any = layer,
        ) -> Any:
            returned.append(torch.einsum("ibnd,hnd->ibh", written, layer.o))
            return post_attention(hidden, written, residual)

        layer.post_attention = record
    try:
        for side in ("left", "right"):
            seen, inputs = tiny.LayerRecorder(), batch(model, FAMILIES["xlnet"], side)
            _ = model.architecture
            returned.clear()
            model.observe(inputs, seen)
            for output, layer, expected in zip(seen.outputs, layers, returned, strict=True):
                projected = torch.einsum("bind,hnd->ibh", output, layer.o)
                assert (projected - expected).abs().max() <= TOLERANCE * expected.abs().max()
    finally:
        for layer in layers:
            del layer.post_attention


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama", "deepseek_v3", "vit"])
def test_both_routes_see_the_same(name: str) -> None:
    from headscope.model.capture.attention_interface import watch_attention

    for model in list_stacks(name):
        inputs = batch(model, FAMILIES[name], "right")
        seen: dict[str, list[CapturedAttention]] = {"registry": [], "products": []}
        for route, captures in seen.items():
            with (
                watch_attention(model.network, captures.append, batch=len(inputs), routes=[route]),
                torch.inference_mode(),
            ):  # type: ignore[list-item]
                model.network(
                    **architectures.inputs(model, inputs)
                ) if inputs.source or not model.is_encoder_decoder else (
                    model.network.get_encoder()(**architectures.inputs(model, inputs))
                )
        assert len(seen["registry"]) == len(seen["products"]) > 0
        for from_registry, from_products in zip(*seen.values(), strict=True):
            assert from_registry.module is from_products.module
            assert torch.equal(from_registry.output, from_products.output)
            assert torch.equal(from_registry.attention, from_products.attention)


# What is refused


@pytest.mark.parametrize("name", UNSEEN)
def test_a_model_that_cannot_be_watched_is_named(name: str) -> None:
    model, seen = tiny.model(name), tiny.LayerRecorder()
    with pytest.raises(ModelError, match=rf"{UNSEEN[name][1]}.*|.*'{name}'") as refused:
        model.observe(tiny.batch(5), seen)
    assert name in str(refused.value)
    assert UNSEEN[name][1] in str(refused.value)
    assert seen.layers == []


@pytest.mark.parametrize("name", UNSEEN_VISION)
def test_a_vision_model_that_cannot_be_watched_is_named(name: str) -> None:
    options, reason = UNSEEN_VISION[name]
    size = options["image_size"] if isinstance(options["image_size"], int) else options["image_size"][0]
    model = load(tiny.network(name), tiny.image_processor(size))
    with pytest.raises(ModelError, match=reason) as refused:
        _ = model.architecture
    assert f"'{name}'" in str(refused.value)


def test_a_table_of_the_docs_is_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    written = before + BEGIN + architectures.make_table() + END + after
    if os.environ.get("HEADSCOPE_WRITE_TABLES") == "1":
        PAGE.write_text(written, encoding="utf-8")
        return
    assert page == written, (
        f"the table is old: HEADSCOPE_WRITE_TABLES=1 python -m pytest tests/model/{Path(__file__).name}"
    )


def test_the_table_speaks_of_at_least_forty_and_all_are_verified() -> None:
    rows = [verify(name) for name in FAMILIES]
    assert len(rows) >= 40
    assert {entry.verified for entry in rows} == {"maps, outputs", "maps, projection’s input"}
    assert [name for name in FAMILIES if not FAMILIES[name].verified] == ["xlnet"]

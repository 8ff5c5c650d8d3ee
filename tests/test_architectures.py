"""Every architecture proves its own capture: the invariant, with padding on both sides, on all stacks; and the table of
docs/architectures.md is what these runs found. `HEADSCOPE_WRITE_TABLES=1` writes it anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from headscope.errors import ModelError
from headscope.model.capture import products, watching
from headscope.model.capture.observation import Sighting
from headscope.model.loading import load
from headscope.model.model import Model
from tests import architectures, tiny
from tests.architectures import TOLERANCE, batch, broken_by, result, row, watched
from tests.families import FAMILIES, UNSEEN, UNSEEN_VISION

PAGE = Path(__file__).parent.parent / "docs" / "architectures.md"
BEGIN, END = "<!-- the table, written by tests/test_architectures.py -->\n", "<!-- end of the table -->\n"
SINKS = {"gpt_oss"}
"""part of each row goes to no token"""

SEES_PADDING = {"convbert"}

families = pytest.mark.parametrize("name", FAMILIES)


def stacks(name: str) -> list[Model]:
    model = watched(name)
    return [model.on(stack) for stack in model.stacks]


def sides(name: str) -> tuple[str, ...]:
    padding = FAMILIES[name].padding
    return ("left", "right") if padding == "both" else (padding,)


def hooks(network: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


@families
def test_the_anatomy_is_the_declared_one(name: str) -> None:
    family, model = FAMILIES[name], watched(name)
    found = {on.anatomy.stack: on.anatomy for on in stacks(name)}
    assert {stack: anatomy.numbers for stack, anatomy in found.items()} == dict(family.stacks)
    assert {anatomy.heads for anatomy in found.values()} == {family.heads}
    assert {anatomy.routes for anatomy in found.values()} == {(family.route,)}
    assert any(anatomy.gated for anatomy in found.values()) is family.gated
    assert all(anatomy.verified for anatomy in found.values()) is family.verified
    assert {stack: anatomy.causal for stack, anatomy in found.items()} == {
        stack: stack == "decoder" for stack in family.stacks
    }
    assert model.anatomy.stack == next(iter(family.stacks))


@families
def test_projected_outputs_are_what_the_module_returned(name: str) -> None:
    for model in stacks(name) if FAMILIES[name].verified else ():
        for side in sides(name):
            assert broken_by(model, batch(model, FAMILIES[name], side)) <= TOLERANCE, (model.anatomy.stack, side)


@families
def test_watching_changes_no_bit_and_leaves_nothing_behind(name: str) -> None:
    for model in stacks(name):
        for side in sides(name):
            made = batch(model, FAMILIES[name], side)
            network = model.network.get_encoder() if model.two_stacks and made.source is None else model.network
            unwatched, hooked, interface = result(model, made), hooks(model.network), AttentionInterface.get_interface
            results: list[torch.Tensor] = []
            handle = network.register_forward_hook(lambda _, args, given, held=results: held.append(given[0]))
            model.observe(made, tiny.Seen())
            handle.remove()
            assert torch.equal(results[-1], unwatched), (model.anatomy.stack, side)
            assert hooks(model.network) == hooked
            assert AttentionInterface.get_interface is interface


@families
def test_rows_sum_to_one_and_padding_gets_nothing(name: str) -> None:
    for model in stacks(name):
        for side in sides(name):
            made, see = batch(model, FAMILIES[name], side), tiny.Seen()
            model.observe(made, see)
            real = torch.from_numpy(made.real)
            for attention in see.maps:
                rows = attention.transpose(1, 2)[real]
                keys = real[:, None, None].expand_as(attention).transpose(1, 2)[real]
                sums = rows.sum(-1)
                assert (sums <= 1 + 1e-5).all()
                assert name in SINKS or (sums >= 1 - 1e-5).all()
                assert not rows[~keys].any()
                assert (rows[keys] >= 0).all()


@families
def test_padding_changes_nothing_of_a_text(name: str) -> None:
    """A model in which it does (ConvBERT) is never given any."""
    assert watched(name).ignores_padding is (name not in SEES_PADDING)
    for model in stacks(name) if name not in SEES_PADDING else ():
        made, together = batch(model, FAMILIES[name], "right"), tiny.Seen()
        model.observe(made, together)
        for k, window in enumerate(made.windows):
            alone, n = tiny.Seen(), len(window)
            model.observe(made.of([window], made.pad_id), alone)
            for layer, output in enumerate(alone.outputs):
                atol = 3e-5 * float(output.abs().max())
                torch.testing.assert_close(together.outputs[layer][k, :n], output[0], rtol=0, atol=atol)
                torch.testing.assert_close(together.maps[layer][k, :, :n, :n], alone.maps[layer][0], rtol=0, atol=3e-5)


@families
def test_all_is_as_before_after_an_exception(name: str) -> None:
    model = watched(name)
    made, interface, before = batch(model, FAMILIES[name], "right"), AttentionInterface.get_interface, None
    model.observe(made, tiny.Seen())
    before = hooks(model.network)

    def see(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        raise KeyError(layer)

    with pytest.raises(KeyError):
        model.observe(made, see)
    assert AttentionInterface.get_interface is interface
    assert hooks(model.network) == before
    assert not torch.overrides._get_current_function_mode_stack()
    model.observe(made, tiny.Seen())


# The test of the test: a capture that is wrong breaks the invariant


def permuted(sighting: Sighting) -> Sighting:
    return Sighting(sighting.module, sighting.output.flip(2), sighting.attention, sighting.route)


def turned(sighting: Sighting) -> Sighting:
    return Sighting(sighting.module, sighting.output.flip(1), sighting.attention, sighting.route)


def scaled(sighting: Sighting) -> Sighting:
    return Sighting(sighting.module, sighting.output * 1.0001, sighting.attention, sighting.route)


def mixed(sighting: Sighting) -> Sighting:
    """The layout that is right for one head or one token, and wrong for more."""
    output = sighting.output
    return Sighting(sighting.module, output.transpose(1, 2).reshape(output.shape), sighting.attention, sighting.route)


def another_text(sighting: Sighting) -> Sighting:
    return Sighting(sighting.module, sighting.output.roll(1, 0), sighting.attention, sighting.route)


@pytest.mark.parametrize("wrong", [permuted, turned, scaled, mixed, another_text], ids=lambda wrong: wrong.__name__)
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "mpnet", "bloom", "xglm", "vit", "data2vec-vision"])
def test_a_broken_capture_breaks_the_invariant(
    name: str, wrong: Callable[[Sighting], Sighting], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, family = watched(name), FAMILIES[name]
    made = batch(model, family, "right")
    assert broken_by(model, made) <= TOLERANCE
    route = watching if family.route == "registry" else products
    right = route.Sighting
    monkeypatch.setattr(route, "Sighting", lambda *given: wrong(right(*given)))
    assert broken_by(model, made) > TOLERANCE


@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_a_capture_that_is_wrong_from_the_start_is_taken_where_it_is_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that does something to its heads' outputs before the projection looks just so: what enters counts."""
    route = watching if FAMILIES[name].route == "registry" else products
    right = route.Sighting
    monkeypatch.setattr(route, "Sighting", lambda *given: permuted(right(*given)))
    anatomy = watched(name).anatomy
    # bert's projection stands outside the module that attends, and is then not found; mpnet's is, and gives its input.
    assert (anatomy.verified, anatomy.gated) == ((False, False) if name == "bert" else (True, True))


def test_the_projection_that_is_no_module() -> None:
    """XLNet multiplies with a weight of its own."""
    model = watched("xlnet")
    returned: list[torch.Tensor] = []
    layers = [layer.rel_attn for layer in model.network.layer]
    for layer in layers:
        # post_attention(hidden, attn_vec, residual): what it makes of the heads, before it adds the rest
        own = layer.post_attention

        def spy(hidden: Any, written: torch.Tensor, residual: bool = True, own: Any = own, layer: Any = layer) -> Any:
            returned.append(torch.einsum("ibnd,hnd->ibh", written, layer.o))
            return own(hidden, written, residual)

        layer.post_attention = spy
    try:
        for side in ("left", "right"):
            see, made = tiny.Seen(), batch(model, FAMILIES["xlnet"], side)
            _ = model.anatomy
            returned.clear()
            model.observe(made, see)
            for output, layer, expected in zip(see.outputs, layers, returned, strict=True):
                projected = torch.einsum("bind,hnd->ibh", output, layer.o)
                assert (projected - expected).abs().max() <= TOLERANCE * expected.abs().max()
    finally:
        for layer in layers:
            del layer.post_attention


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama", "deepseek_v3", "vit"])
def test_both_routes_see_the_same(name: str) -> None:
    from headscope.model.capture.watching import watching

    for model in stacks(name):
        made = batch(model, FAMILIES[name], "right")
        seen: dict[str, list[Sighting]] = {"registry": [], "products": []}
        for route, held in seen.items():
            with watching(model.network, held.append, batch=len(made), routes=[route]), torch.inference_mode():  # type: ignore[list-item]
                model.network(**architectures.inputs(model, made)) if made.source or not model.two_stacks else (
                    model.network.get_encoder()(**architectures.inputs(model, made))
                )
        assert len(seen["registry"]) == len(seen["products"]) > 0
        for one, other in zip(*seen.values(), strict=True):
            assert one.module is other.module
            assert torch.equal(one.output, other.output)
            assert torch.equal(one.attention, other.attention)


# What is refused


@pytest.mark.parametrize("name", UNSEEN)
def test_a_model_that_cannot_be_watched_is_named(name: str) -> None:
    model, see = tiny.model(name), tiny.Seen()
    with pytest.raises(ModelError, match=rf"{UNSEEN[name][1]}.*|.*'{name}'") as refused:
        model.observe(tiny.batch(5), see)
    assert name in str(refused.value)
    assert UNSEEN[name][1] in str(refused.value)
    assert see.layers == []


@pytest.mark.parametrize("name", UNSEEN_VISION)
def test_a_vision_model_that_cannot_be_watched_is_named(name: str) -> None:
    options, reason = UNSEEN_VISION[name]
    size = options["image_size"] if isinstance(options["image_size"], int) else options["image_size"][0]
    model = load(tiny.network(name), tiny.image_processor(size))
    with pytest.raises(ModelError, match=reason) as refused:
        _ = model.anatomy
    assert f"'{name}'" in str(refused.value)


def test_a_table_of_the_docs_is_what_was_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    written = before + BEGIN + architectures.table() + END + after
    if os.environ.get("HEADSCOPE_WRITE_TABLES") == "1":
        PAGE.write_text(written, encoding="utf-8")
        return
    assert page == written, "the table is old: HEADSCOPE_WRITE_TABLES=1 python -m pytest tests/test_architectures.py"


def test_the_table_speaks_of_at_least_forty_and_all_are_verified() -> None:
    rows = [row(name) for name in FAMILIES]
    assert len(rows) >= 40
    assert {each.verified for each in rows} == {"yes", "by hand"}
    assert [each.name for each in rows if each.verified == "by hand"] == ["xlnet"]

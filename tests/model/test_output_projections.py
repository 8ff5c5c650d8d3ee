"""The part of the output projection of each head, for every architecture; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headscope.errors import ModelError
from headscope.model.interventions import find_sites
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.output_projections import compute_factors, describe_projections, get_head_projections
from headscope.pruning.removal import remove
from tests.helpers import tiny
from tests.helpers.architectures import batch, watched
from tests.helpers.families import FAMILIES

NO_MODULE = {"xlnet"}
"""the projection of these is a product with a weight, in no module of its own"""


def get_first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def measure_projection_error(model: Model, inputs: Any) -> float:
    """Return the largest relative difference between what a layer's heads add together, by their own parts of the
    projection, and what the projection returned."""
    seen, results = tiny.LayerRecorder(), list[tuple[int, torch.Tensor, torch.Tensor]]()
    sites = find_sites(model)
    counts = dict.fromkeys(sites.calls, 0)

    def record(module: torch.nn.Module, args: tuple[Any, ...], result: Any) -> None:
        layer = sites.calls[module][counts[module]]
        counts[module] += 1
        if layer is not None:
            results.append((layer, args[0].clone(), get_first(result).clone()))

    handles = [module.register_forward_hook(record) for module in sites.calls]
    model.observe(inputs, seen)
    for handle in handles:
        handle.remove()
    projections = get_head_projections(model)
    assert [layer for layer, *_ in results] == list(range(model.architecture.layers))
    largest_error = 0.0
    for layer, given, returned in results:
        site, projection = sites.layers[layer], projections[layer]
        assert site is not None
        output = seen.outputs[layer][:, :, : site.heads, : site.width].double()
        added = torch.einsum("bnhd,hdo->bno", output, projection)
        # What the projection makes of nothing, or of the columns beside the heads, is no head's.
        others = given.movedim(site.axis, -1).clone()
        others[..., : site.heads * site.width] = 0
        with torch.inference_mode():
            rest = get_first(site.module(others.movedim(-1, site.axis)))
        actual = (returned - rest).movedim(site.axis, -1).double()
        if actual.shape != added.shape:  # one text beside the other
            actual = actual.transpose(0, 1) if actual.dim() == 3 else actual.reshape(added.shape)
        largest_error = max(largest_error, float((added - actual).abs().max() / actual.abs().max()))
    return largest_error


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NO_MODULE])
def test_what_heads_add_together_is_what_their_projection_returns(name: str) -> None:
    model = watched(name)
    for stack in model.stacks:
        side = "right" if FAMILIES[name].padding != "none" else "none"
        assert measure_projection_error(model.on(stack), batch(model.on(stack), FAMILIES[name], side)) < 1e-4, stack


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "albert"])
def test_a_factor_gives_the_products_of_what_heads_add(kind: str) -> None:
    model = tiny.model(kind)
    for projection, factor in zip(get_head_projections(model), compute_factors(model), strict=True):
        torch.testing.assert_close(factor @ factor.transpose(1, 2), projection @ projection.transpose(1, 2))
        torch.testing.assert_close(factor, factor.transpose(1, 2))


def test_layers_that_share_a_projection_have_equal_parts() -> None:
    first, *others = get_head_projections(tiny.model("albert"))
    assert others
    assert all(torch.equal(first, other) for other in others)


def test_layers_may_differ_in_the_number_and_width_of_heads() -> None:
    model = load(remove(tiny.model("bert"), "L0H1,L0H2").network, tiny.tokenizer())
    assert [tuple(factor.shape) for factor in compute_factors(model)] == [(2, 8, 8), (4, 8, 8)]


@pytest.mark.parametrize("kind", sorted(NO_MODULE))
def test_a_projection_that_is_no_module_is_refused(kind: str) -> None:
    with pytest.raises(ModelError, match="layer 0 add to the residual stream is not known: what mixes them is no mod"):
        compute_factors(watched(kind))


def test_a_projection_that_does_more_than_its_weight_is_refused() -> None:
    network = tiny.network("bert")
    dense = network.encoder.layer[1].attention.output.dense
    dense.forward = lambda inputs: torch.nn.functional.linear(inputs, 1.5 * dense.weight, dense.bias)
    with pytest.raises(ModelError, match=r"layer 1 .*Linear\) does more than multiply with its weight.*Choose the sim"):
        compute_factors(load(network, tiny.tokenizer()))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("bert", ""), ("llama", ""), ("gemma2", "in all layers: Gemma2RMSNorm"), ("dinov2", ": Dinov2LayerScale")],
)
def test_norms_behind_the_projection_are_named(kind: str, expected: str) -> None:
    note = describe_projections(watched(kind))
    assert note.startswith("without the projection's bias")
    assert note.endswith(expected or "bias")

"""The part of the output projection that each head has: what a head adds to the residual stream is O·W_O^h.

`verification` finds the linear map that mixes the heads of each layer, `interventions.find_sites` where each head
enters it. Here its weight is read, and compared with what the map computes in a run over a few tokens: a module that
does more than multiply with its weight (an adapter) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from headscope.devices import to_float64
from headscope.errors import ModelError
from headscope.model.capture.records import CAPTURE_TOLERANCE
from headscope.model.interventions import Site, find_sites, make_probe
from headscope.model.model import Model

HALF_TOLERANCE = 2e-2
"""the same as `CAPTURE_TOLERANCE` in half precision"""
RESCALING = re.compile("norm|scale", re.IGNORECASE)
"""class names of modules that change the size of what they get"""


def get_projection_weight(module: torch.nn.Module) -> Tensor | None:
    """Return the weight of a linear map as (input, output), in float64; None if it is no plain linear map."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() not in (2, 3):
        return None
    if isinstance(module, Conv1D):
        return to_float64(weight.detach())
    if weight.dim() == 3:  # a convolution: of one token, and not in groups, it is a linear map
        if weight.shape[2] != 1 or getattr(module, "groups", 1) != 1:
            return None
        weight = weight[:, :, 0]
    return to_float64(weight.detach().T)


def get_head_projections(model: Model) -> list[Tensor]:
    """Return for each layer the rows of the output projection of each head, (heads, width, model's width) in float64.

    Raises:
        ModelError: If a layer has no verified projection, or one that is more than a linear map.
    """
    model.check_verified()
    recording = _record_projections(model)
    weights = []
    for layer, (number, site) in enumerate(zip(model.architecture.numbers, find_sites(model).layers, strict=True)):
        reason = _explain_unusable(site, recording.results.get(layer))
        weight = None if site is None else get_projection_weight(site.module)
        if reason or weight is None or site is None:
            raise ModelError(
                f"{model.name}: what the heads of layer {number} add to the residual stream is not known: {reason}. "
                "Choose the similarity dot or centered"
            )
        weights.append(weight[: site.heads * site.width].reshape(site.heads, site.width, -1))
    return weights


def compute_factors(model: Model) -> list[Tensor]:
    """Return for each layer a factor R of each head with R·Rᵀ = W·Wᵀ, W being its rows of the output projection:
    (heads, width, width) in float64."""
    return [factorize(weight) for weight in get_head_projections(model)]


def factorize(weight: Tensor) -> Tensor:
    """Return the symmetric factor R with R·Rᵀ = W·Wᵀ, of matrices W (…, width, any): (…, width, width).

    It is unique, unlike others: sums of mapped outputs add over machines.

    >>> factorize(torch.tensor([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]])).round().tolist()
    [[5.0, 0.0], [0.0, 2.0]]
    """
    values, vectors = torch.linalg.eigh(weight @ weight.transpose(-2, -1))
    root: Tensor = vectors * values.clamp(min=0).sqrt()[..., None, :] @ vectors.transpose(-2, -1)
    return root


def describe_projections(model: Model) -> str:
    """Return what `compute_factors` leaves out between the heads' outputs and the residual stream.

    Raises:
        ModelError: If what the heads add to it is not known.
    """
    get_head_projections(model)
    behind = _record_projections(model).rescaling
    layers = [model.architecture.numbers[layer] for layer in sorted(behind)]
    if not layers:
        return "without the projection's bias"
    names = ", ".join(sorted({name for kinds in behind.values() for name in kinds}))
    which = "all layers" if len(layers) == model.architecture.layers else f"layers {', '.join(map(str, layers))}"
    return (
        f"without the projection's bias, and without what stands between projection and residual stream in {which}: "
        f"{names}"
    )


@dataclass(eq=False)
class _Recording:
    """What the projections of the observed stack got and returned in one run, by layer."""

    results: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    rescaling: dict[int, set[str]] = field(default_factory=dict)
    """names of the modules that get a projection's result itself, and change its size"""
    last: tuple[int, Tensor] | None = None


def _record_projections(model: Model) -> _Recording:
    recording = _Recording()
    with _watch_projections(model, recording):
        model.observe(make_probe(model), lambda *_: None)
    return recording


@contextmanager
def _watch_projections(model: Model, recording: _Recording) -> Iterator[None]:
    calls, counts = find_sites(model).calls, dict[torch.nn.Module, int]()

    def record(module: torch.nn.Module, args: tuple[Any, ...], result: Any) -> None:
        layers = calls[module]
        layer = layers[counts.get(module, 0) % len(layers)]
        counts[module] = counts.get(module, 0) + 1
        recording.last = None
        result = result[0] if isinstance(result, tuple) else result  # with a scale, as I-BERT's layers return it
        if layer is not None and isinstance(result, Tensor):
            recording.results[layer] = args[0].detach().clone(), result.detach().clone()
            recording.last = layer, recording.results[layer][1]

    def compare(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if recording.last is None or not args or not isinstance(args[0], Tensor):
            return
        layer, result = recording.last
        if args[0].shape == result.shape and torch.equal(args[0], result):
            recording.rescaling.setdefault(layer, set()).add(type(module).__name__)

    rescaling = [module for module in model.network.modules() if RESCALING.search(type(module).__name__)]
    handles = [module.register_forward_hook(record) for module in calls]
    handles += [module.register_forward_pre_hook(compare) for module in rescaling if module not in calls]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _explain_unusable(site: Site | None, recorded: tuple[Tensor, Tensor] | None) -> str:
    """Return why the weight of a projection does not say what its heads add; empty if it does."""
    if site is None:
        return "what mixes them is no module of the model"
    name = type(site.module).__name__
    weight = get_projection_weight(site.module)
    if weight is None:
        return f"its output projection is no plain linear map ({name})"
    if recorded is None:
        return f"its output projection ({name}) returns no tensor"
    inputs, result = (to_float64(tensor.movedim(site.axis, -1)) for tensor in recorded)
    bias = getattr(site.module, "bias", None)
    expected = inputs @ weight
    if isinstance(bias, Tensor):
        expected = expected + to_float64(bias.detach())
    is_half = recorded[1].dtype in (torch.float16, torch.bfloat16)
    tolerance = HALF_TOLERANCE if is_half else CAPTURE_TOLERANCE
    if expected.shape != result.shape or not bool((expected - result).abs().max() <= tolerance * result.abs().max()):
        return f"its output projection ({name}) does more than multiply with its weight (merge adapters first)"
    return ""

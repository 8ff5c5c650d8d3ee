"""Which rows of which weights belong to which head, as the gradient shows it.

A row that a head does not use does not change what the head writes: its derivative is exactly 0. So a model need not
be known by name: rows of one head, of a group of heads, side by side or interleaved, all show themselves. This is a
property of the architecture and not of the weights, which are random while it is looked at: a trained head may be so
sure of itself that its derivative vanishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headscope.model.capture.watching import prepared
from headscope.pruning.units import Inputs, Unit, run
from headscope.types import Bools


@dataclass(frozen=True, eq=False)
class Divided:
    """A weight whose indices along one axis belong to different heads."""

    name: str
    """its path within the attention module"""
    axis: int
    users: Bools
    """(head, index): whether the head uses it"""

    @property
    def unused(self) -> Bools:
        """Indices that no head used in the run, as distances longer than its texts: they stay."""
        return np.asarray(~self.users.any(axis=0))


@dataclass(frozen=True, eq=False)
class Division:
    """How an attention module divides its weights among its heads."""

    divided: tuple[Divided, ...]
    groups: tuple[frozenset[int], ...]
    """heads that share their keys and values, in order; none where each has its own"""

    def of(self, name: str) -> Divided | None:
        return next((each for each in self.divided if each.name == name), None)


def find_division(network: Any, unit: Unit, inputs: Inputs) -> Division:
    """Run a network once and derive what each head writes by the weights of its attention module."""
    attention = network.base_model.get_submodule(unit.attention)
    projection = network.base_model.get_submodule(unit.projection)
    mixing = {id(weight) for weight in projection.parameters()}
    weights = {name: weight for name, weight in attention.named_parameters() if id(weight) not in mixing}
    entered: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    try:
        with _random(network, weights), prepared(network), torch.enable_grad():
            run(network, inputs)
            gradients = _gradients(unit, entered[0], weights) if entered and entered[0].requires_grad else []
    finally:
        hook.remove()
    divided = [made for name in weights for made in [_divided(name, [held[name] for held in gradients])] if made]
    divided = [*divided, *_biases(weights, divided)]
    return Division(tuple(divided), _groups(divided, unit.heads))


@contextmanager
def _random(network: Any, weights: dict[str, torch.nn.Parameter]) -> Iterator[None]:
    """Within this context these weights are small random numbers, and the only ones to derive by."""
    asked = [(weight, weight.requires_grad) for weight in network.parameters()]
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    random = torch.Generator().manual_seed(0)
    try:
        for weight, _ in asked:
            weight.requires_grad_(False)
        for weight in weights.values():
            noise = torch.randn(weight.shape, generator=random) / max(weight.shape) ** 0.5
            weight.copy_(noise)
            weight.requires_grad_(True)
        yield
    finally:
        for weight, asks in asked:
            weight.requires_grad_(asks)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name])


def _gradients(unit: Unit, entered: torch.Tensor, weights: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
    """For each head, the derivatives of a random sum of what it writes."""
    channels = entered.movedim(unit.channel_axis, -1)
    noise = torch.randn(channels.shape, generator=torch.Generator().manual_seed(1)).to(channels)
    made = []
    for head in range(unit.heads):
        own = slice(head * unit.width, (head + 1) * unit.width)
        loss = (channels[..., own] * noise[..., own]).sum()
        found = torch.autograd.grad(loss, list(weights.values()), retain_graph=True, allow_unused=True)
        made.append(dict(zip(weights, found, strict=True)))
    return made


def _divided(name: str, gradients: list[torch.Tensor | None]) -> Divided | None:
    held = [gradient for gradient in gradients if gradient is not None]
    if not held or len(held) < len(gradients):
        return None
    used = torch.stack([gradient != 0 for gradient in held])
    found = []
    for axis in range(used.dim() - 1):
        others = [k + 1 for k in range(used.dim() - 1) if k != axis]
        users = (used.any(dim=others) if others else used).cpu().numpy()
        if (users.any(axis=0) & ~users.all(axis=0)).any():
            found.append(Divided(name, axis, users))
    return found[0] if len(found) == 1 else None


def _biases(weights: dict[str, torch.nn.Parameter], divided: list[Divided]) -> list[Divided]:
    """A bias goes with the rows of its weight: that of keys changes no map, and its own derivative is 0."""
    made = []
    for each in list(divided):
        bias = each.name.removesuffix("weight") + "bias"
        if each.name.endswith("weight") and bias in weights and weights[bias].shape == (each.users.shape[1],):
            divided[:] = [other for other in divided if other.name != bias]
            made.append(Divided(bias, 0, each.users))
    return made


def _groups(divided: list[Divided], heads: int) -> tuple[frozenset[int], ...]:
    sets = {frozenset(np.flatnonzero(users).tolist()) for each in divided for users in each.users.T}
    shared = sorted((held for held in sets if len(held) > 1), key=min)
    whole = sorted(head for held in shared for head in held) == list(range(heads))
    return tuple(shared) if whole else ()

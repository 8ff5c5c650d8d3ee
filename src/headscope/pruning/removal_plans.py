"""Plan which heads an attention module loses, and which indices of its weights remain.

Which rows of which weights belong to which head is found out from gradients. A row that a head does not use does not
change what the head writes: its derivative is exactly 0. So no model type has to be known: rows of one head or of a
group of heads, side by side or interleaved, are all found this way. This is a property of the architecture and not of
the weights, which are random during the run: the softmax of a trained head may be so saturated that its derivative
vanishes.

A module has at least one head. Where groups of heads share their keys, all groups must have the same size: either
smaller groups keep some heads that are silent, or every head gets keys of its own, whichever is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from headscope.array_types import Bools, Ints
from headscope.model.capture.attention_interface import prepare_network
from headscope.model.head_surgery import Inputs, KeptIndices, Sizes, Unit, run_network

# -- which weights belong to which head -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DividedWeight:
    """A weight whose indices along one axis belong to different heads."""

    name: str
    """its path within the attention module"""
    axis: int
    users: Bools
    """(head, index): whether the head uses it"""

    @property
    def unused(self) -> Bools:
        """Indices that no head used in the run, such as distances longer than its texts: they stay."""
        return np.asarray(~self.users.any(axis=0))


@dataclass(frozen=True, eq=False)
class Division:
    """How the weights of an attention module are divided among its heads."""

    weights: tuple[DividedWeight, ...]
    groups: tuple[frozenset[int], ...]
    """heads that share their keys and values, in order; none where each has its own"""

    def find_weight(self, name: str) -> DividedWeight | None:
        return next((weight for weight in self.weights if weight.name == name), None)


def find_division(network: Any, unit: Unit, inputs: Inputs) -> Division:
    """Run a network once and differentiate what each head writes by the weights of its attention module."""
    attention = network.base_model.get_submodule(unit.attention)
    projection = network.base_model.get_submodule(unit.projection)
    projection_weights = {id(weight) for weight in projection.parameters()}
    weights = {name: weight for name, weight in attention.named_parameters() if id(weight) not in projection_weights}
    entered: list[torch.Tensor] = []
    hook = projection.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    try:
        with _set_random_weights(network, weights), prepare_network(network), torch.enable_grad():
            run_network(network, inputs)
            gradients = _compute_gradients(unit, entered[0], weights) if entered and entered[0].requires_grad else []
    finally:
        hook.remove()
    divided = [
        weight for name in weights if (weight := _divide_weight(name, [by_weight[name] for by_weight in gradients]))
    ]
    divided = [*divided, *_divide_biases(weights, divided)]
    return Division(tuple(divided), _find_groups(divided, unit.heads))


@contextmanager
def _set_random_weights(network: Any, weights: dict[str, torch.nn.Parameter]) -> Iterator[None]:
    """Within this context these weights are small random numbers, and the only ones that require gradients."""
    flags = [(weight, weight.requires_grad) for weight in network.parameters()]
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    random = torch.Generator().manual_seed(0)
    try:
        for weight, _ in flags:
            weight.requires_grad_(False)
        for weight in weights.values():
            noise = torch.randn(weight.shape, generator=random) / max(weight.shape) ** 0.5
            weight.copy_(noise)
            weight.requires_grad_(True)
        yield
    finally:
        for weight, requires_grad in flags:
            weight.requires_grad_(requires_grad)
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(before[name])


def _compute_gradients(
    unit: Unit, entered: torch.Tensor, weights: dict[str, torch.nn.Parameter]
) -> list[dict[str, Any]]:
    """Return, for each head, the derivatives of a random sum of what it writes, by weight."""
    channels = entered.movedim(unit.channel_axis, -1)
    noise = torch.randn(channels.shape, generator=torch.Generator().manual_seed(1)).to(channels)
    gradients = []
    for head in range(unit.heads):
        own = slice(head * unit.width, (head + 1) * unit.width)
        loss = (channels[..., own] * noise[..., own]).sum()
        derivatives = torch.autograd.grad(loss, list(weights.values()), retain_graph=True, allow_unused=True)
        gradients.append(dict(zip(weights, derivatives, strict=True)))
    return gradients


def _divide_weight(name: str, gradients: list[torch.Tensor | None]) -> DividedWeight | None:
    """Return how the heads divide a weight, given its gradient for each head; None where they do not."""
    present = [gradient for gradient in gradients if gradient is not None]
    if not present or len(present) < len(gradients):
        return None
    used = torch.stack([gradient != 0 for gradient in present])
    candidates = []
    for axis in range(used.dim() - 1):
        other_axes = [k + 1 for k in range(used.dim() - 1) if k != axis]
        users = (used.any(dim=other_axes) if other_axes else used).cpu().numpy()
        if (users.any(axis=0) & ~users.all(axis=0)).any():
            candidates.append(DividedWeight(name, axis, users))
    return candidates[0] if len(candidates) == 1 else None


def _divide_biases(weights: dict[str, torch.nn.Parameter], divided: list[DividedWeight]) -> list[DividedWeight]:
    """Return the biases of divided weights, divided alike, and take them out of `divided`.

    The gradient of a bias may not show its division: a bias of keys shifts all scores of a query alike, so its
    derivative is 0.
    """
    biases = []
    for weight in list(divided):
        bias = weight.name.removesuffix("weight") + "bias"
        if weight.name.endswith("weight") and bias in weights and weights[bias].shape == (weight.users.shape[1],):
            divided[:] = [other for other in divided if other.name != bias]
            biases.append(DividedWeight(bias, 0, weight.users))
    return biases


def _find_groups(divided: list[DividedWeight], heads: int) -> tuple[frozenset[int], ...]:
    sets = {frozenset(np.flatnonzero(users).tolist()) for weight in divided for users in weight.users.T}
    shared = sorted((group for group in sets if len(group) > 1), key=min)
    covers_all = sorted(head for group in shared for head in group) == list(range(heads))
    return tuple(shared) if covers_all else ()


# -- plans -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RemovalPlan:
    """One way to take heads out of a unit."""

    stay: tuple[int, ...]
    """heads that remain in the module, in order, silent ones included"""
    selections: dict[str, list[KeptIndices]]
    """what remains of the weights, by their paths in the base model"""
    before: Sizes
    after: Sizes
    size: int
    """elements in all these weights together"""


def plan_removals(
    attention: Module, projection: Module, unit: Unit, division: Division, out: set[int]
) -> list[RemovalPlan]:
    """Return the ways to take the heads `out` out of a unit, smallest first; only those that make it smaller."""
    if not division.weights:
        return []
    kept_heads = [head for head in range(unit.heads) if head not in out] or [min(out)]
    ways = [(_pad_groups(kept_heads, division.groups), False)]
    if ways[0][0] != tuple(kept_heads):
        ways.append((tuple(kept_heads), True))
    plans = [_make_plan(attention, projection, unit, division, stay, own_keys) for stay, own_keys in ways]
    unchanged = _make_plan(attention, projection, unit, division, tuple(range(unit.heads)), False)
    return sorted((plan for plan in plans if plan.size < unchanged.size), key=lambda plan: plan.size)


def _pad_groups(kept_heads: list[int], groups: tuple[frozenset[int], ...]) -> tuple[int, ...]:
    """Return the heads kept and, where groups would differ in size, others that remain as silent ones."""
    remaining = [(group & set(kept_heads), group) for group in groups if group & set(kept_heads)]
    if not remaining:
        return tuple(kept_heads)
    size = max(len(own) for own, _ in remaining)
    return tuple(sorted(head for own, group in remaining for head in [*own, *sorted(group - own)[: size - len(own)]]))


def _make_plan(
    attention: Module, projection: Module, unit: Unit, division: Division, stay: tuple[int, ...], own_keys: bool
) -> RemovalPlan:
    weights = dict(attention.named_parameters())
    kept_indices, size = {}, 0
    for divided in division.weights:
        indices = _select_with_own_keys(divided, stay) if own_keys else _select_indices(divided, stay)
        kept_indices[f"{unit.attention}.{divided.name}"] = [KeptIndices(divided.axis, indices)]
        size += len(indices) * weights[divided.name].numel() // weights[divided.name].shape[divided.axis]
    output_weight: torch.Tensor = projection.weight  # type: ignore[assignment]
    other_columns = range(unit.heads * unit.width, output_weight.shape[unit.weight_axis])
    columns = [*unit.list_columns(stay), *other_columns]
    kept_indices[f"{unit.projection}.weight"] = [KeptIndices(unit.weight_axis, columns)]
    size += len(columns) * output_weight.numel() // output_weight.shape[unit.weight_axis]
    groups = [group for group in division.groups if group & set(stay)]
    key_heads = len(stay) if own_keys or not groups else len(groups)
    before = Sizes(unit.heads, len(division.groups) or unit.heads, unit.width)
    return RemovalPlan(stay, kept_indices, before, Sizes(len(stay), key_heads, unit.width), size)


def _select_indices(weight: DividedWeight, stay: tuple[int, ...]) -> list[int]:
    return np.flatnonzero(weight.users[list(stay)].any(axis=0) | weight.unused).tolist()


def _select_with_own_keys(weight: DividedWeight, stay: tuple[int, ...]) -> list[int]:
    """Return the indices that remain, with those of shared keys and values repeated for each head."""
    indices: list[int] = []
    for part in _split_parts(weight):
        is_shared = weight.users[:, part].sum(axis=0).max() > 1
        for head in stay if is_shared else [None]:
            users = weight.users[list(stay) if head is None else [head]][:, part].any(axis=0)
            indices += part[users | weight.unused[part]].tolist()
    return indices


def _split_parts(weight: DividedWeight) -> list[Ints]:
    """Split the indices into queries, keys and values: a new part begins where the heads start again from the first."""
    first_user = np.where(weight.unused, -1, weight.users.argmax(axis=0))
    is_shared = weight.users.sum(axis=0) > 1
    ends = [k + 1 for k, (a, b) in enumerate(pairwise(first_user)) if b < a or is_shared[k] != is_shared[k + 1]]
    return np.split(np.arange(len(first_user)), ends)

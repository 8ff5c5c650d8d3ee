"""Plan which heads an attention module keeps so that its shapes stay valid, and which indices of its weights remain.

A module has at least one head. Where groups of heads share their keys, all groups must have the same size: either
smaller groups keep some heads that are silent, or every head gets keys of its own, whichever is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn import Module

from headscope.array_types import Ints
from headscope.pruning.module_changes import KeptIndices
from headscope.pruning.removal_units import Unit
from headscope.pruning.size_attributes import Sizes
from headscope.pruning.weight_division import DividedWeight, Division


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

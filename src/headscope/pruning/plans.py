"""Which heads an attention module keeps so that its shapes work out, and what of its weights that leaves.

A module has at least one head. Where heads share their keys in groups, all groups are of one size: those with fewer
heads keep some that are silent, or every head gets keys of its own, whichever is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch.nn import Module

from headscope.pruning.changes import Kept
from headscope.pruning.division import Divided, Division
from headscope.pruning.numbers import Sizes
from headscope.pruning.units import Unit
from headscope.types import Ints


@dataclass(frozen=True, eq=False)
class Plan:
    """One way to take heads out of a unit."""

    stay: tuple[int, ...]
    """heads that are there afterwards, in order, silent ones included"""
    kept: dict[str, list[Kept]]
    """what stays of the weights, by their paths in the base model"""
    before: Sizes
    after: Sizes
    size: int
    """of all these weights"""


def plans(attention: Module, projection: Module, unit: Unit, division: Division, out: set[int]) -> list[Plan]:
    """The ways to take the heads `out` out of a unit, the smallest first; none that would make nothing smaller."""
    if not division.divided:
        return []
    kept = [head for head in range(unit.heads) if head not in out] or [min(out)]
    ways = [(_in_equal_groups(kept, division.groups), False)]
    if ways[0][0] != tuple(kept):
        ways.append((tuple(kept), True))
    made = [_plan(attention, projection, unit, division, stay, own_keys) for stay, own_keys in ways]
    whole = _plan(attention, projection, unit, division, tuple(range(unit.heads)), False)
    return sorted((plan for plan in made if plan.size < whole.size), key=lambda plan: plan.size)


def _in_equal_groups(kept: list[int], groups: tuple[frozenset[int], ...]) -> tuple[int, ...]:
    """The heads kept, and where groups would be of different size, others that stay as silent ones."""
    left = [(group & set(kept), group) for group in groups if group & set(kept)]
    if not left:
        return tuple(kept)
    most = max(len(own) for own, _ in left)
    return tuple(sorted(head for own, group in left for head in [*own, *sorted(group - own)[: most - len(own)]]))


def _plan(
    attention: Module, projection: Module, unit: Unit, division: Division, stay: tuple[int, ...], own: bool
) -> Plan:
    weights = dict(attention.named_parameters())
    kept, size = {}, 0
    for each in division.divided:
        indices = _with_own_keys(each, stay) if own else _indices(each, stay)
        kept[f"{unit.attention}.{each.name}"] = [Kept(each.axis, indices)]
        size += len(indices) * weights[each.name].numel() // weights[each.name].shape[each.axis]
    mixing: torch.Tensor = projection.weight  # type: ignore[assignment]
    beside = range(unit.heads * unit.width, mixing.shape[unit.weight_axis])
    columns = [*unit.columns(stay), *beside]
    kept[f"{unit.projection}.weight"] = [Kept(unit.weight_axis, columns)]
    size += len(columns) * mixing.numel() // mixing.shape[unit.weight_axis]
    groups = [group for group in division.groups if group & set(stay)]
    keys = len(stay) if own or not groups else len(groups)
    before = Sizes(unit.heads, len(division.groups) or unit.heads, unit.width)
    return Plan(stay, kept, before, Sizes(len(stay), keys, unit.width), size)


def _indices(each: Divided, stay: tuple[int, ...]) -> list[int]:
    return np.flatnonzero(each.users[list(stay)].any(axis=0) | each.unused).tolist()


def _with_own_keys(each: Divided, stay: tuple[int, ...]) -> list[int]:
    """The indices that stay, those of shared keys and values once for each head."""
    found: list[int] = []
    for part in _parts(each):
        shared = each.users[:, part].sum(axis=0).max() > 1
        for head in stay if shared else [None]:
            users = each.users[list(stay) if head is None else [head]][:, part].any(axis=0)
            found += part[users | each.unused[part]].tolist()
    return found


def _parts(each: Divided) -> list[Ints]:
    """Queries, keys, values: in each the heads come in order, so where they start again, the next one begins."""
    first = np.where(each.unused, -1, each.users.argmax(axis=0))
    many = each.users.sum(axis=0) > 1
    ends = [k + 1 for k, (a, b) in enumerate(pairwise(first)) if b < a or many[k] != many[k + 1]]
    return np.split(np.arange(len(first)), ends)

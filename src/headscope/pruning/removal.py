"""Removal of heads: planned for each attention module, then carried out.

Remove heads from a network where its architecture allows it; silence them where it does not.

Every change is first applied to a copy in which the heads are silent, and is kept only if the copy's results stay the
same: there, what a removed head would have written is 0 already.

Plan which heads an attention module loses, and which indices of its weights remain.

Which rows of which weights belong to which head is found out from gradients. A row that a head does not use does not
change what the head writes: its derivative is exactly 0. So no model type has to be known: rows of one head or of a
group of heads, side by side or interleaved, are all found this way. This is a property of the architecture and not of
the weights, which are random during the run: the softmax of a trained head may be so saturated that its derivative
vanishes.

A module has at least one head. Where groups of heads share their keys, all groups must have the same size: either
smaller groups keep some heads that are silent, or every head gets keys of its own, whichever is smaller.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.nn import Module

from headscope.array_types import Bools, Ints
from headscope.devices import find_float64_device
from headscope.errors import ModelError, StudyError
from headscope.head_selection import Heads
from headscope.model.capture.attention_interface import prepare_network
from headscope.model.head_surgery import (
    Change,
    Inputs,
    KeptIndices,
    Sizes,
    Unit,
    capture_results,
    collect_config_numbers,
    collect_module_numbers,
    convert_inputs,
    find_units,
    has_same_results,
    make_trial_inputs,
    measure_difference,
    run_network,
)
from headscope.model.interventions import resolve_heads
from headscope.model.model import Model

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


How = Literal["auto", "remove", "mask"]
Outcome = Literal["whole", "removed", "masked"]
MIXED = "what its heads need is not divided among them"
SHARED = "heads share their keys, and the layer would not get smaller"
DEPENDS = "other parts of the model depend on the number of its heads"
VARIANTS = 4
"""ways to change the integers of an attention module; see `_Trial._make_change`"""


@dataclass(frozen=True)
class LayerRemoval:
    """What was done to the heads of one layer."""

    layer: int
    out: tuple[int, ...]
    """heads that no longer write anything"""
    how: Outcome
    """whole: nothing to remove; removed: its maps are narrower; masked: columns of its projection are 0"""
    silent: tuple[int, ...]
    """heads among `out` that are still in the module because its shapes need them"""
    before: Sizes
    sizes: Sizes
    """of the module now"""
    why: str = ""
    """why heads were masked and not removed"""


@dataclass(frozen=True, eq=False)
class Removal:
    """A network without some heads."""

    network: Any
    layers: tuple[LayerRemoval, ...]
    changes: tuple[Change, ...]
    """the changes made, in order; they can be applied to any network of the same shape"""
    difference: float
    """largest difference between its results and those with the same heads silent, relative to the largest value"""
    inputs: Inputs
    """the inputs on which that was measured"""
    expected: torch.Tensor
    """results of the network with silent heads for these inputs, in float64 if it runs so"""


def remove(model: Model, heads: Heads, *, how: How = "auto", in_place: bool = False) -> Removal:
    """Remove heads from a copy of a model's network, or from the network itself.

    Args:
        heads: Heads to remove, such as `L0H1,L3H4-7`, or pairs of numbers.
        how: `auto` removes what it can and silences the rest; `remove` fails where a head cannot be removed; `mask`
            only silences.
        in_place: Change the model's own network. The `Model` must then be made anew:
            `headscope.load(network, tokenizer)`.

    >>> import headscope
    >>> from headscope.pruning.removal import remove
    >>> removal = remove(headscope.load(), "L0H1-11")
    >>> tuple(removal.network.encoder.layer[0].attention.self.query.weight.shape)
    (32, 384)
    """
    check_how(how)
    if getattr(model.network, "is_quantized", False):
        raise ModelError(f"{model.name}: its weights are quantized, and rows cannot be taken out: load it unquantized")
    units, out = find_units(model), _group_by_layer(model, heads)
    trial = _Trial(model, units, {unit: set(out[unit.layers[0]]) for unit in units})
    if how != "mask":
        trial.remove_heads()
    failed = [unit for unit in units if trial.out[unit] and unit not in trial.plans]
    if how == "remove" and failed:
        layers = ", ".join(str(layer) for unit in failed for layer in unit.layers)
        raise ModelError(
            f"{model.name}: heads of the model type {model.type!r} cannot be removed in layer {layers}: "
            f"{trial.reasons[failed[0]]}. --how mask silences them, --how auto does what can be done"
        )
    return trial.finish(in_place=in_place)


def check_how(how: str) -> None:
    """Raise a StudyError unless it is one of `How`."""
    if how not in get_args(How):
        raise StudyError(f"how is {how!r}: choose one of {', '.join(get_args(How))}")


def _group_by_layer(model: Model, heads: Heads) -> dict[int, tuple[int, ...]]:
    """Return the heads to remove by layer; layers that share a module must agree."""
    pairs = resolve_heads(model.architecture, heads)
    out = {number: tuple(sorted(h for layer, h in pairs if layer == number)) for number in model.architecture.numbers}
    for unit in find_units(model):
        if len({out[layer] for layer in unit.layers}) > 1:
            layers = ", ".join(map(str, unit.layers))
            raise StudyError(
                f"{model.name}: the layers {layers} share one attention module: a head is removed in all of them or in "
                "none"
            )
    return out


class _Trial:
    """A copy of a network from which heads are removed, unit by unit, as long as its results stay the same."""

    def __init__(self, model: Model, units: list[Unit], out: dict[Unit, set[int]]) -> None:
        self.model, self.units, self.out = model, units, out
        self.changes = [Change(zeroed=unit.select_silenced(sorted(out[unit]))) for unit in units if out[unit]]
        self.copy, self.inputs, self.expected = self._make_silenced_copy()
        self.plans: dict[Unit, RemovalPlan] = {}
        """the plans that worked"""
        self.reasons: dict[Unit, str] = {}
        """why heads of a unit cannot be removed"""
        self._divisions: dict[Any, Division] = {}
        self._variant = 0

    def _make_silenced_copy(self) -> tuple[Any, Inputs, torch.Tensor]:
        """Return a copy with the heads silent, its inputs and its results, in float64 if it runs so.

        In deep models float32 rounding errors grow so large that results could not be compared.
        """
        try:
            trial = self._run_with_dtype(torch.float64)
        except (RuntimeError, TypeError, ValueError):  # some models run in their own dtype only
            return self._run_with_dtype(torch.float32)
        return trial if bool(trial[2].isfinite().all()) else self._run_with_dtype(torch.float32)

    def _run_with_dtype(self, dtype: torch.dtype) -> tuple[Any, Inputs, torch.Tensor]:
        device = find_float64_device(self.model.device)
        inputs = {name: tensor.to(device) for name, tensor in make_trial_inputs(self.model).items()}
        inputs, network = convert_inputs(inputs, dtype), copy.deepcopy(self.model.network).to(device, dtype)
        for change in self.changes:
            change.apply(network)
        return network, inputs, capture_results(network, inputs)[0]

    def remove_heads(self) -> None:
        affected = [unit for unit in self.units if self.out[unit]]
        left = [unit for unit in affected if not self._remove_together([unit])]
        # T5's layers share one table of biases for all heads: they can lose a head together, or not at all.
        if len(left) > 1 and len({frozenset(self.out[unit]) for unit in left}) == 1:
            self._remove_together(left)

    def _remove_together(self, units: list[Unit]) -> bool:
        """Try all ways to remove the heads of these units at the same time; return whether one worked."""
        plans_by_unit = [self._plan_unit(unit) for unit in units]
        if not all(plans_by_unit):
            return False
        self.reasons |= dict.fromkeys(units, DEPENDS)
        expected = capture_results(self.copy, self.inputs, units)
        for plans in zip(*plans_by_unit, strict=False):
            for k in range(VARIANTS):
                variant = (self._variant + k) % VARIANTS  # the one that worked last comes first
                changes = [self._make_change(unit, plan, variant) for unit, plan in zip(units, plans, strict=True)]
                undo = [change.apply(self.copy) for change in changes]
                if has_same_results(self.copy, self.inputs, units, expected):
                    self._variant = variant
                    self.changes += changes
                    self.plans |= dict(zip(units, plans, strict=True))
                    return True
                for restore in reversed(undo):
                    restore()
        return False

    def _plan_unit(self, unit: Unit) -> list[RemovalPlan]:
        attention = self.copy.base_model.get_submodule(unit.attention)
        projection = self.copy.base_model.get_submodule(unit.projection)
        shapes = tuple((name, tuple(weight.shape)) for name, weight in attention.named_parameters())
        key = (type(attention), shapes)
        if key not in self._divisions:
            self._divisions[key] = find_division(self.copy, unit, self.inputs)
        division = self._divisions[key]
        self.reasons[unit] = SHARED if division.groups else MIXED
        return plan_removals(attention, projection, unit, division, self.out[unit])

    def _make_change(self, unit: Unit, plan: RemovalPlan, variant: int) -> Change:
        """Return one of four variants: sizes that may be the model's are changed or not; the configuration, too."""
        attention = self.copy.base_model.get_submodule(unit.attention)
        numbers = collect_module_numbers(
            attention, unit.attention, plan.before, plan.after, model_sizes=variant % 2 == 0
        )
        config_numbers = (
            collect_config_numbers(attention.config, plan.before, plan.after)
            if variant > 1 and hasattr(attention, "config")
            else {}
        )
        config = {unit.attention: config_numbers} if config_numbers else {}
        return Change(selections=plan.selections, numbers=numbers, config=config)

    def finish(self, *, in_place: bool) -> Removal:
        """Apply the changes to the model's network or a copy of it. The trial cannot be used afterwards."""
        result = capture_results(self.copy, self.inputs)[0]
        del self.copy
        network = self.model.network if in_place else copy.deepcopy(self.model.network)
        for change in self.changes:
            change.apply(network)
        layers = [replace(self._describe_unit(unit), layer=layer) for unit in self.units for layer in unit.layers]
        return Removal(
            network,
            tuple(sorted(layers, key=lambda layer: layer.layer)),
            tuple(self.changes),
            measure_difference(self.expected, result),
            self.inputs,
            self.expected,
        )

    def _describe_unit(self, unit: Unit) -> LayerRemoval:
        out, plan = tuple(sorted(self.out[unit])), self.plans.get(unit)
        if plan is not None:
            silent = tuple(head for head in plan.stay if head in self.out[unit])
            return LayerRemoval(0, out, "removed", silent, plan.before, plan.after)
        sizes = Sizes(unit.heads, unit.heads, unit.width)
        return LayerRemoval(0, out, "masked" if out else "whole", out, sizes, sizes, self.reasons.get(unit, ""))

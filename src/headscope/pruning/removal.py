"""Remove heads from a network where its architecture allows it; silence them where it does not.

Every change is first applied to a copy in which the heads are silent, and is kept only if the copy's results stay the
same: there, what a removed head would have written is 0 already.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from headscope.devices import find_float64_device
from headscope.errors import ModelError, StudyError
from headscope.head_selection import Heads
from headscope.model.head_surgery import (
    Change,
    Inputs,
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
)
from headscope.model.interventions import resolve_heads
from headscope.model.model import Model
from headscope.pruning.removal_plans import Division, RemovalPlan, find_division, plan_removals

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

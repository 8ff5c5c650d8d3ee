"""Taking heads out of a network for real, where its architecture allows it; else making them silent.

Every change is first made to a copy in which the heads are silent, and stays only if the copy still gives the same:
there, what a removed head would have written is 0 already.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from headscope.devices import find_float64_device
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.pruning.changes import Change
from headscope.pruning.division import Division, find_division
from headscope.pruning.naming import Heads, chosen
from headscope.pruning.numbers import Sizes, of_config, of_modules
from headscope.pruning.plans import Plan, plans
from headscope.pruning.units import Inputs, Unit, agree, difference, in_type, results, trial_inputs, units

How = Literal["auto", "remove", "mask"]
Way = Literal["whole", "removed", "masked"]
MIXED = "what its heads need is not divided among them"
SHARED = "heads share their keys, and the layer would not get smaller"
DEPENDS = "other parts of the model depend on the number of its heads"


@dataclass(frozen=True)
class LayerRemoval:
    """What became of the heads of one layer."""

    layer: int
    out: tuple[int, ...]
    """heads that write nothing any more"""
    how: Way
    """whole: nothing was asked for; removed: its maps are narrower; masked: columns of its projection are 0"""
    silent: tuple[int, ...]
    """heads among `out` that are still there, because shapes need them"""
    before: Sizes
    sizes: Sizes
    """of what is there now"""
    why: str = ""
    """it was not removed"""


@dataclass(frozen=True, eq=False)
class Removal:
    """A network without some heads."""

    network: Any
    layers: tuple[LayerRemoval, ...]
    changes: tuple[Change, ...]
    """what was done, in order, and can be done to a network of the same shape"""
    difference: float
    """largest difference between its results and those with the same heads silent, relative to the largest value"""
    inputs: Inputs
    """what it was run on to measure that"""
    expected: torch.Tensor
    """what the network with silent heads made of it, in float64 where it runs so"""


def remove(model: Model, heads: Heads, *, how: How = "auto", in_place: bool = False) -> Removal:
    """Take heads (`L0H1,L3H4-7`, or pairs of numbers) out of a copy of a model's network, or out of itself `in_place`.

    `auto` takes out what can be and silences the rest; `remove` refuses where something cannot; `mask` only silences.
    A `Model` whose network was changed in place has to be loaded anew: `headscope.load(network, tokenizer)`.

    >>> import headscope
    >>> from headscope.pruning.removal import remove
    >>> removal = remove(headscope.load(), "L0H1-11")
    >>> tuple(removal.network.encoder.layer[0].attention.self.query.weight.shape)
    (32, 384)
    """
    if how not in get_args(How):
        raise StudyError(f"how is {how!r}: choose one of {', '.join(get_args(How))}")
    if getattr(model.network, "is_quantized", False):
        raise ModelError(f"{model.name}: its weights are quantized, and rows cannot be taken out: load it unquantized")
    found, out = units(model), _out(model, heads)
    trial = _Trial(model, found, {unit: set(out[unit.layers[0]]) for unit in found})
    if how != "mask":
        trial.take_out()
    stuck = [unit for unit in found if trial.out[unit] and unit not in trial.taken]
    if how == "remove" and stuck:
        layers = ", ".join(str(layer) for unit in stuck for layer in unit.layers)
        raise ModelError(
            f"{model.name}: heads of the model type {model.type!r} cannot be removed in layer {layers}: "
            f"{trial.why[stuck[0]]}. --how mask silences them, --how auto does what can be done"
        )
    return trial.removal(in_place=in_place)


def _out(model: Model, heads: Heads) -> dict[int, tuple[int, ...]]:
    """The heads to go by layer; layers that share a module must agree."""
    asked = chosen(model.anatomy, heads)
    out = {number: tuple(sorted(h for layer, h in asked if layer == number)) for number in model.anatomy.numbers}
    for unit in units(model):
        if len({out[layer] for layer in unit.layers}) > 1:
            layers = ", ".join(map(str, unit.layers))
            raise StudyError(
                f"{model.name}: the layers {layers} share one attention module: a head is removed in all of them or in "
                "none"
            )
    return out


class _Trial:
    """A copy in which heads go, unit by unit, as long as it gives what it gave with them silent."""

    def __init__(self, model: Model, found: list[Unit], out: dict[Unit, set[int]]) -> None:
        self.model, self.units, self.out = model, found, out
        self.changes = [Change(zeroed=unit.silent(sorted(out[unit]))) for unit in found if out[unit]]
        self.copy, self.inputs, self.expected = self._silenced()
        self.taken: dict[Unit, Plan] = {}
        self.why: dict[Unit, str] = {}
        self._divisions: dict[Any, Division] = {}
        self._variant = 0

    def _silenced(self) -> tuple[Any, Inputs, torch.Tensor]:
        """The copy with these heads silent, in float64 where it runs so: deep models make large differences of what
        float32 rounds, and nothing could be told from them."""
        try:
            made = self._run_in(torch.float64)
        except (RuntimeError, TypeError, ValueError):  # some models only run in what they were made for
            return self._run_in(torch.float32)
        return made if bool(made[2].isfinite().all()) else self._run_in(torch.float32)

    def _run_in(self, kind: torch.dtype) -> tuple[Any, Inputs, torch.Tensor]:
        place = find_float64_device(self.model.device)
        inputs = {name: given.to(place) for name, given in trial_inputs(self.model).items()}
        inputs, made = in_type(inputs, kind), copy.deepcopy(self.model.network).to(place, kind)
        for change in self.changes:
            change.make(made)
        return made, inputs, results(made, inputs)[0]

    def take_out(self) -> None:
        asked = [unit for unit in self.units if self.out[unit]]
        left = [unit for unit in asked if not self._take([unit])]
        # T5's layers share one table of biases for all heads: they can lose a head together, or not at all.
        if len(left) > 1 and len({frozenset(self.out[unit]) for unit in left}) == 1:
            self._take(left)

    def _take(self, together: list[Unit]) -> bool:
        """Try all ways to take heads out of these units at the same time."""
        ways = [self._plans(unit) for unit in together]
        if not all(ways):
            return False
        self.why |= dict.fromkeys(together, DEPENDS)
        expected = results(self.copy, self.inputs, together)
        for choice in zip(*ways, strict=False):
            for k in range(4):
                variant = (self._variant + k) % 4
                changes = [self._change(unit, plan, variant) for unit, plan in zip(together, choice, strict=True)]
                undo = [change.make(self.copy) for change in changes]
                if agree(self.copy, self.inputs, together, expected):
                    self._variant = variant
                    self.changes += changes
                    self.taken |= dict(zip(together, choice, strict=True))
                    return True
                for each in reversed(undo):
                    each()
        return False

    def _plans(self, unit: Unit) -> list[Plan]:
        attention = self.copy.base_model.get_submodule(unit.attention)
        projection = self.copy.base_model.get_submodule(unit.projection)
        shapes = tuple((name, tuple(weight.shape)) for name, weight in attention.named_parameters())
        kind = (type(attention), shapes)
        if kind not in self._divisions:
            self._divisions[kind] = find_division(self.copy, unit, self.inputs)
        division = self._divisions[kind]
        self.why[unit] = SHARED if division.groups else MIXED
        return plans(attention, projection, unit, division, self.out[unit])

    def _change(self, unit: Unit, plan: Plan, variant: int) -> Change:
        """One of four: sizes that may be the model's are changed or not; so is what is read in the configuration."""
        attention = self.copy.base_model.get_submodule(unit.attention)
        numbers = of_modules(attention, unit.attention, plan.before, plan.after, model_sizes=variant % 2 == 0)
        said = (
            of_config(attention.config, plan.before, plan.after) if variant > 1 and hasattr(attention, "config") else {}
        )
        return Change(kept=plan.kept, numbers=numbers, config={unit.attention: said} if said else {})

    def removal(self, *, in_place: bool) -> Removal:
        made = results(self.copy, self.inputs)[0]
        del self.copy
        network = self.model.network if in_place else copy.deepcopy(self.model.network)
        for change in self.changes:
            change.make(network)
        layers = [replace(self._of(unit), layer=layer) for unit in self.units for layer in unit.layers]
        return Removal(
            network,
            tuple(sorted(layers, key=lambda each: each.layer)),
            tuple(self.changes),
            difference(self.expected, made),
            self.inputs,
            self.expected,
        )

    def _of(self, unit: Unit) -> LayerRemoval:
        out, plan = tuple(sorted(self.out[unit])), self.taken.get(unit)
        if plan is not None:
            silent = tuple(head for head in plan.stay if head in self.out[unit])
            return LayerRemoval(0, out, "removed", silent, plan.before, plan.after)
        sizes = Sizes(unit.heads, unit.heads, unit.width)
        return LayerRemoval(0, out, "masked" if out else "whole", out, sizes, sizes, self.why.get(unit, ""))

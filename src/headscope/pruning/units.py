"""What heads can be taken out of: an attention module and the output projection behind it; and runs to hold a changed
network against the unchanged one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headscope.devices import to_float64
from headscope.errors import ModelError
from headscope.model.anatomy import unmasked
from headscope.model.capture.watching import prepared
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.pruning.changes import Kept, input_axis
from headscope.pruning.sites import sites

AGREES = 1e-5
"""largest difference, relative to the largest value, between a network without heads and one where they are silent"""
LENGTHS = (12, 7)
"""tokens of the two texts of a trial, so that one is padded"""

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One attention module and its projection, by their paths in the base model."""

    layers: tuple[int, ...]
    """true numbers of the layers that it serves; most serve one"""
    attention: str
    projection: str
    heads: int
    width: int
    weight_axis: int
    """of the projection's weight, along which the heads lie side by side from its start"""
    channel_axis: int
    """the same of what the projection is given"""

    def columns(self, heads: Iterable[int]) -> list[int]:
        return [head * self.width + k for head in heads for k in range(self.width)]

    def silent(self, heads: Iterable[int]) -> dict[str, Kept]:
        """The columns of the projection that make these heads silent when they are 0."""
        return {f"{self.projection}.weight": Kept(self.weight_axis, self.columns(heads))}


def units(model: Model) -> list[Unit]:
    """The units of the watched stack, in the order of its layers."""
    calls, found = model._plan.of([model.anatomy.stack]), sites(model).layers
    paths = {id(module): path for path, module in model.network.base_model.named_modules()}
    layers: dict[int, list[int]] = {}
    made: dict[int, Unit] = {}
    for number, call, site in zip(model.anatomy.numbers, calls, found, strict=True):
        if site is None or id(call.module) not in paths or id(site.module) not in paths:
            raise ModelError(
                f"{model.name}: heads of the model type {model.type!r} cannot be taken out: what mixes those of layer "
                f"{number} is no module of it"
            )
        layers.setdefault(id(site.module), []).append(number)
        made[id(site.module)] = Unit(
            tuple(layers[id(site.module)]),
            paths[id(call.module)],
            paths[id(site.module)],
            site.heads,
            site.width,
            input_axis(site.module),
            site.axis,
        )
    return list(made.values())


# -- runs -------------------------------------------------------------------------------------------------------------


def trial_inputs(model: Model) -> Inputs:
    """Two short texts, one of them padded; or an image of noise."""
    if isinstance(model.tokens, Patches):
        return model.tokens.inputs(model.tokens.noise())
    longest = min(LENGTHS[0], model.max_length or LENGTHS[0])
    ids = np.array([model.plain_tokens(longest)] * len(LENGTHS), dtype=np.int64)
    ids[1] = ids[1, ::-1]
    real = np.arange(longest) < np.array(LENGTHS)[:, None]
    ids[~real] = model.tokens.pad_id
    made = model._inputs(ids, real)
    return made | model._decoder_inputs(ids[:, :-1], real[:, :-1]) if model.two_stacks else made


def in_type(inputs: Inputs, kind: torch.dtype) -> Inputs:
    """Inputs for a network of this numeric type: pixels are numbers, tokens are not."""
    return {name: given.to(kind) if given.is_floating_point() else given for name, given in inputs.items()}


def run(network: Any, inputs: Inputs) -> torch.Tensor:
    """The first thing a network returns: its last hidden state, or what its head makes of it."""
    given = dict(inputs)
    if "use_cache" in inspect.signature(network.forward).parameters:
        given["use_cache"] = False
    with unmasked(network):
        return torch.as_tensor(network(**given)[0])


def results(network: Any, inputs: Inputs, found: Iterable[Unit] = ()) -> list[torch.Tensor]:
    """What a run gives, and what the projections of these units returned in it."""
    held: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, args: Any, returned: Any) -> None:
        held.append(returned[0] if isinstance(returned, tuple) else returned)

    hooks = [network.base_model.get_submodule(unit.projection).register_forward_hook(keep) for unit in found]
    try:
        with prepared(network), torch.no_grad():  # some models (Switch) convert weights in a run
            return [run(network, inputs), *held]
    finally:
        for hook in hooks:
            hook.remove()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest, relative to the largest value; infinite where they cannot be compared."""
    if one.shape != other.shape:
        return float("inf")
    expected, found = to_float64(one), to_float64(other)
    largest = float((expected - found).abs().max() / expected.abs().max().clamp_min(1e-30))
    return largest if np.isfinite(largest) else float("inf")


def agree(network: Any, inputs: Inputs, found: list[Unit], expected: list[torch.Tensor]) -> bool:
    """Whether a network runs, and gives what was expected of `results`."""
    made = _tried(lambda: results(network, inputs, found))
    if made is None or len(made) != len(expected):
        return False
    return all(difference(one, other) <= AGREES for one, other in zip(expected, made, strict=True))


def _tried(call: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | None:
    try:
        return call()
    except Exception:  # whatever a network raises whose maps do not fit: then this is not the way
        return None

"""What removing heads changes in a network: indices of weights that stay, and numbers that modules hold.

A change knows no weights. So one that was tried on a copy can be made to any network of the same shape: to the same
model in half precision, or with a head for language on top.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from headscope.model.shrinking import RECORD, OwnConfig

Undo = Callable[[], None]
Numbers = dict[str, dict[str, int]]
"""for modules, by their path in the base model, some of their numbers by name"""


@dataclass(frozen=True)
class Kept:
    """The indices of one weight along one axis that stay; one that stands there twice is doubled."""

    axis: int
    indices: list[int]


@dataclass(frozen=True)
class Change:
    """What is done to one attention module and its output projection. Paths are those in the base model."""

    zeroed: dict[str, Kept] = field(default_factory=dict)
    """columns of output projections that become 0; said in numbers of the whole weight, and done first"""
    kept: dict[str, list[Kept]] = field(default_factory=dict)
    """weights that lose indices, along one axis after the other"""
    numbers: Numbers = field(default_factory=dict)
    config: Numbers = field(default_factory=dict)
    """what modules see in the configuration"""

    def make(self, network: Any) -> Undo:
        """Change a network; what is returned makes it as it was."""
        modules = dict(network.base_model.named_modules())
        undo: list[Undo] = []
        for path, columns in self.zeroed.items():
            undo.append(_zero(modules, path, columns))
        for path, axes in self.kept.items():
            undo.append(_select(modules, path, axes))
        for path, numbers in self.numbers.items():
            undo += [_set(modules[path], name, value) for name, value in numbers.items()]
        for path, numbers in self.config.items():
            undo.append(_set(modules[path], "config", OwnConfig(modules[path].config, numbers)))
        return _all(undo)


def record_of(network: Any) -> dict[str, Any]:
    """In what a network differs from one that its configuration describes, as `shrink` reads it."""
    config = copy.deepcopy(network.config)
    config.__dict__.pop(RECORD, None)
    with torch.device("meta"):
        whole = type(network)(config).base_model
    weights, stock = (dict(each.named_parameters(remove_duplicate=False)) for each in (network.base_model, whole))
    numbers: Numbers = {}
    own: Numbers = {}
    for (path, module), (_, other) in zip(network.base_model.named_modules(), whole.named_modules(), strict=True):
        held, said = (
            {name: value for name, value in vars(each).items() if type(value) is int} for each in (module, other)
        )
        if changed := {name: value for name, value in held.items() if value != said.get(name, value)}:
            numbers[path] = changed
        seen = getattr(module, "config", None)
        if isinstance(seen, OwnConfig):
            own[path] = {name: value for name, value in vars(seen).items() if name != "_shared"}
    shapes = {path: list(weight.shape) for path, weight in weights.items() if weight.shape != stock[path].shape}
    return {"shapes": shapes, "numbers": numbers, "config": own}


def input_axis(module: torch.nn.Module) -> int:
    """The axis of a linear map's weight along which its input lies."""
    return 0 if isinstance(module, Conv1D) else 1


def size_names(module: torch.nn.Module) -> dict[int, str]:
    """How a module calls the sizes of its weight's axes, where it says them."""
    pairs = (("nx", "nf"), ("out_features", "in_features"), ("out_channels", "in_channels"),
             ("num_embeddings", "embedding_dim"))  # fmt: skip
    for pair in pairs:
        if all(isinstance(getattr(module, name, None), int) for name in pair):
            return dict(enumerate(pair))
    return {}


def _all(undo: list[Undo]) -> Undo:
    def last_first() -> None:
        for each in reversed(undo):
            each()

    return last_first


def _zero(modules: dict[str, Any], path: str, columns: Kept) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    before = module._parameters[name]
    changed = before.detach().clone()
    changed.index_fill_(columns.axis, torch.tensor(columns.indices, device=changed.device), 0)
    return _replace(module, name, changed)


def _select(modules: dict[str, Any], path: str, axes: list[Kept]) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    changed = module._parameters[name].detach()
    for kept in axes:
        changed = changed.index_select(kept.axis, torch.tensor(kept.indices, device=changed.device))
    undo = [_replace(module, name, changed.contiguous())]
    if name == "weight":
        undo += [_set(module, said, changed.shape[axis]) for axis, said in size_names(module).items()]
    return _all(undo)


def _replace(module: Any, name: str, changed: torch.Tensor) -> Undo:
    before = module._parameters[name]
    module._parameters[name] = torch.nn.Parameter(changed, requires_grad=before.requires_grad)

    def undo() -> None:
        module._parameters[name] = before

    return undo


def _set(module: Any, name: str, value: Any) -> Undo:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)

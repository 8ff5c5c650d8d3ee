"""Edits that remove heads from a network: which indices of weights stay, and which integers of modules change.

A change contains no weights. So a change that was tried on a copy can be applied to any network of the same shape: to
the same model in half precision, or with a language modeling head on top.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from headscope.model.pruned_shapes import RECORD, OwnConfig

Undo = Callable[[], None]
Numbers = dict[str, dict[str, int]]
"""integers by attribute name, by the module's path in the base model"""


@dataclass(frozen=True)
class KeptIndices:
    """Indices of a weight that stay along one axis; an index that is listed twice is duplicated."""

    axis: int
    indices: list[int]


@dataclass(frozen=True)
class Change:
    """The edits to one attention module and its output projection. Paths are relative to the base model."""

    zeroed: dict[str, KeptIndices] = field(default_factory=dict)
    """columns of output projections to set to 0, numbered as in the full weight; applied first"""
    selections: dict[str, list[KeptIndices]] = field(default_factory=dict)
    """weights that lose indices, along one axis after the other"""
    numbers: Numbers = field(default_factory=dict)
    config: Numbers = field(default_factory=dict)
    """values that modules read from the configuration"""

    def apply(self, network: Any) -> Undo:
        """Change a network; return a function that restores it."""
        modules = dict(network.base_model.named_modules())
        undo: list[Undo] = []
        for path, columns in self.zeroed.items():
            undo.append(_zero_columns(modules, path, columns))
        for path, axes in self.selections.items():
            undo.append(_select_indices(modules, path, axes))
        for path, numbers in self.numbers.items():
            undo += [_set_attribute(modules[path], name, value) for name, value in numbers.items()]
        for path, numbers in self.config.items():
            undo.append(_set_attribute(modules[path], "config", OwnConfig(modules[path].config, numbers)))
        return _combine_undo(undo)


def build_record(network: Any) -> dict[str, Any]:
    """Return how a network differs from the one that its configuration describes, in the form that `shrink` reads."""
    config = copy.deepcopy(network.config)
    config.__dict__.pop(RECORD, None)
    with torch.device("meta"):
        original = type(network)(config).base_model
    weights, original_weights = (
        dict(base.named_parameters(remove_duplicate=False)) for base in (network.base_model, original)
    )
    numbers: Numbers = {}
    own_config: Numbers = {}
    modules = zip(network.base_model.named_modules(), original.named_modules(), strict=True)
    for (path, module), (_, original_module) in modules:
        current, expected = _list_integers(module), _list_integers(original_module)
        if changed := {name: value for name, value in current.items() if value != expected.get(name, value)}:
            numbers[path] = changed
        module_config = getattr(module, "config", None)
        if isinstance(module_config, OwnConfig):
            own_config[path] = {name: value for name, value in vars(module_config).items() if name != "_shared"}
    shapes = {
        path: list(weight.shape) for path, weight in weights.items() if weight.shape != original_weights[path].shape
    }
    return {"shapes": shapes, "numbers": numbers, "config": own_config}


def _list_integers(module: torch.nn.Module) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if type(value) is int}


def get_input_axis(module: torch.nn.Module) -> int:
    """Return the axis of a linear map's weight along which its input lies."""
    return 0 if isinstance(module, Conv1D) else 1


def get_size_attributes(module: torch.nn.Module) -> dict[int, str]:
    """Return the attributes in which a module stores the sizes of its weight, by axis; empty where it has none."""
    pairs = (("nx", "nf"), ("out_features", "in_features"), ("out_channels", "in_channels"),
             ("num_embeddings", "embedding_dim"))  # fmt: skip
    for pair in pairs:
        if all(isinstance(getattr(module, name, None), int) for name in pair):
            return dict(enumerate(pair))
    return {}


def _combine_undo(undo: list[Undo]) -> Undo:
    def restore_last_first() -> None:
        for restore in reversed(undo):
            restore()

    return restore_last_first


def _zero_columns(modules: dict[str, Any], path: str, columns: KeptIndices) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    before = module._parameters[name]
    changed = before.detach().clone()
    changed.index_fill_(columns.axis, torch.tensor(columns.indices, device=changed.device), 0)
    return _replace_parameter(module, name, changed)


def _select_indices(modules: dict[str, Any], path: str, axes: list[KeptIndices]) -> Undo:
    owner, _, name = path.rpartition(".")
    module = modules[owner]
    changed = module._parameters[name].detach()
    for kept_indices in axes:
        indices = torch.tensor(kept_indices.indices, device=changed.device)
        changed = changed.index_select(kept_indices.axis, indices)
    undo = [_replace_parameter(module, name, changed.contiguous())]
    if name == "weight":
        sizes = get_size_attributes(module)
        undo += [_set_attribute(module, attribute, changed.shape[axis]) for axis, attribute in sizes.items()]
    return _combine_undo(undo)


def _replace_parameter(module: Any, name: str, changed: torch.Tensor) -> Undo:
    before = module._parameters[name]
    module._parameters[name] = torch.nn.Parameter(changed, requires_grad=before.requires_grad)

    def restore() -> None:
        module._parameters[name] = before

    return restore


def _set_attribute(module: Any, name: str, value: Any) -> Undo:
    before = getattr(module, name)
    setattr(module, name, value)
    return lambda: setattr(module, name, before)

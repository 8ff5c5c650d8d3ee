"""Networks from which heads were removed: their maps are narrower than the configuration says.

The record of a pruned model says which weights have another shape, and which numbers of which modules have changed.
This file is also written into the folder of such a model, so that transformers can open it with nothing but itself: it
imports nothing of headscope.
"""

from __future__ import annotations

import re
from typing import Any

import torch

RECORD = "headscope_pruning"
"""the name of the record in config.json"""
LARGER = 64


def shrink(network: Any, record: Any) -> None:
    """Give the weights of a network, which are loaded afterwards, the shapes that a record says."""
    root = network.base_model
    modules = dict(root.named_modules())
    for path, shape in _part(record, "shapes"):
        module = _module(modules, path.rpartition(".")[0])
        name = path.rpartition(".")[2]
        held = module._parameters.get(name)
        if held is None:
            raise ValueError(f"{RECORD} speaks of a weight {path!r}, which the model does not have")
        if not isinstance(shape, list) or len(shape) != held.dim() or not all(map(_may_be, shape, held.shape)):
            raise ValueError(
                f"{RECORD} gives the weight {path!r} the shape {shape!r}, where the whole model has {list(held.shape)}"
            )
        module._parameters[name] = torch.nn.Parameter(
            torch.empty(shape, dtype=held.dtype, device=held.device), requires_grad=held.requires_grad
        )
    for path, numbers in _part(record, "numbers"):
        module = _module(modules, path)
        for name, value in _checked(path, numbers):
            if not _is_size(vars(module).get(name)):
                raise ValueError(f"{RECORD} changes {name!r} of {path!r}, which has no such number")
            setattr(module, name, value)
    for path, numbers in _part(record, "config"):
        module = _module(modules, path)
        if not hasattr(module, "config"):
            raise ValueError(f"{RECORD} changes the configuration of {path!r}, which has none")
        module.config = OwnConfig(module.config, dict(_checked(path, numbers)))


class PrunedHeads:
    """Mixed into a class of transformers, it opens folders with and without a record."""

    def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
        super().__init__(config, *inputs, **options)  # type: ignore[call-arg]
        record = getattr(config, RECORD, None)
        if record is not None:
            shrink(self, record)

    # transformers treats code that is not its own with care: weights are not converted, attention is not switched. All
    # that runs here is its own.

    @classmethod
    def is_custom_code(cls) -> bool:
        return False

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        stock: Any = next(kind for kind in cls.__mro__ if kind.__module__.startswith("transformers."))
        return bool(stock._can_set_attn_implementation())


class OwnConfig:
    """The configuration as one module sees it: its own numbers of heads; all else as it is, also when it changes."""

    def __init__(self, shared: Any, changed: dict[str, int]) -> None:
        self.__dict__.update(changed)
        self.__dict__["_shared"] = shared

    def __getattr__(self, name: str) -> Any:
        if name == "_shared" or name.startswith("__"):  # while it is copied there is nothing yet to ask
            raise AttributeError(name)
        return getattr(self._shared, name)


def _part(record: Any, name: str) -> list[tuple[str, Any]]:
    found = record.get(name, {}) if isinstance(record, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"{RECORD} in config.json is no record of removed heads: {name!r} should be an object there")
    return list(found.items())


def _module(modules: dict[str, Any], path: str) -> Any:
    if path not in modules:
        raise ValueError(f"{RECORD} speaks of a module {path!r}, which the model does not have")
    return modules[path]


def _checked(path: str, numbers: Any) -> list[tuple[str, int]]:
    if not isinstance(numbers, dict):
        raise ValueError(f"{RECORD}: the numbers of {path!r} should be an object, not {numbers!r}")
    for name, value in numbers.items():
        if not re.fullmatch(r"[a-zA-Z]\w*", name) or not _is_size(value):
            raise ValueError(f"{RECORD}: {name!r} of {path!r} cannot be {value!r}: it should be a positive number")
    return list(numbers.items())


def _may_be(size: Any, whole: int) -> bool:
    """Keys that heads shared may be there once for each of them, so a weight can be larger than it was."""
    return _is_size(size) and size <= LARGER * whole


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31

"""Networks from which heads were removed: their weights are smaller than the configuration says.

The record of a pruned model lists which weights have another shape, and which numbers of which modules have changed.
This file is also written into the folder of such a model, so that transformers can open it without headscope: it
imports nothing of headscope.
"""

from __future__ import annotations

import re
from typing import Any

import torch

RECORD = "headscope_pruning"
"""name of the record in config.json"""
MAX_GROWTH = 64
"""a dimension of a weight may be at most this many times its original size"""


def shrink(network: Any, record: Any) -> None:
    """Give weights of a network, whose values are loaded afterwards, the shapes that a record lists."""
    root = network.base_model
    modules = dict(root.named_modules())
    for path, shape in _read_section(record, "shapes"):
        module = _get_module(modules, path.rpartition(".")[0])
        name = path.rpartition(".")[2]
        weight = module._parameters.get(name)
        if weight is None:
            raise ValueError(f"{RECORD} lists a weight {path!r}, which the model does not have")
        if (
            not isinstance(shape, list)
            or len(shape) != weight.dim()
            or not all(map(_is_possible_size, shape, weight.shape))
        ):
            raise ValueError(
                f"{RECORD} gives the weight {path!r} the shape {shape!r}, where the whole model has "
                f"{list(weight.shape)}"
            )
        module._parameters[name] = torch.nn.Parameter(
            torch.empty(shape, dtype=weight.dtype, device=weight.device), requires_grad=weight.requires_grad
        )
    for path, numbers in _read_section(record, "numbers"):
        module = _get_module(modules, path)
        for name, value in _check_numbers(path, numbers):
            if not _is_size(vars(module).get(name)):
                raise ValueError(f"{RECORD} changes {name!r} of {path!r}, which has no such number")
            setattr(module, name, value)
    for path, numbers in _read_section(record, "config"):
        module = _get_module(modules, path)
        if not hasattr(module, "config"):
            raise ValueError(f"{RECORD} changes the configuration of {path!r}, which has none")
        module.config = OwnConfig(module.config, dict(_check_numbers(path, numbers)))


class PrunedHeads:
    """Mixin for a transformers class that opens folders with and without a record."""

    def __init__(self, config: Any, *inputs: Any, **options: Any) -> None:
        super().__init__(config, *inputs, **options)  # type: ignore[call-arg]
        record = getattr(config, RECORD, None)
        if record is not None:
            shrink(self, record)

    # For code that is not its own, transformers converts no weights and does not switch attention functions. Everything
    # that runs here is its own.

    @classmethod
    def is_custom_code(cls) -> bool:
        return False

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        stock: Any = next(kind for kind in cls.__mro__ if kind.__module__.startswith("transformers."))
        return bool(stock._can_set_attn_implementation())


class OwnConfig:
    """The configuration as one module sees it: with its own numbers of heads, otherwise the shared one."""

    def __init__(self, shared: Any, changed: dict[str, int]) -> None:
        self.__dict__.update(changed)
        self.__dict__["_shared"] = shared

    def __getattr__(self, name: str) -> Any:
        if name == "_shared" or name.startswith("__"):  # during a copy, `_shared` is not set yet
            raise AttributeError(name)
        return getattr(self._shared, name)


def _read_section(record: Any, name: str) -> list[tuple[str, Any]]:
    section = record.get(name, {}) if isinstance(record, dict) else None
    if not isinstance(section, dict):
        raise ValueError(f"{RECORD} in config.json is no record of removed heads: {name!r} should be an object there")
    return list(section.items())


def _get_module(modules: dict[str, Any], path: str) -> Any:
    if path not in modules:
        raise ValueError(f"{RECORD} lists a module {path!r}, which the model does not have")
    return modules[path]


def _check_numbers(path: str, numbers: Any) -> list[tuple[str, int]]:
    if not isinstance(numbers, dict):
        raise ValueError(f"{RECORD}: the numbers of {path!r} should be an object, not {numbers!r}")
    for name, value in numbers.items():
        if not re.fullmatch(r"[a-zA-Z]\w*", name) or not _is_size(value):
            raise ValueError(f"{RECORD}: {name!r} of {path!r} cannot be {value!r}: it should be a positive number")
    return list(numbers.items())


def _is_possible_size(size: Any, original: int) -> bool:
    """Return whether a dimension may have this size.

    It may be larger than the original: keys that heads shared may be stored once for each of them.
    """
    return _is_size(size) and size <= MAX_GROWTH * original


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31

"""Integers in attention modules and configurations that depend on the heads: how many, and how wide they are together.

What an integer means is inferred from its name (`num_key_value_heads`, `all_head_size`) together with its value: either
alone is ambiguous. Whether the inference was right is decided by a trial run (see `removal`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

NOT_A_COUNT = re.compile(r"dim|size|width|rank|scal")
SIZE = re.compile(r"dim|size|width|split|embed|channels|d_model|inner")
OF_KEYS = re.compile(r"key|kv|value")
OF_THE_MODEL = re.compile(r"hidden|embed|model|^dim$")
"""names that mean the model's size in some modules, and the size of all heads together in others"""


@dataclass(frozen=True)
class Sizes:
    """Heads, key heads (the same number if each head has its own keys), and the width of a head's output."""

    heads: int
    key_heads: int
    width: int


def update_number(name: str, value: int, before: Sizes, after: Sizes) -> int:
    """Return the value of an attribute after the number of heads has changed."""
    lower = name.lower()
    is_of_keys = bool(OF_KEYS.search(lower))
    if "group" in lower:
        # One key head for all may look like one for each: then the group is all heads.
        new_values = {before.heads // before.key_heads: after.heads // after.key_heads}
        return new_values.get(value, after.heads if value == before.heads and is_of_keys else value)
    old_heads, new_heads = (before.key_heads, after.key_heads) if is_of_keys else (before.heads, after.heads)
    if "head" in lower and not NOT_A_COUNT.search(lower):
        return new_heads if value == old_heads else value
    if SIZE.search(lower):
        return new_heads * after.width if value == old_heads * before.width else value
    return value


def collect_module_numbers(
    attention: torch.nn.Module, path: str, before: Sizes, after: Sizes, *, model_sizes: bool
) -> dict[str, dict[str, int]]:
    """Return the integers that change in an attention module and its submodules: new values by path and name.

    Args:
        path: The path of the module, put before those of its submodules.
        model_sizes: Include names that match `OF_THE_MODEL`.
    """
    new_numbers: dict[str, dict[str, int]] = {}
    for inner, module in attention.named_modules():
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            continue  # its sizes follow those of its weight
        numbers = _collect_changed(vars(module), before, after)
        if not model_sizes:
            numbers = {name: value for name, value in numbers.items() if not OF_THE_MODEL.search(name)}
        if numbers:
            new_numbers[".".join(filter(None, (path, inner)))] = numbers
    return new_numbers


def collect_config_numbers(config: Any, before: Sizes, after: Sizes) -> dict[str, int]:
    """Return the new numbers of heads in a configuration, under all names that it has for them."""
    names = [*vars(config), *getattr(config, "attribute_map", {})]
    counts = {name: getattr(config, name, None) for name in names if "head" in name and not NOT_A_COUNT.search(name)}
    return _collect_changed(counts, before, after)


def _collect_changed(attributes: dict[str, Any], before: Sizes, after: Sizes) -> dict[str, int]:
    current = {
        name: value
        for name, value in attributes.items()
        if isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_")
    }
    updated = {name: update_number(name, value, before, after) for name, value in current.items()}
    return {name: value for name, value in updated.items() if value != current[name]}

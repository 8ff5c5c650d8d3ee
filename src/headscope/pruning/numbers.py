"""The numbers that attention modules and configurations hold: how many heads, and how wide they are together.

What a number is shows in its name (`num_key_value_heads`, `all_head_size`) together with its value: either alone may
mean something else. Whether the right ones were found is for a trial to say.
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
"""sizes that may be the model's and not the heads': some modules mean the one, some the other"""


@dataclass(frozen=True)
class Sizes:
    """Heads, key heads (as many, where each head has its own keys), and the width of a head's output."""

    heads: int
    key_heads: int
    width: int


def changed(name: str, value: int, before: Sizes, after: Sizes) -> int:
    """What a number becomes."""
    lower = name.lower()
    keys = bool(OF_KEYS.search(lower))
    if "group" in lower:
        # One key head for all is not always seen as such: then the group is all heads.
        meant = {before.heads // before.key_heads: after.heads // after.key_heads}
        return meant.get(value, after.heads if value == before.heads and keys else value)
    if "head" in lower and not NOT_A_COUNT.search(lower):
        held, becomes = (before.key_heads, after.key_heads) if keys else (before.heads, after.heads)
        return becomes if value == held else value
    if SIZE.search(lower):
        held, becomes = (before.key_heads, after.key_heads) if keys else (before.heads, after.heads)
        return becomes * after.width if value == held * before.width else value
    return value


def of_modules(
    attention: torch.nn.Module, path: str, before: Sizes, after: Sizes, *, model_sizes: bool
) -> dict[str, dict[str, int]]:
    """The numbers of an attention module and of what is in it that change; `model_sizes`: those `OF_THE_MODEL` too."""
    found: dict[str, dict[str, int]] = {}
    for inner, module in attention.named_modules():
        if isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            continue  # its sizes are those of its weight
        numbers = _changed_in(vars(module), before, after)
        if not model_sizes:
            numbers = {name: value for name, value in numbers.items() if not OF_THE_MODEL.search(name)}
        if numbers:
            found[".".join(filter(None, (path, inner)))] = numbers
    return found


def of_config(config: Any, before: Sizes, after: Sizes) -> dict[str, int]:
    """The numbers of heads that a configuration says, by all names it has for them."""
    names = [*vars(config), *getattr(config, "attribute_map", {})]
    said = {name: getattr(config, name, None) for name in names if "head" in name and not NOT_A_COUNT.search(name)}
    return _changed_in(said, before, after)


def _changed_in(said: dict[str, Any], before: Sizes, after: Sizes) -> dict[str, int]:
    held = {name: value for name, value in said.items() if isinstance(value, int) and not isinstance(value, bool)}
    made = {name: changed(name, value, before, after) for name, value in held.items() if not name.startswith("_")}
    return {name: value for name, value in made.items() if value != held[name]}

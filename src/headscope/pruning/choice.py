"""Which heads go: so many of all, those with the least scores."""

from __future__ import annotations

import re

import numpy as np

from headscope.errors import StudyError
from headscope.pruning.naming import Head
from headscope.pruning.rankings import order_of
from headscope.types import Floats

Keep = str | int | float
Groups = tuple[frozenset[int], ...]


def how_many(keep: Keep, heads: int) -> int:
    """The number of heads that are kept of so many: `70%`, `0.7` and 0.7 are a share, a whole number is a number.

    >>> how_many("70%", 72), how_many(0.5, 72), how_many("12", 72), how_many(1, 72), how_many("100%", 72)
    (50, 36, 12, 1, 72)
    """
    text = str(keep).strip()
    match = re.fullmatch(r"(\d{1,9}(?:\.\d*)?|\.\d+)\s*(%?)", text, re.ASCII)
    if match is None or isinstance(keep, bool):
        raise StudyError(f"keep {text!r}: write a share, like 70% or 0.7, or a number of heads, like 50")
    share = bool(match[2]) or "." in match[1]
    wanted = float(match[1]) / (100 if match[2] else 1)
    if share and not 0 < wanted <= 1:
        raise StudyError(f"keep {text!r}: a share lies above 0 and is at most 100%")
    number = int(wanted * heads + 0.5) if share else int(wanted)
    if not 1 <= number <= heads:
        raise StudyError(f"keep {text!r}: that is {number} of {heads} heads; keep at least one, and at most all")
    return number


def least(found: Floats, numbers: tuple[int, ...], keep: Keep, shared: list[tuple[int, ...]]) -> list[Head]:
    """The heads to go so that `keep` stay. Layers that share a module (`shared`) lose the same heads, by their mean."""
    rows = np.stack([found[[numbers.index(layer) for layer in layers]].mean(axis=0) for layers in shared])
    left, gone = found.size, list[Head]()
    wanted = how_many(keep, found.size)
    for place, head in order_of(rows):
        if left - len(shared[place]) >= wanted:
            gone += [(layer, head) for layer in shared[place]]
            left -= len(shared[place])
    return sorted(gone)


def least_of_each_layer(found: Floats, numbers: tuple[int, ...], keep: Keep, groups: Groups) -> list[Head]:
    """The heads to go so that every layer keeps as many; where heads share their keys, every group of them too, if the
    number allows it, because only then do shapes stay equal."""
    layers, heads = found.shape
    kept = int(how_many(keep, found.size) / layers + 0.5)
    if kept < 1:
        raise StudyError(f"keep {keep!r}: that is less than one head for each of {layers} layers: keep more")
    equal = bool(groups) and kept % len(groups) == 0
    gone: list[Head] = []
    for number, row in zip(numbers, found, strict=True):
        parts = [sorted(group) for group in groups] if equal else [list(range(heads))]
        for part in parts:
            order = [part[k] for _, k in order_of(row[None, part])]
            gone += [(number, head) for head in order[: len(part) - kept // len(parts)]]
    return sorted(gone)

"""Select the heads to remove: how many, and those with the lowest scores."""

from __future__ import annotations

import re

import numpy as np

from headscope.array_types import Floats
from headscope.errors import StudyError
from headscope.head_selection import Head
from headscope.pruning.rankings import order_heads

Keep = str | int | float
Groups = tuple[frozenset[int], ...]


def parse_keep(keep: Keep, heads: int) -> int:
    """Return how many of `heads` heads are kept: `70%`, `0.7` and 0.7 are a share, an integer is a number of heads.

    >>> parse_keep("70%", 72), parse_keep(0.5, 72), parse_keep("12", 72), parse_keep(1, 72), parse_keep("100%", 72)
    (50, 36, 12, 1, 72)
    """
    value, is_share = check_keep(keep)
    number = int(value * heads + 0.5) if is_share else int(value)
    if not 1 <= number <= heads:
        raise StudyError(
            f"keep {keep!r}: that is {number} of {heads} heads; keep at least one, and at most all"
            f"{'' if is_share else f' (a share is written {keep}%)'}"
        )
    return number


def check_keep(keep: Keep) -> tuple[float, bool]:
    """Return the number that `keep` states, and whether it is a share; raise a StudyError if it is neither.

    >>> check_keep("70%"), check_keep(12)
    ((0.7, True), (12.0, False))
    """
    text = str(keep).strip()
    match = re.fullmatch(r"(\d{1,9}(?:\.\d*)?|\.\d+)\s*(%?)", text, re.ASCII)
    if match is None or isinstance(keep, bool):
        raise StudyError(f"keep {text!r}: write a share, like 70% or 0.7, or a number of heads, like 50")
    is_share = bool(match[2]) or "." in match[1]
    value = float(match[1]) / (100 if match[2] else 1)
    if is_share and not 0 < value <= 1:
        raise StudyError(f"keep {text!r}: a share must be above 0 and at most 100%")
    return value, is_share


def select_lowest(
    head_scores: Floats, numbers: tuple[int, ...], keep: Keep, shared: list[tuple[int, ...]]
) -> list[Head]:
    """Return the heads to remove so that `keep` stay.

    Args:
        head_scores: (layers, heads)
        numbers: The layers' numbers in the model.
        shared: Groups of layers that share a module. They lose the same heads, by their mean score.
    """
    rows = np.stack([head_scores[[numbers.index(layer) for layer in layers]].mean(axis=0) for layers in shared])
    left, removed = head_scores.size, list[Head]()
    target = parse_keep(keep, head_scores.size)
    for row, head in order_heads(rows):
        if left - len(shared[row]) >= target:
            removed += [(layer, head) for layer in shared[row]]
            left -= len(shared[row])
    return sorted(removed)


def select_lowest_per_layer(head_scores: Floats, numbers: tuple[int, ...], keep: Keep, groups: Groups) -> list[Head]:
    """Return the heads to remove so that every layer keeps the same number.

    Where groups of heads share their keys, every group keeps the same number too, if the number is divisible: only then
    do all shapes stay equal.
    """
    layers, heads = head_scores.shape
    kept_per_layer = int(parse_keep(keep, head_scores.size) / layers + 0.5)
    if kept_per_layer < 1:
        raise StudyError(f"keep {keep!r}: that is less than one head for each of {layers} layers: keep more")
    is_divisible = bool(groups) and kept_per_layer % len(groups) == 0
    removed: list[Head] = []
    for number, row in zip(numbers, head_scores, strict=True):
        parts = [sorted(group) for group in groups] if is_divisible else [list(range(heads))]
        for part in parts:
            order = [part[k] for _, k in order_heads(row[None, part])]
            removed += [(number, head) for head in order[: len(part) - kept_per_layer // len(parts)]]
    return sorted(removed)

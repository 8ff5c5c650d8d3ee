"""Heads as people write them: `L0H1,L3H4-7`, by the layers' true numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from headscope.errors import StudyError
from headscope.model.anatomy import Anatomy
from headscope.types import Bools

Head = tuple[int, int]
"""a layer's true number, and the head's number in it"""
Heads = str | Iterable[Head]
"""some heads: `L0H1,L3H4-7`, or pairs of numbers"""


def name_of(head: Head) -> str:
    """`L11H8`."""
    return f"L{head[0]}H{head[1]}"


def all_heads(anatomy: Anatomy) -> list[Head]:
    """Every head of a stack, layer by layer."""
    return [(layer, head) for layer in anatomy.numbers for head in range(anatomy.heads)]


def parse_heads(text: str, anatomy: Anatomy | None = None) -> list[Head]:
    """`L0H1,L3H4-7` as pairs of numbers, in the order written; checked where the anatomy is given.

    >>> parse_heads("L0H1,L3H4-6")
    [(0, 1), (3, 4), (3, 5), (3, 6)]
    """
    return _parsed(text, None) if anatomy is None else chosen(anatomy, text)


def _parsed(text: str, anatomy: Anatomy | None) -> list[Head]:
    found: list[Head] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*[Ll](\d{1,6})[Hh](\d{1,6})(?:-[Hh]?(\d{1,6}))?\s*", part, re.ASCII)
        if match is None:
            raise StudyError(f"heads {text!r}: {part.strip()!r} is no head: write them like L0H1,L3H4-7")
        layer, first, last = int(match[1]), int(match[2]), int(match[3] or match[2])
        if last < first:
            raise StudyError(f"heads {text!r}: in {part.strip()!r} the last head comes before the first")
        if anatomy is not None:
            _check_one(anatomy, (layer, last))  # before a range of any length is written out
        found += [(layer, head) for head in range(first, last + 1)]
    _check_once(found)
    return found


def chosen(anatomy: Anatomy, heads: Heads, *, some_left: bool = True) -> list[Head]:
    """Heads that a stack has, each once; `some_left`: and not all of them."""
    if isinstance(heads, str):
        heads = _parsed(heads, anatomy)
    try:
        found = [(int(layer), int(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise StudyError("heads are written like 'L0H1,L3H4-7', or as pairs of numbers (layer, head)") from None
    for each in found:
        _check_one(anatomy, each)
    _check_once(found)
    if some_left and len(found) == anatomy.layers * anatomy.heads:
        raise StudyError(
            f"these are all {len(found)} heads of the model's {anatomy.stack}: leave at least one that is not silenced"
        )
    return found


def as_mask(anatomy: Anatomy, heads: Iterable[Head]) -> Bools:
    """(layers, heads): True for these heads, which `chosen` has checked."""
    mask = np.zeros((anatomy.layers, anatomy.heads), dtype=bool)
    for layer, head in heads:
        mask[anatomy.numbers.index(layer), head] = True
    return mask


def _check_one(anatomy: Anatomy, head: Head) -> None:
    if head[0] not in anatomy.numbers:
        raise StudyError(
            f"{name_of(head)}: there is no layer {head[0]} with attention in the model's {anatomy.stack}; there are "
            f"{', '.join(map(str, anatomy.numbers))}"
        )
    if not 0 <= head[1] < anatomy.heads:
        raise StudyError(
            f"{name_of(head)}: there is no head {head[1]}; the heads of a layer are 0 to {anatomy.heads - 1}"
        )


def _check_once(heads: list[Head]) -> None:
    seen = set[Head]()
    for head in heads:
        if head in seen:
            raise StudyError(f"{name_of(head)} is named twice")
        seen.add(head)

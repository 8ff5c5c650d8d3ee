"""Parse and format head names such as `L0H1,L3H4-7`. Layers have the numbers that they have in the model."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from headscope.array_types import Bools
from headscope.errors import StudyError
from headscope.model.architecture import StackArchitecture

Head = tuple[int, int]
"""number of the layer in the model, number of the head in the layer"""
Heads = str | Iterable[Head]
"""some heads: `L0H1,L3H4-7`, or pairs of numbers"""


def format_head(head: Head) -> str:
    """Return a head's name, such as `L11H8`."""
    return f"L{head[0]}H{head[1]}"


def list_heads(architecture: StackArchitecture) -> list[Head]:
    """Return every head of a stack, layer by layer."""
    return architecture.list_heads()


def parse_heads(text: str, architecture: StackArchitecture | None = None) -> list[Head]:
    """Return `L0H1,L3H4-7` as pairs of numbers, in the order written; checked if the architecture is given.

    >>> parse_heads("L0H1,L3H4-6")
    [(0, 1), (3, 4), (3, 5), (3, 6)]
    """
    return _parse(text, None) if architecture is None else resolve_heads(architecture, text)


def _parse(text: str, architecture: StackArchitecture | None) -> list[Head]:
    heads: list[Head] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*[Ll](\d{1,6})[Hh](\d{1,6})(?:-[Hh]?(\d{1,6}))?\s*", part, re.ASCII)
        if match is None:
            raise StudyError(f"heads {text!r}: {part.strip()!r} is no head: write them like L0H1,L3H4-7")
        layer, first, last = int(match[1]), int(match[2]), int(match[3] or match[2])
        if last < first:
            raise StudyError(f"heads {text!r}: in {part.strip()!r} the last head comes before the first")
        if architecture is not None:
            _check_head(architecture, (layer, last))  # before a huge range is expanded
        heads += [(layer, head) for head in range(first, last + 1)]
    _check_unique(heads)
    return heads


def resolve_heads(architecture: StackArchitecture, heads: Heads, *, some_left: bool = True) -> list[Head]:
    """Return heads as pairs of numbers.

    Raises:
        StudyError: A head is not in the stack or is named twice; with `some_left`, also if these are all heads.
    """
    if isinstance(heads, str):
        heads = _parse(heads, architecture)
    try:
        pairs = [(int(layer), int(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise StudyError("heads are written like 'L0H1,L3H4-7', or as pairs of numbers (layer, head)") from None
    for pair in pairs:
        _check_head(architecture, pair)
    _check_unique(pairs)
    if some_left and len(pairs) == sum(architecture.head_counts):
        raise StudyError(
            f"these are all {len(pairs)} heads of the model's {architecture.stack}: leave at least one that is not "
            "silenced"
        )
    return pairs


def as_mask(architecture: StackArchitecture, heads: Iterable[Head]) -> Bools:
    """Return a mask (layers, heads) that is True for these heads, which `resolve_heads` has checked."""
    mask = np.zeros((architecture.layers, architecture.heads), dtype=bool)
    for layer, head in heads:
        mask[architecture.numbers.index(layer), head] = True
    return mask


def _check_head(architecture: StackArchitecture, head: Head) -> None:
    if head[0] not in architecture.numbers:
        raise StudyError(
            f"{format_head(head)}: there is no layer {head[0]} with attention in the model's {architecture.stack}; "
            f"there are {', '.join(map(str, architecture.numbers))}"
        )
    count = architecture.head_counts[architecture.numbers.index(head[0])]
    if not 0 <= head[1] < count:
        layer = "a layer" if count == architecture.heads else f"layer {head[0]}"
        raise StudyError(f"{format_head(head)}: there is no head {head[1]}; the heads of {layer} are 0 to {count - 1}")


def _check_unique(heads: list[Head]) -> None:
    seen = set[Head]()
    for head in heads:
        if head in seen:
            raise StudyError(f"{format_head(head)} is named twice")
        seen.add(head)

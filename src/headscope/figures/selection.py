"""Layers and heads that a figure shows: those requested, else the paper's, else their nearest counterparts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headscope.errors import SelectionError, StudyError
from headscope.head_selection import Numbers, select_grid
from headscope.studies.result import Study

Selection = Numbers
"""requested layers or heads: one, several, or None for the figure's default"""


class LayeredSource(Protocol):
    """Anything with numbered layers and heads: a study, or a reading of one text."""

    @property
    def layers(self) -> list[int]: ...

    @property
    def head_numbers(self) -> list[int]: ...

    def select(self, layers: Selection = None, heads: Selection = None) -> LayeredSource:
        """Return only these layers and heads; raise an error if one does not exist."""


def resolve_selections(
    source: LayeredSource, layers: str | Selection, heads: str | Selection
) -> tuple[Selection, Selection]:
    """Return the numbers of layers and heads that are selected by name; numbers are returned as they are."""
    return select_grid(layers, heads, source.layers, source.head_numbers, f"the {type(source).__name__.lower()}")


def select_layers(source: LayeredSource, requested: Selection, default: list[int]) -> list[int]:
    """Return the requested layers without repetitions, in their order, or the default if None."""
    return default if requested is None else _refuse_empty("layers", source.select(layers=requested).layers)


def select_heads(source: LayeredSource, requested: Selection, default: list[int]) -> list[int]:
    """Return the requested heads without repetitions, in their order, or the default if None."""
    if isinstance(requested, str):  # a name such as L3H7 selects a layer too
        raise SelectionError(f"heads {requested!r}: this function takes numbers; headscope.figures.draw takes names")
    return default if requested is None else _refuse_empty("heads", source.select(heads=requested).head_numbers)


def get_last_layer(source: LayeredSource) -> list[int]:
    """Return the last layer, as a list."""
    return source.layers[-1:]


def choose_early_to_late(source: LayeredSource) -> list[int]:
    """Return the paper's layers 1, 6, 11 of twelve; of any other number the first, the middle one and the last."""
    layers = source.layers
    if len(layers) == 12:
        return [layers[k] for k in (1, 6, 11)]
    return _remove_duplicates([layers[0], layers[len(layers) // 2], layers[-1]])


def choose_early_to_last_two(source: LayeredSource) -> list[int]:
    """Return the paper's layers 1, 6, 10, 11 of twelve; of any other number the first, the middle one, the last two."""
    layers = source.layers
    if len(layers) == 12:
        return [layers[k] for k in (1, 6, 10, 11)]
    return sorted(_remove_duplicates([layers[0], layers[len(layers) // 2], *layers[-2:]]), key=layers.index)


def choose_paper_heads(source: LayeredSource) -> list[int]:
    """Return the paper's heads 2 and 8; if one of them does not exist, the first and the last."""
    heads = source.head_numbers
    return [2, 8] if {2, 8} <= set(heads) else _remove_duplicates([heads[0], heads[-1]])


def choose_exemplary_head(source: LayeredSource) -> list[int]:
    """Return the paper's head 8; if it does not exist, the last."""
    return [8] if 8 in source.head_numbers else source.head_numbers[-1:]


def choose_exemplary_heads(source: LayeredSource) -> list[int]:
    """Return the paper's heads 5, 7 and 8; if one of them does not exist, the first, the middle one and the last."""
    heads = source.head_numbers
    return [5, 7, 8] if {5, 7, 8} <= set(heads) else _remove_duplicates([heads[0], heads[len(heads) // 2], heads[-1]])


def require_variables(study: Study, figure: str, variables: Iterable[str]) -> None:
    """Raise `StudyError` if a study lacks variables, which are counted over all heads of a layer.

    Studies of selected heads do not contain them.
    """
    missing = [name for name in variables if name not in study.data]
    if missing:
        raise StudyError(
            f"{figure} is counted over all heads of a layer, and a study of selected heads no longer holds "
            f"{', '.join(missing)}: draw it from the whole study"
        )


def _refuse_empty(kind: str, numbers: list[int]) -> list[int]:
    if not numbers:
        raise StudyError(f"no {kind} to draw: the list given is empty")
    return _remove_duplicates(numbers)


def _remove_duplicates(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))

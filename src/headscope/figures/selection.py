"""Which layers and heads a figure shows: those asked for, else the paper's, else their nearest counterparts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headscope.errors import StudyError
from headscope.studies.result import Study

Numbers = int | Iterable[int] | None
"""layers or heads asked for: one, several, or whatever the figure shows by default"""


class Heads(Protocol):
    """Anything with numbered layers and heads to choose from: a study, or a reading of one text."""

    @property
    def layers(self) -> list[int]: ...

    @property
    def heads(self) -> list[int]: ...

    def select(self, layers: Numbers = None, heads: Numbers = None) -> Heads:
        """Only some of them; an error where one asked for is not there."""


def layers_of(source: Heads, wanted: Numbers, default: list[int]) -> list[int]:
    """The layers asked for, each once, in the order given; the default where none were."""
    return default if wanted is None else _named("layers", source.select(layers=wanted).layers)


def heads_of(source: Heads, wanted: Numbers, default: list[int]) -> list[int]:
    """The heads asked for, each once, in the order given; the default where none were."""
    return default if wanted is None else _named("heads", source.select(heads=wanted).heads)


def last_layer(source: Heads) -> list[int]:
    """The last layer there is, as a list."""
    return source.layers[-1:]


def early_to_late(source: Heads) -> list[int]:
    """The paper's layers 1, 6, 11 of twelve; of any other number the first, the middle one and the last."""
    there = source.layers
    if len(there) == 12:
        return [there[k] for k in (1, 6, 11)]
    return _once([there[0], there[len(there) // 2], there[-1]])


def early_to_last_two(source: Heads) -> list[int]:
    """The paper's layers 1, 6, 10, 11 of twelve; of any other number the first, the middle one and the last two."""
    there = source.layers
    if len(there) == 12:
        return [there[k] for k in (1, 6, 10, 11)]
    return sorted(_once([there[0], there[len(there) // 2], *there[-2:]]), key=there.index)


def paper_heads(source: Heads) -> list[int]:
    """The paper's heads 2 and 8; where they are not both there, the first and the last."""
    there = source.heads
    return [2, 8] if {2, 8} <= set(there) else _once([there[0], there[-1]])


def exemplary_head(source: Heads) -> list[int]:
    """The paper's head 8; where it is not there, the last."""
    return [8] if 8 in source.heads else source.heads[-1:]


def exemplary_heads(source: Heads) -> list[int]:
    """The paper's heads 5, 7 and 8; where they are not all there, the first, the middle one and the last."""
    there = source.heads
    return [5, 7, 8] if {5, 7, 8} <= set(there) else _once([there[0], there[len(there) // 2], there[-1]])


def need(study: Study, figure: str, variables: Iterable[str]) -> None:
    """Refuse a study of selected heads for what is counted over all heads of a layer."""
    absent = [name for name in variables if name not in study.data]
    if absent:
        raise StudyError(
            f"{figure} is counted over all heads of a layer, and a study of selected heads no longer holds "
            f"{', '.join(absent)}: draw it from the whole study"
        )


def _named(kind: str, numbers: list[int]) -> list[int]:
    if not numbers:
        raise StudyError(f"no {kind} to draw: the list given is empty")
    return _once(numbers)


def _once(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))

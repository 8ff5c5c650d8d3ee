"""Recount the pairs of Fig. 9 under other choices than METHOD's, and find which of them match the paper better.

The paper leaves some choices open and METHOD fixes them. Every combination is counted over one reading, for all θ at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from headscope.array_types import Bools, Floats, Ints
from headscope.readings.reading import Reading
from headscope.similarity import THETA

THETAS: Floats = np.arange(1, 100) / 100
"""0.01 to 0.99; contains METHOD's θ exactly, because 30 / 100 is the same float as 0.3"""

Special = Literal["take part", "not listed", "not in the maximum", "left out"]
SPECIAL: tuple[Special, ...] = ("take part", "not listed", "not in the maximum", "left out")


@dataclass(frozen=True)
class Published:
    """What a figure of pairs prints: its text, its tokens, and the pairs of each head."""

    text: str
    tokens: tuple[str, ...]
    layer: int
    pairs: Mapping[int, tuple[tuple[int, int], ...]]
    """by head, i < j"""

    def __len__(self) -> int:
        """Return the number of pairs over all heads."""
        return sum(map(len, self.pairs.values()))


@dataclass(frozen=True)
class Outcome:
    """How well two lists of pairs agree."""

    matched: int
    missing: int
    extra: int

    @property
    def jaccard(self) -> float:
        """Matched pairs divided by the pairs in either list."""
        return self.matched / max(self.matched + self.missing + self.extra, 1)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "jaccard": self.jaccard}


@dataclass(frozen=True)
class Choice:
    """How pairs are computed from a reading. The defaults are METHOD's.

    >>> Choice().changes, Choice(theta=0.25, heads_from=1).changes
    ((), ('θ = 0.25', 'heads numbered from 1'))
    """

    theta: float = THETA
    special: Special = "take part"
    """special tokens are `left out` of the pairs and of max(C), only `not listed` among the pairs, or only `not in the
    maximum`"""
    heads_from: int = 0
    """from 1: the paper's head 5 is head 4 here"""
    layers_from: int = 0
    """from 1: the paper's layer 11 is layer 10 here"""
    diagonal: bool = False
    """whether max(C) includes the diagonal"""
    unit_length: bool = False
    """whether outputs are scaled to length 1, which makes C the cosine"""

    @property
    def changes(self) -> tuple[str, ...]:
        """The differences from METHOD, in words."""
        return tuple(_DESCRIPTIONS[name](getattr(self, name)) for name in self.changed)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the fields that differ from METHOD's."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) != field.default)

    def is_extension_of(self, other: Choice) -> bool:
        """Whether this choice makes all changes of the other and more. θ is one change, whatever its value."""
        own_names, other_names = set(self.changed), set(other.changed)
        return other_names < own_names and all(
            getattr(self, name) == getattr(other, name) for name in other_names - {"theta"}
        )


_DESCRIPTIONS: dict[str, Any] = {
    "theta": lambda theta: f"θ = {theta:.2f}",
    "special": {
        "not listed": "pairs with special tokens not listed",
        "not in the maximum": "special tokens left out of the maximum",
        "left out": "special tokens left out",
    }.__getitem__,
    "heads_from": lambda first: f"heads numbered from {first}",
    "layers_from": lambda first: f"layers numbered from {first}",
    "diagonal": lambda _: "diagonal kept in the maximum",
    "unit_length": lambda _: "outputs of unit length (cosine)",
}


@dataclass(frozen=True)
class Alternative:
    """Another choice, and how it matches, summed over the published heads."""

    choice: Choice
    outcome: Outcome
    theta_from: float
    theta_to: float
    """every θ from `theta_from` to `theta_to` gives the same counts"""


@dataclass(frozen=True)
class Counts:
    """Matched and extra pairs of one combination of the choices other than θ, for every θ of THETAS."""

    choice: Choice
    matched: Ints
    """(θ)"""
    extra: Ints
    """(θ)"""


def count_choices(reading: Reading, figure: Published) -> list[Counts]:
    """Return the counts of every combination of choices whose layer and heads the model has."""
    is_special = np.asarray(reading.data["special"].values, dtype=bool)
    results = []
    for special, heads_from, layers_from, diagonal, unit in product(
        SPECIAL, (0, 1), (0, 1), (False, True), (False, True)
    ):
        choice = Choice(THETA, special, heads_from, layers_from, diagonal, unit)
        layer, heads = figure.layer - layers_from, [head - heads_from for head in figure.pairs]
        if layer not in reading.layers or not set(heads) <= set(reading.heads_of(layer)):
            continue
        counts = [
            _count_pairs(reading.output(layer, head), is_special, choice, pairs)
            for head, pairs in zip(heads, figure.pairs.values(), strict=True)
        ]
        matched, extra = (np.sum([head_counts[k] for head_counts in counts], axis=0) for k in (0, 1))
        results.append(Counts(choice, matched, extra))
    return results


def select_better(counts: list[Counts], figure: Published) -> tuple[Alternative, ...]:
    """Return the choices that match better than METHOD, best first.

    Ties are ordered by nearness to METHOD: fewest changes, then nearest θ.
    """
    method_index = int(np.flatnonzero(THETAS == THETA)[0])
    # Of each combination: with METHOD's θ, and with the θ that matches best.
    candidates = [
        _make_alternative(combination, index, len(figure))
        for combination in counts
        for index in sorted({method_index, _find_best_theta(combination, method_index, figure)})
    ]
    # Drop those that make a further change and gain nothing by it.
    candidates = [
        candidate
        for candidate in candidates
        if not any(
            candidate.choice.is_extension_of(other.choice) and other.outcome.jaccard >= candidate.outcome.jaccard
            for other in candidates
        )
    ]
    # Further ties stay in the order of the fields, because the sort is stable.
    candidates.sort(
        key=lambda candidate: (
            -candidate.outcome.jaccard,
            len(candidate.choice.changed),
            abs(candidate.choice.theta - THETA),
        )
    )
    return tuple(candidate for candidate in candidates if candidate.choice.changed)


def _count_pairs(
    output: Floats, is_special: Bools, choice: Choice, pairs: tuple[tuple[int, int], ...]
) -> tuple[Ints, Ints]:
    """Return, for every θ, how many high pairs of a head are published, and how many are not."""
    similarities, largest = _compute_similarities(output, is_special, choice)
    limits = THETAS * largest
    i, j = np.array(sorted((min(pair), max(pair)) for pair in pairs), dtype=np.int64).reshape(-1, 2).T
    high = _count_above(similarities[np.triu_indices(len(output), k=1)], limits)
    matched = _count_above(similarities[i, j], limits)
    return matched, high - matched


def _compute_similarities(output: Floats, is_special: Bools, choice: Choice) -> tuple[Floats, float]:
    """Return C, and the maximum that θ is relative to. Pairs that a choice leaves out are −∞, which is never high."""
    if choice.unit_length:
        lengths = np.linalg.norm(output, axis=1, keepdims=True)
        output = np.divide(output, lengths, out=np.zeros_like(output), where=lengths > 0)
    matrix = output @ output.T
    if not choice.diagonal:
        np.fill_diagonal(matrix, 0.0)
    in_maximum = ~is_special if choice.special in ("not in the maximum", "left out") else np.ones_like(is_special)
    largest = float(matrix[np.ix_(in_maximum, in_maximum)].max(initial=0.0))
    if choice.special in ("not listed", "left out"):
        matrix[is_special] = matrix[:, is_special] = -np.inf
    return matrix, largest


def _count_above(values: Floats, limits: Floats) -> Ints:
    """Return how many values exceed each limit."""
    return np.asarray(len(values) - np.searchsorted(np.sort(values), limits, side="right"), dtype=np.int64)


def _find_best_theta(counts: Counts, method_index: int, figure: Published) -> int:
    """Return the index of the θ with the highest Jaccard index; of several, the nearest to METHOD's."""
    # matched / (matched + missing + extra), where matched + missing is the number of published pairs
    jaccard = counts.matched / (len(figure) + counts.extra)
    best = np.flatnonzero(jaccard == jaccard.max())
    return int(best[np.argmin(np.abs(best - method_index))])


def _make_alternative(counts: Counts, index: int, published: int) -> Alternative:
    """Return the choice with the θ at an index, and the range of θ around it with the same counts."""
    matched, extra = int(counts.matched[index]), int(counts.extra[index])
    differing = np.flatnonzero((counts.matched != matched) | (counts.extra != extra))
    before, after = differing[differing < index], differing[differing > index]
    return Alternative(
        choice=replace(counts.choice, theta=float(THETAS[index])),
        outcome=Outcome(matched, published - matched, extra),
        theta_from=float(THETAS[before[-1] + 1 if len(before) else 0]),
        theta_to=float(THETAS[after[0] - 1 if len(after) else len(THETAS) - 1]),
    )

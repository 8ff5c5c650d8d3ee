"""The choices a list of pairs rests on, each tried otherwise: which of them would match a published list better?

The paper leaves some open and METHOD fixes them. Every combination is counted over one reading, for every θ at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from headscope.readings.reading import Reading
from headscope.similarity import THETA
from headscope.types import Bools, Floats, Ints

THETAS: Floats = np.arange(1, 100) / 100
"""θ of METHOD is one of them to the last bit: 30 / 100 is the number that 0.3 is"""

Special = Literal["take part", "not listed", "not in the maximum", "left out"]
SPECIAL: tuple[Special, ...] = ("take part", "not listed", "not in the maximum", "left out")


@dataclass(frozen=True)
class Published:
    """What a figure of pairs prints: its text, tokens, and each head's pairs."""

    text: str
    tokens: tuple[str, ...]
    layer: int
    pairs: Mapping[int, tuple[tuple[int, int], ...]]
    """by head, i < j"""

    def __len__(self) -> int:
        """The number of pairs over all heads."""
        return sum(map(len, self.pairs.values()))


@dataclass(frozen=True)
class Outcome:
    """How two lists of pairs agree."""

    matched: int
    missing: int
    extra: int

    @property
    def jaccard(self) -> float:
        """Matched, of all pairs in either list."""
        return self.matched / max(self.matched + self.missing + self.extra, 1)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "jaccard": self.jaccard}


@dataclass(frozen=True)
class Choice:
    """How pairs are made of a reading. The defaults are METHOD's.

    >>> Choice().changes, Choice(theta=0.25, heads_from=1).changes
    ((), ('θ = 0.25', 'heads numbered from 1'))
    """

    theta: float = THETA
    special: Special = "take part"
    """`left out` of the pairs and of max(C), `not listed` among the pairs alone, or `not in the maximum` alone"""
    heads_from: int = 0
    """from 1: the paper's head 5 is head 4 here"""
    layers_from: int = 0
    """from 1: the paper's layer 11 is layer 10 here"""
    diagonal: bool = False
    """whether the diagonal takes part in max(C)"""
    unit_length: bool = False
    """whether outputs are scaled to length 1, which makes C the cosine"""

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs from METHOD, in words."""
        return tuple(_WORDS[name](getattr(self, name)) for name in self.changed)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the fields that differ from METHOD's."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) != each.default)

    def adds_to(self, other: Choice) -> bool:
        """Whether this choice makes all changes that the other makes, and more. θ is one change, whatever its value."""
        mine, its = set(self.changed), set(other.changed)
        return its < mine and all(getattr(self, name) == getattr(other, name) for name in its - {"theta"})


_WORDS: dict[str, Any] = {
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
    """every θ from here to there counts the same"""


@dataclass(frozen=True)
class Counts:
    """One combination of the choices beside θ: pairs matched and extra, for every θ of THETAS."""

    choice: Choice
    matched: Ints
    extra: Ints


def tried(reading: Reading, figure: Published) -> list[Counts]:
    """Every combination of the choices whose heads this model has."""
    hidden = np.asarray(reading.data["special"].values, dtype=bool)
    made = []
    for special, heads_from, layers_from, diagonal, unit in product(
        SPECIAL, (0, 1), (0, 1), (False, True), (False, True)
    ):
        choice = Choice(THETA, special, heads_from, layers_from, diagonal, unit)
        layer, heads = figure.layer - layers_from, [head - heads_from for head in figure.pairs]
        if layer not in reading.layers or not set(heads) <= set(reading.heads):
            continue
        counts = [
            _counted(output_of(reading, layer, head), hidden, choice, pairs)
            for head, pairs in zip(heads, figure.pairs.values(), strict=True)
        ]
        matched, extra = (np.sum([each[k] for each in counts], axis=0) for k in (0, 1))
        made.append(Counts(choice, matched, extra))
    return made


def better(counted: list[Counts], figure: Published) -> tuple[Alternative, ...]:
    """What matches better than METHOD, best first; of equals the nearest to METHOD: fewest changes, then nearest θ."""
    own = int(np.flatnonzero(THETAS == THETA)[0])
    # Of each combination: with θ as it is, and with the θ that matches best.
    made = [
        _alternative(counts, at, len(figure)) for counts in counted for at in sorted({own, _best(counts, own, figure)})
    ]
    made = [
        one
        for one in made
        if not any(one.choice.adds_to(two.choice) and two.outcome.jaccard >= one.outcome.jaccard for two in made)
    ]
    # Further ties stay in the order of the fields, for the sort is stable.
    made.sort(key=lambda one: (-one.outcome.jaccard, len(one.choice.changed), abs(one.choice.theta - THETA)))
    return tuple(one for one in made if one.choice.changed)


def output_of(reading: Reading, layer: int, head: int) -> Floats:
    """What one head writes, in float64."""
    return np.asarray(reading.outputs.sel(layer=layer, head=head).values, dtype=np.float64)


def _counted(output: Floats, hidden: Bools, choice: Choice, pairs: tuple[tuple[int, int], ...]) -> tuple[Ints, Ints]:
    """Pairs of one head that are high and published, and those that are high and not, for every θ."""
    values, largest = _similarities(output, hidden, choice)
    limits = THETAS * largest
    i, j = np.array(sorted((min(pair), max(pair)) for pair in pairs), dtype=np.int64).reshape(-1, 2).T
    high = _above(values[np.triu_indices(len(output), k=1)], limits)
    matched = _above(values[i, j], limits)
    return matched, high - matched


def _similarities(output: Floats, hidden: Bools, choice: Choice) -> tuple[Floats, float]:
    """C, and what θ is a share of. Pairs that a choice leaves out are −∞, which exceeds nothing."""
    if choice.unit_length:
        lengths = np.linalg.norm(output, axis=1, keepdims=True)
        output = np.divide(output, lengths, out=np.zeros_like(output), where=lengths > 0)
    matrix = output @ output.T
    if not choice.diagonal:
        np.fill_diagonal(matrix, 0.0)
    kept = ~hidden if choice.special in ("not in the maximum", "left out") else np.ones_like(hidden)
    largest = float(matrix[np.ix_(kept, kept)].max(initial=0.0))
    if choice.special in ("not listed", "left out"):
        matrix[hidden] = matrix[:, hidden] = -np.inf
    return matrix, largest


def _above(values: Floats, limits: Floats) -> Ints:
    """How many values exceed each limit."""
    return np.asarray(len(values) - np.searchsorted(np.sort(values), limits, side="right"), dtype=np.int64)


def _best(counts: Counts, own: int, figure: Published) -> int:
    """The index of the θ with the highest Jaccard index; of several, the nearest to METHOD's."""
    # matched / (matched + missing + extra), where matched + missing is what was published
    jaccard = counts.matched / (len(figure) + counts.extra)
    best = np.flatnonzero(jaccard == jaccard.max())
    return int(best[np.argmin(np.abs(best - own))])


def _alternative(counts: Counts, at: int, published: int) -> Alternative:
    matched, extra = int(counts.matched[at]), int(counts.extra[at])
    other = np.flatnonzero((counts.matched != matched) | (counts.extra != extra))
    before, after = other[other < at], other[other > at]
    return Alternative(
        choice=replace(counts.choice, theta=float(THETAS[at])),
        outcome=Outcome(matched, published - matched, extra),
        theta_from=float(THETAS[before[-1] + 1 if len(before) else 0]),
        theta_to=float(THETAS[after[0] - 1 if len(after) else len(THETAS) - 1]),
    )

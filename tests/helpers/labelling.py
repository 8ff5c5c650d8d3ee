"""Windows with labelled relations, and the comparison of their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headscope.corpus.relations import WindowRelations
from headscope.corpus.windows import Window
from headscope.tally.tally import Tally

LABELS = ("amod", "conj", "nsubj")


def relate(window: Window, pairs: Sequence[tuple[int, int, str]], words: Sequence[int] | None = None) -> Window:
    """Return a window with labelled pairs of tokens; by default every token begins a word."""
    first, second = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in range(2))
    is_word = np.isin(np.arange(len(window)), range(len(window)) if words is None else words)
    return replace(window, relations=WindowRelations(first, second, tuple(pair[2] for pair in pairs), is_word))


def draw_relations(random: np.random.Generator, window: Window) -> Window:
    """Return a window with random relations, or none; few tokens do not begin a word."""
    if random.random() < 0.2:
        return window
    pairs = []
    for _ in range(random.integers(0, 6)):
        first, second = random.choice(len(window), 2, replace=False).tolist()
        pairs.append((first, second, str(random.choice(LABELS))))
    words = np.flatnonzero(random.random(len(window)) < 0.8).tolist()
    return relate(window, pairs, [*words, *(position for pair in pairs for position in pair[:2])])


def assert_same_relations(
    actual: Tally, expected: Tally, *, rtol: float = 1e-12, atol: float = 1e-13, exact: bool = True
) -> None:
    """Assert that sums of labelled relations agree; counts may differ unless they are `exact`."""
    assert actual.relations.keys() == expected.relations.keys()
    for label, sums in actual.relations.items():
        for name, values in sums.items():
            other = expected.relations[label][name]
            assert values.dtype == other.dtype
            if values.dtype.kind == "i" and exact:
                np.testing.assert_array_equal(values, other, err_msg=f"{label} {name}")
            else:
                np.testing.assert_allclose(values, other, rtol=rtol, atol=atol, err_msg=f"{label} {name}")

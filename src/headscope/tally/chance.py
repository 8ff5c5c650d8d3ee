"""What chance would give: pairs drawn at random, for the dominant token (METHOD §6, finding 9), and shuffled places.

The null of a head with p high pairs in a text is p pairs drawn at random from all pairs of that text. (Shuffling that
also keeps how many pairs each token has would keep the dominant share as it is, and so be no null at all.) The draw
depends on the window's digest alone: all pairs are ranked by a hash, and the p of lowest rank are taken, so every head
and every machine draws from one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.corpus.windows import Window
from headscope.types import Bools, Ints

NO_ROW = 2**31 - 1
"""Places are ordered by other numbers than pairs are."""


def pair_order(window: Window) -> Ints:
    """All pairs i < j of the window in its random order: N(N−1)/2 rows of two places."""
    rows, columns = np.triu_indices(len(window), k=1)
    order = np.argsort(keys_of_pairs(np.uint64(window.digest), rows, columns), kind="stable")
    return np.stack([rows[order], columns[order]], axis=1)


def keys_of_pairs(digest: Any, rows: Ints, columns: Ints) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """What pairs of a window are ordered by; several digests may be given as a column."""
    return _mixed(digest + (rows.astype(np.uint64) << np.uint64(32)) + columns.astype(np.uint64))


def pair_ranks(window: Window) -> Ints:
    """A symmetric N×N matrix: the rank 0…N(N−1)/2−1 of each pair in the window's random order; on the diagonal N²."""
    n = len(window)
    rows, columns = pair_order(window).T
    ranks = np.full((n, n), n * n, dtype=np.int64)
    ranks[rows, columns] = np.arange(len(rows))
    return np.minimum(ranks, ranks.T)


def place_order(window: Window) -> Ints:
    """The places of the window in its random order, for shuffling what stands there."""
    places = np.arange(len(window))
    return np.argsort(keys_of_pairs(np.uint64(window.digest), np.full_like(places, NO_ROW), places), kind="stable")


def place_orders(windows: Sequence[Window], real: Bools) -> Ints:
    """The same for several windows at once (window, place), padding left where it is."""
    places = np.arange(real.shape[1])
    digests = np.array([window.digest for window in windows], np.uint64)[:, None]
    keys = keys_of_pairs(digests, np.full_like(places, NO_ROW), places)
    # Padding comes last and in its own order: of equal numbers the first stays first.
    return np.argsort(np.where(real, keys, np.iinfo(np.uint64).max), axis=1, kind="stable")


def _mixed(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """splitmix64: every bit of the input reaches every bit of the output."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

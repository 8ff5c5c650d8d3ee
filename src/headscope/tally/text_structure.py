"""What a text alone determines, whatever the heads do: random orders of its pairs and places, and its receivers.

Random orders give what chance would: pairs drawn at random, for the dominant token (METHOD §6, finding 9), and shuffled
places. The null of a head with p high pairs in a text is p pairs drawn at random from all pairs of that text.
(Shuffling that also keeps how many pairs each token has would keep the dominant share as it is, and so be no null at
all.) The draw depends on the window's digest alone: all pairs are ranked by a hash, and the p of lowest rank are taken,
so every head and every machine draws from one order.

Receivers are what attention goes to: for each query and key of a window, which of the receivers the key is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.corpus.windows import Window
from headscope.tally.quantities import RECEIVERS
from headscope.types import Bools, Floats, Ints

Array = np.ndarray[Any, Any]

NO_ROW = 2**31 - 1
"""Places are ordered by other numbers than pairs are."""
FIRST, LAST_SPECIAL, SENTENCE_END, COMMA, ITSELF, NEIGHBOUR, REST = range(len(RECEIVERS))


def pair_order(window: Window) -> Ints:
    """Return all pairs i < j of the window in its random order: N(N−1)/2 rows of two places."""
    rows, columns = np.triu_indices(len(window), k=1)
    order = np.argsort(keys_of_pairs(np.uint64(window.digest), rows, columns), kind="stable")
    return np.stack([rows[order], columns[order]], axis=1)


def keys_of_pairs(digest: Any, rows: Ints, columns: Ints) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return what pairs of a window are ordered by; several digests may be given as a column."""
    return _mixed(digest + (rows.astype(np.uint64) << np.uint64(32)) + columns.astype(np.uint64))


def pair_ranks(window: Window) -> Ints:
    """Return a symmetric N×N matrix: each pair's rank 0…N(N−1)/2−1 in the window's random order; on the diagonal N²."""
    n = len(window)
    rows, columns = pair_order(window).T
    ranks = np.full((n, n), n * n, dtype=np.int64)
    ranks[rows, columns] = np.arange(len(rows))
    return np.minimum(ranks, ranks.T)


def place_order(window: Window) -> Ints:
    """Return the places of the window in its random order, for shuffling what stands there."""
    places = np.arange(len(window))
    return np.argsort(keys_of_pairs(np.uint64(window.digest), np.full_like(places, NO_ROW), places), kind="stable")


def place_orders(windows: Sequence[Window], real: Bools) -> Ints:
    """Return `place_order` of several windows at once (window, place), padding left where it is."""
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


def receivers(window: Window) -> Ints:
    """Return receiver numbers (query, key) of a window; of several that fit, the first in order counts.

    Keys may be another window's tokens (cross-attention); itself and neighbours are then those of the same place.
    """
    n = len(window)
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    kinds = np.full((n, n), REST, dtype=np.int64)
    kinds[apart == 1] = NEIGHBOUR
    kinds[apart == 0] = ITSELF
    keys = key_kinds([window])
    return np.where(keys == REST, kinds, keys)


def key_kinds(windows: list[Window]) -> Ints:
    """Return what each key of some windows, one after the other, is to every query alike.

    REST: a key that is a receiver only by its place beside the query.
    """
    keys = [window.keys for window in windows]
    ends = np.cumsum([len(key) for key in keys])
    starts = np.concatenate([[0], ends[:-1]])
    kinds = np.full(ends[-1], REST, dtype=np.int64)
    kinds[np.concatenate([key.comma for key in keys])] = COMMA
    kinds[np.concatenate([key.end for key in keys])] = SENTENCE_END
    special = np.flatnonzero(np.concatenate([key.special for key in keys]))
    if len(special):
        last = special[np.searchsorted(special, ends) - 1]  # where there is none before, this wraps to a later one
        kinds[last[(last >= starts) & (last < ends)]] = LAST_SPECIAL
    kinds[starts] = FIRST
    return kinds


def spread(kinds: Array, lengths: Array, *, causal: bool) -> Floats:
    """Return what each receiver would get from queries that look evenly at all tokens they reach: (text, receiver).

    `kinds` (text, key) are those of `key_kinds`, whatever stands on padding.
    """
    places = np.arange(kinds.shape[1])
    kinds = np.where(places < lengths[:, None], kinds, len(RECEIVERS))  # padding is a kind of its own
    plain = kinds == REST
    at = (np.arange(len(kinds))[:, None] * (len(RECEIVERS) + 1) + kinds).ravel()
    if causal:
        # Query i gives each of i + 1 keys the same; key j is reached by all queries from j on.
        harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, kinds.shape[1] + 1))])
        share = (harmonic[lengths][:, None] - harmonic[places]).ravel()
        own = plain @ (1.0 / (places + 1))
        beside = plain @ (1.0 / (places + 2)) - plain[np.arange(len(kinds)), lengths - 1] / (lengths + 1)
    else:
        share = None
        ends = plain[:, 0] * 1.0 + plain[np.arange(len(kinds)), lengths - 1]
        own, beside = plain.sum(1) / lengths, (2.0 * plain.sum(1) - ends) / lengths
    sums = np.bincount(at, share, len(kinds) * (len(RECEIVERS) + 1)).reshape(len(kinds), -1)[:, : len(RECEIVERS)] * 1.0
    sums[:, ITSELF] += own
    sums[:, NEIGHBOUR] += beside
    # Below 0 by rounding alone.
    sums[:, REST] = np.maximum(sums[:, REST] - own - beside, 0.0)
    return sums

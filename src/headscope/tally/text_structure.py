"""What a text alone determines: relations of its pairs, random orders (the null model), attention receivers.

Random orders give what chance gives: pairs drawn at random, for the dominant token (METHOD §6, finding 9), and shuffled
positions. The null of a head with p high pairs in a text is p pairs drawn at random from all pairs of that text.
(Shuffling that also keeps the number of pairs of each token would keep the dominant share, so it would be no null.) The
draw depends only on the window's digest: all pairs are ranked by a hash, and the p of lowest rank are taken, so that
every head and every machine draws from the same order.

Receivers are what attention goes to: for each query and key of a window, which of the receivers the key is.

How the two tokens of a pair are related, that is, which pairs the text itself explains (docs/reading.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.array_types import Bools, Floats, Ints
from headscope.corpus.windows import Window
from headscope.tally.quantities import RECEIVERS

Array = np.ndarray[Any, Any]

NO_ROW = 2**31 - 1
"""Positions are hashed like pairs of this row, so that their order is independent of the order of pairs."""
FIRST, LAST_SPECIAL, SENTENCE_END, COMMA, ITSELF, NEIGHBOR, REST = range(len(RECEIVERS))


def draw_pair_order(window: Window) -> Ints:
    """Return all pairs i < j of a window in random order: (N(N−1)/2, 2)."""
    rows, columns = np.triu_indices(len(window), k=1)
    order = np.argsort(hash_pairs(np.uint64(window.digest), rows, columns), kind="stable")
    return np.stack([rows[order], columns[order]], axis=1)


def hash_pairs(digest: Any, rows: Ints, columns: Ints) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the hashes that pairs of a window are ordered by. A column of digests gives one row per window."""
    return _hash_integers(digest + (rows.astype(np.uint64) << np.uint64(32)) + columns.astype(np.uint64))


def rank_pairs(window: Window) -> Ints:
    """Return each pair's rank 0…N(N−1)/2−1 in the window's random order as a symmetric matrix (N, N), with N² on the
    diagonal."""
    n = len(window)
    rows, columns = draw_pair_order(window).T
    ranks = np.full((n, n), n * n, dtype=np.int64)
    ranks[rows, columns] = np.arange(len(rows))
    return np.minimum(ranks, ranks.T)


def draw_position_order(window: Window) -> Ints:
    """Return the positions of a window in random order, for shuffling its tokens."""
    positions = np.arange(len(window))
    return np.argsort(hash_pairs(np.uint64(window.digest), np.full_like(positions, NO_ROW), positions), kind="stable")


def draw_position_orders(windows: Sequence[Window], real: Bools) -> Ints:
    """Return `draw_position_order` of several windows at once, (window, position); padding stays where it is."""
    positions = np.arange(real.shape[1])
    digests = np.array([window.digest for window in windows], np.uint64)[:, None]
    hashes = hash_pairs(digests, np.full_like(positions, NO_ROW), positions)
    # Padding comes last and keeps its order, because the sort is stable.
    return np.argsort(np.where(real, hashes, np.iinfo(np.uint64).max), axis=1, kind="stable")


def _hash_integers(values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return splitmix64 of integers: every bit of the input affects every bit of the output."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def measure_sentences(windows: Sequence[Window]) -> tuple[Ints, Ints]:
    """Return the number of tokens of every sentence of several windows, and the number of its window."""
    sentence = np.concatenate([window.sentence for window in windows])
    number = np.repeat(np.arange(len(windows)), [len(window) for window in windows])
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(sentence) != 0) | (np.diff(number) != 0)]))
    return np.diff(np.append(starts, len(sentence))), number[starts]


def find_receivers(window: Window) -> Ints:
    """Return the receiver numbers of a window, (query, key). If several receivers fit, the first counts.

    Keys may be another window's tokens (cross-attention). If both are of one text, itself and neighbours are those of
    the same position; if not, there are none.
    """
    distance = np.abs(np.subtract.outer(np.arange(len(window)), np.arange(len(window.keys))))
    by_distance = np.full(distance.shape, REST, dtype=np.int64)
    if not (window.crosses and window.is_pair):
        by_distance[distance == 1] = NEIGHBOR
        by_distance[distance == 0] = ITSELF
    key_receivers = find_key_receivers([window])
    return np.where(key_receivers == REST, by_distance, key_receivers)


def find_key_receivers(windows: list[Window]) -> Ints:
    """Return the receiver that each key is to all queries alike, for the keys of several windows in a row.

    REST stands for a key that is a receiver only by its distance from the query.
    """
    keys = [window.keys for window in windows]
    ends = np.cumsum([len(key) for key in keys])
    starts = np.concatenate([[0], ends[:-1]])
    receivers = np.full(ends[-1], REST, dtype=np.int64)
    receivers[np.concatenate([key.comma for key in keys])] = COMMA
    receivers[np.concatenate([key.end for key in keys])] = SENTENCE_END
    special = np.flatnonzero(np.concatenate([key.special for key in keys]))
    if len(special):
        last = special[np.searchsorted(special, ends) - 1]  # wraps around to a later window if there is none before
        receivers[last[(last >= starts) & (last < ends)]] = LAST_SPECIAL
    receivers[starts] = FIRST
    return receivers


def compute_even_spread(keys: Array, lengths: Array, *, causal: bool) -> Floats:
    """Return what each receiver gets from queries that attend evenly to all keys they reach: (text, receiver).

    `keys` (text, key) are those of `find_key_receivers`; values on padding are ignored.
    """
    positions = np.arange(keys.shape[1])
    keys = np.where(positions < lengths[:, None], keys, len(RECEIVERS))  # padding gets an index of its own
    is_rest = keys == REST
    index = (np.arange(len(keys))[:, None] * (len(RECEIVERS) + 1) + keys).ravel()
    if causal:
        # Query i gives 1/(i + 1) to each of i + 1 keys; key j is reached by all queries from j on.
        harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, keys.shape[1] + 1))])
        share = (harmonic[lengths][:, None] - harmonic[positions]).ravel()
        to_itself = is_rest @ (1.0 / (positions + 1))
        to_neighbors = is_rest @ (1.0 / (positions + 2)) - is_rest[np.arange(len(keys)), lengths - 1] / (lengths + 1)
    else:
        share = None
        ends = is_rest[:, 0] * 1.0 + is_rest[np.arange(len(keys)), lengths - 1]
        to_itself, to_neighbors = is_rest.sum(1) / lengths, (2.0 * is_rest.sum(1) - ends) / lengths
    sums = np.bincount(index, share, len(keys) * (len(RECEIVERS) + 1)).reshape(len(keys), -1)[:, : len(RECEIVERS)] * 1.0
    sums[:, ITSELF] += to_itself
    sums[:, NEIGHBOR] += to_neighbors
    # Negative only by rounding.
    sums[:, REST] = np.maximum(sums[:, REST] - to_itself - to_neighbors, 0.0)
    return sums


def compute_relations(window: Window) -> Bools:
    """Return for each pair whether its tokens are equal, in one sentence, and neighbours: (3, N, N)."""
    positions = np.arange(len(window))
    equal = window.ids[:, None] == window.ids[None, :]
    same = window.sentence[:, None] == window.sentence[None, :]
    return np.stack([equal, same, np.abs(positions[:, None] - positions[None, :]) == 1])


def mark_explained(relations: Bools) -> Bools:
    """Return which pairs are related in any way: (N, N)."""
    related: Bools = np.logical_or.reduce(relations)
    return related

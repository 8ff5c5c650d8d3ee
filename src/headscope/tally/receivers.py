"""Who attention goes to: for each query and key of a window, which of the receivers the key is."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.corpus.windows import Window
from headscope.tally.quantities import RECEIVERS
from headscope.types import Floats, Ints

Array = np.ndarray[Any, Any]

FIRST, LAST_SPECIAL, SENTENCE_END, COMMA, ITSELF, NEIGHBOUR, REST = range(len(RECEIVERS))


def receivers(window: Window) -> Ints:
    """An N×N matrix of receiver numbers, row = query, column = key; of several that fit, the first in order counts.

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
    """What each key of some windows, one after the other, is to every query alike; REST: a key that is a receiver only
    by its place beside the query."""
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
    """What each receiver would get from queries that look evenly at all tokens they reach: (text, receiver).

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

"""Attention scores (METHOD §7) of every map, while it is in the cache.

What all queries give to a key is known already, so most scores need only the sum of a few elements: their places are
listed once per text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.corpus.windows import Batch
from headscope.tally.numba_backend.attention import add_entropies, compute_logarithms
from headscope.tally.numba_backend.jit import compiled
from headscope.tally.quantities import FIRST_DISTANT, RECENT, SINK

SPECIAL, DUPLICATE, INDUCTION, SINKS, FAR_SINKS = range(5)
"""sums of the elements of a map: from special tokens to special tokens, to equal tokens, to what followed earlier equal
tokens, to sinks, and to sinks that are not recent"""
LISTED = 3
"""the first of them are sums of elements that are listed; both others are of the same elements in every text"""
PADDING = -2


class ScorePlaces:
    """The elements of maps that belong to the scores of a batch of texts.

    Attributes:
        elements: Their positions in a map (query, key), one after the other, text by text.
        edges: Where they start for each text and sum, and where they end (text, sum + 1).
        special: Keys that are special tokens (text, key).
        punctuation: Keys without letters or digits.
    """

    def __init__(self, batch: Batch, *, causal: bool) -> None:
        windows, shape = batch.windows, batch.ids.shape
        self.crosses = windows[0].crosses
        queries, self.special, self.punctuation = np.zeros((3, *shape), dtype=bool)
        queries[batch.real] = np.concatenate([window.special for window in windows])
        self.special[batch.real_keys] = np.concatenate([window.keys.special for window in windows])
        self.punctuation[batch.real_keys] = np.concatenate([window.keys.punctuation for window in windows])
        self.edges = np.zeros((len(windows), LISTED + 1), np.int64)
        if self.crosses:  # only special tokens are both queries and keys
            are_special = queries[:, :, None] & self.special[:, None, :]
            _, rows, columns = np.nonzero(are_special)
            self.elements = (rows * shape[1] + columns).astype(np.int32)
            self.edges[:, 1:] = are_special.sum((1, 2)).cumsum()[:, None]
            self.edges[1:, 0] = self.edges[:-1, LISTED]
            return
        ids = np.where(queries, -1, np.where(batch.real, batch.ids, PADDING))
        order = np.argsort(ids, axis=1, kind="stable")
        size = list_elements(ids, order, causal, self.edges, np.zeros(0, np.int32))
        self.elements = np.zeros(size, np.int32)
        list_elements(ids, order, causal, self.edges, self.elements)


@compiled()
def list_elements(ids: Any, order: Any, causal: bool, edges: Any, elements: Any) -> int:
    """Set where the elements of each text and sum start, and the elements, if there is room for them; return their
    number.

    Args:
        ids: (text, position), −1 for special tokens, `PADDING` after them.
        order: positions of each text by id, equal ones in their order
    """
    n, count, is_filling = ids.shape[1], 0, len(elements) > 0
    for text in range(len(ids)):
        for kind in range(LISTED):
            edges[text, kind] = count
            first = 0
            for rank in range(n):
                query = order[text, rank]
                token = ids[text, query]
                if rank and token != ids[text, order[text, rank - 1]]:
                    first = rank
                if token == PADDING or (token < 0) != (kind == SPECIAL):
                    continue
                other = first
                while other < n:
                    key = order[text, other]
                    if ids[text, key] != token:
                        break
                    other += 1
                    if kind == INDUCTION:
                        key += 1
                        is_target = key < query
                    elif kind == DUPLICATE:
                        is_target = key < query if causal else key != query
                    else:
                        is_target = key <= query or not causal
                    if is_target:
                        if is_filling:
                            elements[count] = query * n + key
                        count += 1
        edges[text, LISTED] = count
    return count


@compiled()
def add_score_sums(
    attention: Any, n: int, start: int, lengths: Any, edges: Any, elements: Any, causal: bool, sums: Any
) -> None:
    """Set the sums of the maps (text, head, query · n + key) of the texts from `start` on: (sum, text, head)."""
    for row in range(attention.shape[0]):
        text = start + row
        for head in range(attention.shape[1]):
            flat_map = attention[row, head]
            for kind in range(LISTED):
                sums[kind, text, head] = sum_elements(flat_map, elements[edges[text, kind] : edges[text, kind + 1]])
            if causal:
                for query in range(RECENT, lengths[text]):
                    for key in range(SINK):
                        value = np.float64(flat_map[query * n + key])
                        if query >= FIRST_DISTANT:
                            sums[SINKS, text, head] += value
                        if query - key >= RECENT:
                            sums[FAR_SINKS, text, head] += value


@compiled(fast=True, finite=False)
def sum_elements(flat_map: Any, elements: Any) -> Any:
    """Return the sum of these elements of a map."""
    total = np.float64(0)
    for k in range(elements.size):
        total += np.float64(flat_map[elements[k]])
    return total


@compiled()
def measure_entropies(
    attention: Any, int_attention: Any, start: int, lengths: Any, causal: bool, entropies: Any
) -> None:
    """Set the relative entropies of the maps (text, head, query, key) of the texts from `start` on, added up over
    queries: (text, head). `int_attention` are the maps as integers of the same bits."""
    logarithms = np.zeros(attention.shape[3], np.float32)
    uncertain = np.zeros(attention.shape[3], np.float32)
    for row in range(attention.shape[0]):
        n = lengths[start + row]
        for head in range(attention.shape[1]):
            for query in range(n):
                stop = query + 1 if causal else n
                compute_logarithms(int_attention[row, head, query, :stop], logarithms)
                uncertain[query] = -multiply(attention[row, head, query, :stop], logarithms)
            entropies[start + row, head] = add_entropies(uncertain, n, causal)


@compiled(fast=True, finite=False)
def multiply(first: Any, second: Any) -> Any:
    """Return the sum of the products of the numbers of two rows, the second of which may be longer."""
    total = np.float32(0)
    for k in range(first.size):
        total += first[k] * second[k]
    return total

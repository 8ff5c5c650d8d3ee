"""Texts that show what a head does: the choice of windows, and each head's numbers and strongest pairs in them.

Two kinds of windows of the sample are kept. Both depend on the texts alone, and add like sums, in any order:

    sketch      the `SKETCH` windows with the smallest digests, a random choice, with the counts of every head. When the
                rates of the whole corpus are known, those that are most typical of a head are found among them.
    strongest   for every head and every rate, the `STRONGEST` windows with the highest rate, of those in which the head
                has at least `MIN_PAIRS` high pairs. Ties go to the window with more pairs, then to the smaller digest.

Rates are quotients of integer counts, so backends agree unless a similarity is so near to the threshold that rounding
decides. Windows of the same tokens have the same digest and are kept once. Of a window the first `MAX_PLACES` tokens
are kept, and of a head the `STRONGEST_PAIRS` pairs with the highest similarities among these; similarities are stored
in steps of 1/255 of the largest, ties in the order of i, then j.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headscope.array_types import Ints
from headscope.corpus.windows import Window
from headscope.tally.quantities import MAX_PLACES

Array = np.ndarray[Any, Any]

COUNTS = ("pairs", "equal", "same", "near", "dominant", "distance_sum")
"""counts of one head in one text: its high pairs, those of equal tokens, in one sentence, of neighbors, and with the
dominant token, and the sum of their distances"""
RATES = ("repeat_rate", "same_sentence_rate", "near_share", "dominant_share", "mean_distance")
"""rates by which the strongest windows are found: the second and later counts, each divided by the first"""
SKETCH = 64
STRONGEST = 2
STRONGEST_PAIRS = 12
MIN_PAIRS = 10
"""Fewest high pairs of a head in a window that is an example of its rates."""
NEIGHBORS = 2
"""Largest distance, in tokens, of two tokens that count as neighbors."""
LEVELS = 255
NO_PAIR = -1
PLACE_BITS = 8
assert MAX_PLACES <= 1 << PLACE_BITS


class ExampleStore:
    """Windows that are examples, and each head's numbers in them. Stores of different texts add."""

    def __init__(self, layers: int, heads: int) -> None:
        self.layers, self.heads = layers, heads
        self.clear()

    def clear(self) -> None:
        """Remove all windows."""
        grid = (self.layers, self.heads)
        self.sketch_digests = np.zeros(0, np.uint64)
        """in ascending order"""
        self.sketch_counts = np.zeros((0, *grid, len(COUNTS)), np.int64)
        self.sketch_keys = np.full((0, *grid, STRONGEST_PAIRS), NO_PAIR, np.int32)
        self.top_digests = np.zeros((*grid, len(RATES), STRONGEST), np.uint64)
        """the strongest first; places without a window come last and have no pairs"""
        self.top_counts = np.zeros((*grid, len(RATES), STRONGEST, len(COUNTS)), np.int64)
        self.top_keys = np.full((*grid, len(RATES), STRONGEST, STRONGEST_PAIRS), NO_PAIR, np.int32)
        self.windows: dict[int, Ints] = {}
        """digest → token ids"""

    @property
    def last_digest(self) -> int:
        """Windows with a larger digest do not come into the sketch."""
        return int(self.sketch_digests[-1]) if len(self.sketch_digests) == SKETCH else 2**64

    def add(self, other: ExampleStore) -> None:
        """Add the windows of other texts."""
        if not other.windows:
            return
        if len(other.sketch_digests):
            self._add_sketch(other)
        if other.top_counts.any():
            self._add_strongest(other.top_digests, other.top_counts, other.top_keys)
        used = {*self.sketch_digests.tolist(), *self.top_digests[self.top_counts[..., 0] > 0].tolist()}
        windows = {**other.windows, **self.windows}
        self.windows = {digest: windows[digest] for digest in sorted(used)}

    def _add_sketch(self, other: ExampleStore) -> None:
        digests = np.concatenate([self.sketch_digests, other.sketch_digests])
        counts = np.concatenate([self.sketch_counts, other.sketch_counts])
        keys = np.concatenate([self.sketch_keys, other.sketch_keys])
        order = _order_by_digest(digests, counts, keys)
        self.sketch_digests, self.sketch_counts, self.sketch_keys = digests[order], counts[order], keys[order]

    def _add_strongest(self, digests: Array, counts: Array, keys: Array) -> None:
        digests = np.concatenate([self.top_digests, digests], axis=-1)
        counts = np.concatenate([self.top_counts, counts], axis=-2)
        keys = np.concatenate([self.top_keys, keys], axis=-2)
        order = rank_windows(digests, counts)
        ordered = np.take_along_axis(digests, order, -1)
        filled = np.take_along_axis(counts[..., 0], order, -1) > 0
        repeated = (ordered[..., :, None] == ordered[..., None, :]) & filled[..., :, None] & filled[..., None, :]
        repeated &= np.tri(ordered.shape[-1], k=-1, dtype=bool)  # equal to one before
        if repeated.any():
            _drop_repeated(np.argwhere(repeated), order, counts, keys)
            order = rank_windows(digests, counts)
        order = order[..., :STRONGEST]
        self.top_counts = np.take_along_axis(counts, order[..., None], -2)
        filled = self.top_counts[..., 0] > 0
        self.top_digests = np.where(filled, np.take_along_axis(digests, order, -1), np.uint64(0))
        self.top_keys = np.where(filled[..., None], np.take_along_axis(keys, order[..., None], -2), NO_PAIR)

    def copy(self) -> ExampleStore:
        """Return a store that can be added to without changing this one."""
        copied = ExampleStore(self.layers, self.heads)
        copied.__dict__.update(self.__dict__)  # arrays and windows are replaced, never changed
        return copied

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as arrays; token ids of all windows in a row, by ascending digest."""
        digests = sorted(self.windows)
        lengths = [len(self.windows[digest]) for digest in digests]
        return {
            "sketch_digests": self.sketch_digests,
            "sketch_counts": self.sketch_counts,
            "sketch_keys": self.sketch_keys,
            "top_digests": self.top_digests,
            "top_counts": self.top_counts,
            "top_keys": self.top_keys,
            "window_digests": np.array(digests, np.uint64),
            "window_lengths": np.array(lengths, np.int64),
            "window_ids": np.concatenate([np.zeros(0, np.int64), *(self.windows[digest] for digest in digests)]),
        }

    @classmethod
    def from_arrays(cls, layers: int, heads: int, arrays: Mapping[str, Array]) -> ExampleStore:
        """Return the store that `to_arrays` described.

        Raises:
            ValueError: These are not arrays of such a store.
        """
        store = cls(layers, heads)
        for name in ("sketch_digests", "sketch_counts", "sketch_keys", "top_digests", "top_counts", "top_keys"):
            expected, array = getattr(store, name), arrays[name]
            sizes = expected.shape[1:] if name.startswith("sketch") else expected.shape
            if array.dtype != expected.dtype or array.shape[array.ndim - len(sizes) :] != sizes:
                raise ValueError(f"{name} of examples: {array.dtype} {array.shape}")
            setattr(store, name, array)
        if len({len(store.sketch_digests), len(store.sketch_counts), len(store.sketch_keys)}) > 1:
            raise ValueError("examples whose sketch is cut off")
        edges = np.cumsum(arrays["window_lengths"])[:-1]
        ids = np.split(arrays["window_ids"], edges)
        store.windows = dict(zip(arrays["window_digests"].tolist(), ids, strict=False))
        used = {*store.sketch_digests.tolist(), *store.top_digests[store.top_counts[..., 0] > 0].tolist()}
        if not used <= store.windows.keys():
            raise ValueError("examples without their tokens")
        return store

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the state to pickle: a few arrays instead of one for each window."""
        return self.layers, self.heads, self.to_arrays()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Restore a pickled store."""
        self.__dict__ = ExampleStore.from_arrays(*state).__dict__


def _order_by_digest(digests: Array, counts: Array, keys: Array) -> Ints:
    """Return the numbers of the windows of a sketch: the smallest digests, each once."""
    order: list[int] = np.argsort(digests, kind="stable").tolist()
    if len(np.unique(digests)) < len(order):  # of equal ones always the same, whichever came first
        order.sort(key=lambda k: (int(digests[k]), counts[k].tobytes(), keys[k].tobytes()))
        order = [k for place, k in enumerate(order) if not place or digests[k] != digests[order[place - 1]]]
    return np.array(order[:SKETCH], np.int64)


def _drop_repeated(places: Ints, order: Ints, counts: Array, keys: Array) -> None:
    """Empty places (…, number of the later, number of the earlier) of windows that are there twice."""
    for *cell, later, earlier in places.tolist():
        first, second = (order[(*cell, k)] for k in (earlier, later))
        contents = [(counts[(*cell, k)].tobytes(), keys[(*cell, k)].tobytes()) for k in (first, second)]
        is_tie = _get_strength(counts[(*cell, first)], cell[-1]) == _get_strength(counts[(*cell, second)], cell[-1])
        counts[(*cell, first if is_tie and contents[1] < contents[0] else second)] = 0


def _get_strength(counts: Array, rate: int) -> tuple[float, int]:
    return counts[1 + rate] / max(counts[0], 1), int(counts[0])


def compute_rates(counts: Array) -> Array:
    """Return the rates (…, rate) of counts (…, count); −1 where there are fewer than `MIN_PAIRS` pairs."""
    pairs = counts[..., :1]
    return np.where(pairs >= MIN_PAIRS, counts[..., 1:] / np.maximum(pairs, 1), -1.0)


def select_rates(counts: Array) -> Array:
    """Return of windows that are ordered by each rate (…, rate, window, count) that rate: (…, rate, window)."""
    by_rate = [counts[..., k, :, 1 + k] for k in range(len(RATES))]
    pairs = counts[..., 0]
    return np.where(pairs >= MIN_PAIRS, np.stack(by_rate, axis=-2) / np.maximum(pairs, 1), -1.0)


def rank_windows(digests: Array, counts: Array) -> Ints:
    """Return the order of windows by strength, the strongest first: (…, rate, window).

    Args:
        digests: (…, rate, window)
        counts: (…, rate, window, count)
    """
    return np.lexsort((digests, -counts[..., 0], -select_rates(counts)), axis=-1)


def keep_ids(window: Window) -> Ints:
    """Return the token ids of a window that are kept."""
    return np.asarray(window.ids[:MAX_PLACES], dtype=np.int64)


def decode_pairs(keys: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the positions i < j of pairs, and their similarity, 1…255 of the largest; 0 where there is no pair.

    >>> decode_pairs(np.array([(200 << 16) + 65535 - ((3 << 8) + 5), NO_PAIR]))
    (array([3, 0]), array([5, 0]), array([200,   0]))
    """
    places = (1 << 2 * PLACE_BITS) - 1 - (keys & ((1 << 2 * PLACE_BITS) - 1))
    values = np.where(keys < 0, 0, keys >> 2 * PLACE_BITS)
    i, j = places >> PLACE_BITS, places & ((1 << PLACE_BITS) - 1)
    return np.where(keys < 0, 0, i), np.where(keys < 0, 0, j), values


def encode_pairs(i: Ints, j: Ints, values: Ints) -> Array:
    """Return the pairs that `decode_pairs` describes, as they are stored.

    >>> encode_pairs(np.array([3, 0]), np.array([5, 0]), np.array([200, 0])).tolist()
    [13171962, -1]
    """
    places = (1 << 2 * PLACE_BITS) - 1 - ((i.astype(np.int32) << PLACE_BITS) + j)
    keys = (values.astype(np.int32) << 2 * PLACE_BITS) + places
    return np.where(values > 0, keys, NO_PAIR).astype(np.int32)

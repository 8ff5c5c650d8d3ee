"""Exact counts of tokens by head, of which only those above zero are stored. Counts of different texts add."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.array_types import Ints

MAX_PENDING = 1 << 18
"""Tokens are counted when more than this number of them are pending."""


class TokenCounts:
    """In how many texts each token value is the dominant token of each head.

    Tokens are appended as they come, and sorted and counted thousands at a time.

    Args:
        layers: Number of layers.
        heads: Number of heads in a layer.

    >>> counts = TokenCounts(layers=1, heads=2)
    >>> counts.add_layer(0, np.array([[7, 5], [7, -1]]))  # texts × heads; −1: the head has no high pairs there
    >>> counts.list_entries().tolist()
    [[7, 0, 0, 2], [5, 0, 1, 1]]
    """

    def __init__(self, layers: int, heads: int) -> None:
        self.layers, self.heads = layers, heads
        self._keys, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        """keys in ascending order, and their counts; these arrays are replaced, never changed"""
        self._pending: list[tuple[Ints, Ints | None]] = []
        """keys, and their counts where these are not 1"""
        self._pending_size = 0

    def add_layer(self, layer: int, tokens: Ints) -> None:
        """Count the dominant tokens (text, head) of one layer; −1 where a head has none."""
        keys = (np.asarray(tokens, np.int64) * self.layers + layer) * self.heads + np.arange(self.heads)
        self.add_keys(keys[tokens >= 0])

    def add_keys(self, keys: Ints, counts: Ints | None = None) -> None:
        """Add tokens by their keys, (token id · layers + layer) · heads + head, each once or as often as given."""
        if not len(keys):
            return
        self._pending.append((keys, counts))
        self._pending_size += len(keys)
        if self._pending_size > max(MAX_PENDING, len(self._keys)):
            self._count_pending()

    def add(self, other: TokenCounts) -> None:
        """Add the counts of other texts."""
        if len(other._keys):
            self.add_keys(other._keys, other._counts)
        for keys, counts in other._pending:
            self.add_keys(keys, counts)

    def clear(self) -> None:
        """Set all counts to zero."""
        self.__dict__ = TokenCounts(self.layers, self.heads).__dict__

    def copy(self) -> TokenCounts:
        """Return counts that can be added to without changing these."""
        copied = TokenCounts(self.layers, self.heads)
        copied._keys, copied._counts = self._keys, self._counts
        copied._pending, copied._pending_size = list(self._pending), self._pending_size
        return copied

    def get_arrays(self) -> tuple[Ints, Ints]:
        """Return the keys in ascending order, and their counts."""
        self._count_pending()
        return self._keys, self._counts

    @classmethod
    def from_arrays(cls, layers: int, heads: int, keys: Ints, counts: Ints) -> TokenCounts:
        """Return the counts that `get_arrays` described.

        Raises:
            ValueError: These are not arrays of such counts.
        """
        if keys.ndim != 1 or keys.shape != counts.shape or keys.dtype != np.int64 or counts.dtype != np.int64:
            raise ValueError(f"token counts: {keys.dtype} {keys.shape}, {counts.dtype} {counts.shape}")
        if (keys < 0).any() or (np.diff(keys) <= 0).any() or (counts <= 0).any():
            raise ValueError("token counts that are not in order")
        token_counts = cls(layers, heads)
        token_counts._keys, token_counts._counts = keys, counts
        return token_counts

    def list_entries(self) -> Ints:
        """Return all counts above zero as rows (token id, layer, head, texts): by layer, head, and token id."""
        keys, counts = self.get_arrays()
        tokens, places = np.divmod(keys, self.layers * self.heads)
        order = np.lexsort((tokens, places))
        entries = np.stack([tokens, *np.divmod(places, self.heads), counts], axis=1)[order]
        return np.asarray(entries, dtype=np.int64)

    @property
    def total(self) -> int:
        """Number of texts and heads in which there is a dominant token."""
        return int(self.get_arrays()[1].sum())

    def _count_pending(self) -> None:
        if not self._pending:
            return
        ones = [np.ones(len(keys), np.int64) if counts is None else counts for keys, counts in self._pending]
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._pending)])
        self._keys, rows = np.unique(keys, return_inverse=True)
        # Counts below 2⁵³ are exact in double precision.
        weights = np.concatenate([self._counts, *ones])
        self._counts = np.bincount(rows, weights, len(self._keys)).astype(np.int64)
        self._pending, self._pending_size = [], 0

    def __getstate__(self) -> tuple[Any, ...]:
        """Return the state to pickle: two arrays."""
        return self.layers, self.heads, *self.get_arrays()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Restore pickled counts."""
        layers, heads, keys, counts = state
        self.__dict__ = TokenCounts.from_arrays(layers, heads, keys, counts).__dict__

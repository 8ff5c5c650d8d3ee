"""What a tokenizer makes of texts: token ids, and what is known of each token. One window, or those of many texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headscope.types import Bools, Ints


@dataclass(frozen=True)
class Encoding:
    """One window as a tokenizer makes it: token ids, which of them are special, end a sentence (`.`, `!`, `?`) or are
    commas, and where each stands in the text."""

    ids: Ints
    special: Bools
    end: Bools
    comma: Bools
    starts: Ints | None
    ends: Ints | None = None
    words: Ints | None = None
    """number of the word each token belongs to; a special token is a word of its own"""


@dataclass(frozen=True)
class Encodings:
    """The windows of many texts, one after the other in one row: what is looked up or added up for one token is then
    looked up for all at once. To iterate gives the encodings of each text."""

    ids: Ints
    special: Bools
    end: Bools
    comma: Bools
    edges: Ints
    """where each window begins in that row, and where the last one ends"""
    firsts: list[int]
    """the number of each text's first window, and the number of windows"""
    starts: list[Ints] | None = None
    """of each window, where its tokens stand in its text"""

    @classmethod
    def of(cls, encodings: Sequence[Encoding]) -> Encodings:
        """Those of one text."""
        edges = np.cumsum([0, *(len(each.ids) for each in encodings)])
        columns = [(each.ids, each.special, each.end, each.comma) for each in encodings]
        ids, special, end, comma = (np.concatenate(column) for column in zip(*columns, strict=True))
        starts = [each.starts for each in encodings if each.starts is not None]
        return cls(ids, special, end, comma, edges, [0, len(encodings)], starts or None)

    def __len__(self) -> int:
        """How many texts."""
        return len(self.firsts) - 1

    def __iter__(self) -> Iterator[list[Encoding]]:
        for first, after in zip(self.firsts[:-1], self.firsts[1:], strict=True):
            yield [self._window(k) for k in range(first, after)]

    def _window(self, k: int) -> Encoding:
        part = slice(self.edges[k], self.edges[k + 1])
        starts = None if self.starts is None else self.starts[k]
        return Encoding(self.ids[part], self.special[part], self.end[part], self.comma[part], starts)

    @cached_property
    def plain(self) -> list[int]:
        """How many tokens of each window are not special."""
        counted = np.concatenate([[0], np.cumsum(~self.special)])[self.edges]
        found: list[int] = np.diff(counted).tolist()
        return found

    @cached_property
    def sentence(self) -> Ints:
        """The number of every token's sentence in its window, where a sentence ends with a token whose text is `.`, `!`
        or `?`."""
        before = np.concatenate([[0], np.cumsum(self.end, dtype=np.int64)])  # ends before a token, from the row's start
        return np.asarray(before[:-1] - np.repeat(before[self.edges[:-1]], np.diff(self.edges)))

"""Shards: a corpus in pieces that can be read apart, and each of them in portions that can be counted apart.

A large file is a shard; small ones in a row make one. Within a shard the documents are cut into portions of a fixed
number. Where a portion begins depends on the documents alone: so what is computed together is the same whoever computes
it, and wherever a run was cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from headscope.corpus.formats import Document
from headscope.corpus.places import Stamp, stamp
from headscope.corpus.windows import Cut
from headscope.errors import CorpusError

SHARD_BYTES = 32 * 2**20
"""Files smaller than this are read together with the next."""
SINGLE = 100
"""Of more files in a shard that are one document each, no account is kept one by one."""
PORTION = 4096
"""documents in a portion, at most"""
CHARACTERS_FIRST, CHARACTERS_ALL = 32_000_000, 4_000_000
"""A portion ends as well with the document that fills so many characters: where only first windows are taken, because
its documents wait in memory; where all are, because each makes many."""


@dataclass(frozen=True)
class Source:
    """A file or a stream, and how its documents are read."""

    name: str
    read: Callable[[], Iterator[Document]]
    path: str = ""
    """where its size and last change can be asked for; empty: nowhere"""
    single: bool = False
    """it is one document"""

    def stamp(self) -> Stamp | None:
        return stamp(self.path) if self.path else None


@dataclass(frozen=True)
class Shard:
    """Sources that are read one after the other by the same reader. `first` is the number of the first in its corpus.

    `limit` is that of the whole corpus, which is then one shard: how many documents are before a place in a second one
    would not be known.
    """

    number: int
    first: int
    sources: tuple[Source, ...]
    limit: int | None = None

    @property
    def name(self) -> str:
        others = len(self.sources) - 1
        return self.sources[0].name + (f" and {others:,} more" if others else "")

    def stamp(self) -> str | None:
        """A mark of the sizes and last changes of all its files; None where one cannot be asked for them."""
        stamps = [source.stamp() for source in self.sources]
        if any(each is None for each in stamps):
            return None
        return hashlib.blake2b(repr(stamps).encode(), digest_size=16).hexdigest()

    def newest(self) -> str:
        """The name of the file that changed last; empty where that is not known."""
        times = {source.name: stamp.changed for source in self.sources if (stamp := source.stamp()) is not None}
        known = {name: int(changed) for name, changed in times.items() if changed.isdecimal()}
        return max(known, key=known.__getitem__, default="")

    def documents(self) -> Iterator[tuple[int, Document]]:
        """The documents, each with the number of its source; of many that are one document each, that of the first."""
        return islice(self._documents(), self.limit)

    def _documents(self) -> Iterator[tuple[int, Document]]:
        many = sum(source.single for source in self.sources) > SINGLE
        for number, source in enumerate(self.sources, start=self.first):
            before = source.stamp()
            for document in source.read():
                yield self.first if many and source.single else number, document
            if source.stamp() != before:
                raise CorpusError(f"{source.name}: changed while it was read: leave files alone until a study is done")


def packed(sources: Iterable[Source], limit: int | None = None) -> list[Shard]:
    """Sources as shards, in their order."""
    sources = list(sources)
    if limit is not None:
        return [Shard(0, 0, tuple(sources), limit)]
    shards: list[Shard] = []
    held: list[Source] = []
    size = 0
    for number, source in enumerate(sources, start=1):
        stamped = source.stamp()
        held.append(source)
        size += stamped.size if stamped is not None else SHARD_BYTES
        if size >= SHARD_BYTES or number == len(sources):
            shards.append(Shard(len(shards), number - len(held), tuple(held)))
            held, size = [], 0
    return shards


def limit_of(cut: Cut) -> int:
    """The characters that end a portion."""
    return CHARACTERS_ALL if cut.windows == "all" else CHARACTERS_FIRST


class Portion(Iterator[tuple[int, Document]]):
    """The documents of a portion, once."""

    def __init__(
        self, number: int, first: tuple[int, Document], others: Iterator[tuple[int, Document]], characters: int
    ) -> None:
        self.number = number
        self._first: tuple[int, Document] | None = first
        self._others, self._documents, self._characters = others, PORTION, characters

    def __next__(self) -> tuple[int, Document]:
        if self._documents <= 0 or self._characters <= 0:
            raise StopIteration
        number, document = self._first or next(self._others)
        self._first = None
        self._documents -= 1
        self._characters -= len(document.text)
        return number, document


def portions(documents: Iterator[tuple[int, Document]], characters: int) -> Iterator[Portion]:
    """The portions of a shard in turn. What is left of one when the next is asked for is read and dropped."""
    for number, first in enumerate(documents):
        portion = Portion(number, first, documents, characters)
        yield portion
        for _ in portion:
            pass

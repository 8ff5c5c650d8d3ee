"""From a document to windows (METHOD §1): the tokens a model sees at once, and what is known about each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import Literal, Protocol, TypeVar

import numpy as np

from headscope.corpus import sentences
from headscope.corpus.formats import Document
from headscope.errors import CorpusError
from headscope.types import Bools, Floats, Ints


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


BLOCKS = 20
"""Texts are split over this many blocks, for jackknife standard errors."""

LOOK_AHEAD, LOOK_AHEAD_MOST = 16, 4096
"""Batches, and items in all, among which those of like length are looked for."""

NOT_TOKENIZABLE = "not tokenizable"
"""why a document is skipped at which the tokenizer fails"""

WindowMode = Literal["first", "all"]
SentenceMode = Literal["tokens", "text"]
Item = TypeVar("Item", bound=Sized)


class Tokens(Protocol):
    """What windows need of a tokenizer."""

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]: ...

    def encode_all(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> Encodings | None:
        """The same for many texts at once; None where they have to be taken one by one."""


@dataclass(frozen=True)
class Window:
    """The tokens of one window. All arrays have one entry per token; there is no padding here."""

    ids: Ints
    special: Bools
    sentence: Ints
    """number of the sentence each token lies in"""
    end: Bools
    """tokens whose text is `.`, `!` or `?`"""
    comma: Bools
    source: Window | None = None
    """where a decoder reads this one: the window that its encoder reads"""
    crosses: bool = False
    """attention looks at the tokens of the source, not at these"""
    pixels: Floats | None = None
    """of an image, what the model reads: (channel, height, width); the token ids are then places"""
    u: int | None = None
    """its digest, where that is known"""

    @classmethod
    def plain(cls, ids: Ints) -> Window:
        """Tokens of which nothing more is known: none is special, and all are of one sentence."""
        none = np.zeros(len(ids), dtype=bool)
        return cls(ids=ids, special=none, sentence=np.zeros(len(ids), dtype=np.int64), end=none, comma=none)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> Window:
        """The tokens that attention looks at, the columns of its maps."""
        return self.source if self.crosses and self.source is not None else self

    @cached_property
    def digest(self) -> int:
        """`u` of METHOD §3: what the window's block and its place in the sample depend on, and nothing else.

        It is the text's: all stacks of a model put it into the same block. Of an image it is that of its pixels.
        """
        if self.u is not None:
            return self.u
        return digest_of(np.ascontiguousarray((self.source or self).ids, dtype="<i4").tobytes())

    @property
    def block(self) -> int:
        return self.digest % BLOCKS

    def sampled(self, fraction: float) -> bool:
        # Not divided: a quotient just below 1 would be rounded to 1.
        return (self.digest >> 8) < fraction * 2**56

    def shifted(self, start: int, *, crosses: bool) -> Window:
        """What a decoder reads to write this window: a start token, then all tokens but the last.

        It has as many tokens as its source, and place i of it is where token i of the source is written.
        """
        return Window(
            ids=np.concatenate([[start], self.ids[:-1]]),
            special=np.concatenate([[True], self.special[:-1]]),
            sentence=np.concatenate([self.sentence[:1], self.sentence[:-1]]),
            end=np.concatenate([[False], self.end[:-1]]),
            comma=np.concatenate([[False], self.comma[:-1]]),
            source=self,
            crosses=crosses,
        )


@dataclass(frozen=True)
class Cut:
    """How windows are cut: METHOD §1, its defaults."""

    length: int = 128
    windows: WindowMode = "first"
    sentences: SentenceMode = "tokens"
    min_tokens: int = 2
    """documents with fewer tokens, special ones aside, have no pair of words to relate and are skipped"""
    skip_broken: bool = False
    """a document that the tokenizer cannot take is skipped; else it is an error"""

    def __call__(self, document: Document, tokens: Tokens) -> list[Window] | str:
        """The windows of a document, or the reason why it has none."""
        if document.is_image:
            raise CorpusError(
                f"{document.name}: an image, and this model reads texts: choose a vision model with --model, or give "
                "texts"
            )
        if document.broken:
            return document.broken
        if not document.text.strip():
            return "empty"
        try:
            encodings = tokens.encode(
                document.text, self.length, all_windows=self.windows == "all", offsets=self.sentences == "text"
            )
        except CorpusError as error:
            if self.skip_broken:
                return NOT_TOKENIZABLE
            raise CorpusError(f"{document.name}: {error}") from None
        return next(self._windows([document], Encodings.of(encodings)))

    def each(self, documents: Sequence[Document], tokens: Tokens) -> Iterator[list[Window] | str]:
        """The same for many documents in turn, whose texts are tokenized in one call.

        Where that call fails, they are taken one by one: only so it comes out which of them is to blame, and those
        before it are cut.
        """
        given = [document for document in documents if not document.is_image and document.text.strip()]
        encoded = tokens.encode_all(
            [document.text for document in given],
            self.length,
            all_windows=self.windows == "all",
            offsets=self.sentences == "text",
        )
        if encoded is None:
            yield from (self(document, tokens) for document in documents)
            return
        following = self._windows(given, encoded)
        for document in documents:
            taken = not document.is_image and document.text.strip()
            yield next(following) if taken else self(document, tokens)

    def _windows(self, documents: Sequence[Document], encodings: Encodings) -> Iterator[list[Window] | str]:
        """The windows of each of some documents, or the reason why it has none."""
        plain, firsts = encodings.plain, encodings.firsts
        row = _Row(encodings)
        for document, first, after in zip(documents, firsts[:-1], firsts[1:], strict=True):
            if not any(plain[first:after]):
                yield "only special tokens"
                continue
            last = after - (self.windows == "all" and plain[after - 1] < self.length / 2)
            kept = [k for k in range(first, last) if plain[k] >= self.min_tokens]
            if not kept:
                yield "too short"
            elif self.sentences == "tokens":
                yield [row.window(k) for k in kept]
            else:
                yield self._in_sentences(document, row, kept)

    @staticmethod
    def _in_sentences(document: Document, row: _Row, kept: list[int]) -> list[Window]:
        """Windows with the sentences of a real splitter."""
        tokens = row.encodings.starts
        if tokens is None:
            raise CorpusError(
                "this model's tokenizer does not say where its tokens start in the text, which --sentences text "
                "needs: use --sentences tokens"
            )
        starts = sentences.starts(document.text, int(tokens[kept[-1]].max()))
        return [row.window(k, starts) for k in kept]


class _Row:
    """Encodings, and what all windows cut from them need."""

    def __init__(self, encodings: Encodings) -> None:
        self.encodings, self.edges = encodings, encodings.edges.tolist()
        self.raw = memoryview(encodings.ids.astype("<i4").tobytes())

    def window(self, k: int, sentence_starts: Ints | None = None) -> Window:
        """Window k, with the sentences of its tokens, or with those that start at places of the text."""
        made, a, b = self.encodings, self.edges[k], self.edges[k + 1]
        special = made.special[a:b]
        if sentence_starts is None or made.starts is None:
            sentence = made.sentence[a:b]
        else:
            sentence = sentences.by_text(sentence_starts, made.starts[k], special)
        u = digest_of(self.raw[4 * a : 4 * b])
        return Window(made.ids[a:b], special, sentence, made.end[a:b], made.comma[a:b], u=u)


def digest_of(ids: bytes | memoryview) -> int:
    """`u` of METHOD §3, from token ids as little-endian int32."""
    return int.from_bytes(hashlib.blake2b(ids, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Batch:
    """Windows side by side, padded on the right to the longest. `real` is False on padding, which takes no part."""

    windows: list[Window]
    ids: Ints
    real: Bools
    pad_id: int = 0

    @classmethod
    def of(cls, windows: Iterable[Window], pad_id: int = 0) -> Batch:
        kept = list(windows)
        lengths = np.array([len(window.ids) for window in kept])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(real.shape, pad_id, dtype=np.int64)
        ids[real] = np.concatenate([window.ids for window in kept])
        return cls(kept, ids, real, pad_id)

    @property
    def source(self) -> tuple[Ints, Bools] | None:
        """The ids that an encoder reads while its decoder reads these, and which of them are no padding."""
        if self.windows[0].source is None:
            return None
        ids = np.full_like(self.ids, self.pad_id)
        for row, window in enumerate(self.windows):
            ids[row, : len(window)] = window.source.ids if window.source is not None else window.ids
        return ids, self.real

    def __len__(self) -> int:
        return len(self.windows)


def grouped(
    items: Iterable[Item], size: int, *, alike: bool = False, by_length: bool = False, at_once: bool = False
) -> Iterator[list[Item]]:
    """Windows, or what has the length of one, in groups of at most `size` and of like length: little is padded.

    Each group is chosen among the next few only, so that nothing waits long for its turn: at first among as many as
    make one batch, so that the model can start at once, then among twice as many, and so on up to 16 batches; `at_once`
    among 16 from the beginning. Groups come in the order of their first items; `by_length`, the shorter ones first.
    What is in which depends on the items and their order alone, and where all have one length, they stay in their
    order.

    `alike`: nothing is padded at all; a group holds items of one length.

    >>> list(grouped(["one", "word", "and", "four", "by", "two"], 2))
    [['one', 'word'], ['and', 'by'], ['four', 'two']]
    """
    source, most = iter(items), max(1, min(LOOK_AHEAD, LOOK_AHEAD_MOST // size))
    batches = most if at_once else 1
    while waiting := list(islice(source, batches * size)):
        lengths = [len(item) for item in waiting]
        order = sorted(range(len(waiting)), key=lengths.__getitem__)
        runs = [list(run) for _, run in groupby(order, key=lengths.__getitem__)] if alike else [order]
        groups = [sorted(run[k : k + size]) for run in runs for k in range(0, len(run), size)]
        for group in groups if by_length else sorted(groups):
            yield [waiting[k] for k in group]
        batches = min(2 * batches, most)

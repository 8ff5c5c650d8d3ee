"""From a document to windows (METHOD §1): the tokens a model sees at once, and what is known about each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from headscope.corpus import sentences
from headscope.corpus.formats import Document
from headscope.errors import CorpusError, HeadscopeError
from headscope.types import Bools, Floats, Ints

BLOCKS = 20
"""Texts are split over this many blocks, for jackknife standard errors."""

WindowMode = Literal["first", "all"]
SentenceMode = Literal["tokens", "text"]


@dataclass(frozen=True)
class Encoding:
    """One window as a tokenizer makes it: token ids, which of them are special, where each stands in the text."""

    ids: Ints
    special: Bools
    starts: Ints | None
    ends: Ints | None = None
    words: Ints | None = None
    """number of the word each token belongs to; a special token is a word of its own"""


class Tokens(Protocol):
    """What windows need of a tokenizer."""

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]: ...

    def texts(self, ids: Ints) -> list[str]: ...


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
    """of an image, its digest"""

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
        raw = np.ascontiguousarray((self.source or self).ids, dtype="<i4").tobytes()
        return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")

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

    def __call__(self, document: Document, tokens: Tokens) -> list[Window] | str:
        """The windows of a document, or the reason why it has none."""
        if document.is_image:
            raise CorpusError(
                f"{document.name}: an image, and this model reads texts: choose a vision model with --model, or give "
                "texts"
            )
        if not document.text.strip():
            return "empty"
        try:
            encodings = tokens.encode(
                document.text, self.length, all_windows=self.windows == "all", offsets=self.sentences == "text"
            )
        except CorpusError as error:
            raise CorpusError(f"{document.name}: {error}") from None
        if all(encoding.special.all() for encoding in encodings):
            return "only special tokens"
        if self.windows == "all":
            last = encodings[-1]
            if (~last.special).sum() < self.length / 2:
                encodings = encodings[:-1]
        encodings = [encoding for encoding in encodings if (~encoding.special).sum() >= self.min_tokens]
        if not encodings:
            return "too short"
        starts = None
        if self.sentences == "text":
            positions = encodings[-1].starts
            starts = sentences.starts(document.text, None if positions is None else int(positions.max()))
        return [self._window(encoding, tokens, starts) for encoding in encodings]

    def _window(self, encoding: Encoding, tokens: Tokens, sentence_starts: Ints | None) -> Window:
        texts = tokens.texts(encoding.ids)
        end = np.array([text in sentences.SENTENCE_ENDS for text in texts], dtype=bool)
        comma = np.array([text == "," for text in texts], dtype=bool)
        if sentence_starts is None:
            sentence = sentences.by_tokens(end)
        else:
            if encoding.starts is None:
                raise CorpusError(
                    "this model's tokenizer does not say where its tokens start in the text, which --sentences text "
                    "needs: use --sentences tokens"
                )
            sentence = sentences.by_text(sentence_starts, encoding.starts, encoding.special)
        return Window(ids=encoding.ids, special=encoding.special, sentence=sentence, end=end, comma=comma)


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
        longest = max(len(window) for window in kept)
        ids = np.full((len(kept), longest), pad_id, dtype=np.int64)
        real = np.zeros((len(kept), longest), dtype=bool)
        for row, window in enumerate(kept):
            ids[row, : len(window)] = window.ids
            real[row, : len(window)] = True
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


def batches(windows: Iterable[Window], size: int, pad_id: int = 0, *, alike: bool = False) -> Iterator[Batch]:
    """Consecutive windows in batches of `size`. If the windows break off in an error, those before it come first.

    `alike`: none is padded; a batch ends where a window of another length comes.
    """
    waiting: list[Window] = []
    broken: HeadscopeError | None = None
    try:
        for window in windows:
            if alike and waiting and len(waiting[0]) != len(window):
                yield Batch.of(waiting, pad_id)
                waiting = []
            waiting.append(window)
            if len(waiting) == size:
                yield Batch.of(waiting, pad_id)
                waiting = []
    except HeadscopeError as error:
        broken = error
    if waiting:
        yield Batch.of(waiting, pad_id)
    if broken is not None:
        raise broken

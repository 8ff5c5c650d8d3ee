"""Cut documents into windows (METHOD §1): the tokens of one forward pass, with the annotations of each token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Literal, Protocol, TypeVar

import numpy as np

from headscope.array_types import Bools, Floats, Ints
from headscope.corpus import sentences
from headscope.corpus.document import Document, compute_digest, make_modality_error
from headscope.corpus.relations import WindowRelations, find_window_relations
from headscope.errors import CorpusError


@dataclass(frozen=True)
class Encoding:
    """One window as returned by a tokenizer. All arrays have one entry per token.

    `special`, `end` and `comma` mark special tokens, sentence ends (`.`, `!`, `?`) and commas; `starts` and `ends` are
    positions in the text.
    """

    ids: Ints
    special: Bools
    end: Bools
    comma: Bools
    starts: Ints | None
    ends: Ints | None = None
    words: Ints | None = None
    """number of the word of each token; a special token is a word of its own"""
    punctuation: Bools | None = None
    """tokens whose text has no letter or digit"""


@dataclass(frozen=True)
class Encodings:
    """The windows of many texts, concatenated, so that operations on tokens are vectorized over all of them.

    Iterating yields the list of encodings of each text.
    """

    ids: Ints
    special: Bools
    end: Bools
    comma: Bools
    edges: Ints
    """start of each window in the concatenated arrays, and the end of the last one"""
    firsts: list[int]
    """index of the first window of each text, then the number of windows"""
    starts: list[Ints] | None = None
    """for each window, the positions of its tokens in its text"""
    punctuation: Bools | None = None
    ends: list[Ints] | None = None
    """for each window, the positions at which its tokens end"""
    words: list[Ints] | None = None
    """for each window, the number of the word of each token"""

    @classmethod
    def from_encodings(cls, encodings: Sequence[Encoding]) -> Encodings:
        """Return the encodings of one text, concatenated."""
        edges = np.cumsum([0, *(len(encoding.ids) for encoding in encodings)])
        columns = [(encoding.ids, encoding.special, encoding.end, encoding.comma) for encoding in encodings]
        ids, special, end, comma = (np.concatenate(column) for column in zip(*columns, strict=True))
        marks = [encoding.punctuation for encoding in encodings if encoding.punctuation is not None]
        punctuation = np.concatenate(marks) if len(marks) == len(encodings) else None
        starts, ends, words = (
            [getattr(encoding, name) for encoding in encodings if getattr(encoding, name) is not None] or None
            for name in ("starts", "ends", "words")
        )
        return cls(ids, special, end, comma, edges, [0, len(encodings)], starts, punctuation, ends, words)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.firsts) - 1

    def __iter__(self) -> Iterator[list[Encoding]]:
        for first, after in zip(self.firsts[:-1], self.firsts[1:], strict=True):
            yield [self._get_window(k) for k in range(first, after)]

    def _get_window(self, k: int) -> Encoding:
        part = slice(self.edges[k], self.edges[k + 1])
        starts = None if self.starts is None else self.starts[k]
        punctuation = None if self.punctuation is None else self.punctuation[part]
        return Encoding(
            self.ids[part], self.special[part], self.end[part], self.comma[part], starts, punctuation=punctuation
        )

    @cached_property
    def plain(self) -> list[int]:
        """Number of tokens of each window that are not special."""
        cumulative = np.concatenate([[0], np.cumsum(~self.special)])[self.edges]
        counts: list[int] = np.diff(cumulative).tolist()
        return counts

    @cached_property
    def sentence(self) -> Ints:
        """Sentence number of every token in its window; a sentence ends with a token whose text is `.`, `!` or `?`."""
        ends_before = np.concatenate([[0], np.cumsum(self.end, dtype=np.int64)])  # sentence ends before each token
        return np.asarray(ends_before[:-1] - np.repeat(ends_before[self.edges[:-1]], np.diff(self.edges)))


BLOCKS = 20
"""Number of blocks into which documents are split for jackknife standard errors."""

LOOK_AHEAD, LOOK_AHEAD_MOST = 16, 4096
"""Largest number of batches, and of items, within which items are grouped by length."""

NOT_TOKENIZABLE = "not tokenizable"
"""reason why a document is skipped if the tokenizer fails"""

TOO_SHORT = "too short"
"""reason why a document with fewer than `min_tokens` tokens has no windows"""
WindowMode = Literal["first", "all"]
SentenceMode = Literal["tokens", "text"]
BlockMode = Literal["documents", "windows"]
Item = TypeVar("Item", bound=Sized)


class Tokens(Protocol):
    """Tokenizer interface that windows need."""

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]: ...

    def encode_all(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> Encodings | None:
        """Encode many texts in one call; None if they have to be encoded one by one."""


@dataclass(frozen=True)
class Window:
    """The tokens of one window. All arrays have one entry per token, without padding."""

    ids: Ints
    special: Bools
    sentence: Ints
    """sentence number of each token"""
    end: Bools
    """tokens whose text is `.`, `!` or `?`"""
    comma: Bools
    source: Window | None = None
    """for the input of a decoder: the window that its encoder reads"""
    crosses: bool = False
    """attention is to the tokens of the source (cross-attention)"""
    is_pair: bool = False
    """the source is another text than the one the decoder is to write"""
    pixels: Floats | None = None
    """for an image, the input of the model: (channel, height, width); token ids are then positions"""
    u: int | None = None
    """the digest, if it is known already"""
    document: int | None = None
    """digest of the document that the window is from, which decides its block; None: its own digest does"""
    wordless: Bools | None = None
    """tokens whose text has no letter or digit; None: sentence ends and commas"""
    relations: WindowRelations | None = None
    """labelled pairs of tokens; None: the text is not labelled"""

    @classmethod
    def plain(cls, ids: Ints) -> Window:
        """Return a window of tokens without annotations: none is special, and all are of one sentence."""
        none = np.zeros(len(ids), dtype=bool)
        return cls(ids=ids, special=none, sentence=np.zeros(len(ids), dtype=np.int64), end=none, comma=none)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> Window:
        """The window whose tokens are the keys of attention, the columns of its maps."""
        return self.source if self.crosses and self.source is not None else self

    @property
    def punctuation(self) -> Bools:
        """Tokens whose text has no letter or digit, special tokens excluded."""
        return (self.end | self.comma if self.wordless is None else self.wordless) & ~self.special

    @cached_property
    def digest(self) -> int:
        """`u` of METHOD §3, which alone decides whether a window is in the sample.

        It depends on the text only, so that all stacks of a model have the same texts in the sample. For an image it
        is the digest of its pixels.
        """
        if self.u is not None:
            return self.u
        return hash_token_ids(np.ascontiguousarray((self.source or self).ids, dtype="<i4").tobytes())

    @property
    def block(self) -> int:
        """Number of the block: that of the document, because windows of one document are alike."""
        return (self.digest if self.document is None else self.document) % BLOCKS

    def is_sampled(self, fraction: float) -> bool:
        """Return whether the window is in a sample of this fraction of the texts."""
        # Multiplied instead of divided: a quotient just below 1 would be rounded to 1.
        return (self.digest >> 8) < fraction * 2**56

    @property
    def lengths(self) -> tuple[int, int]:
        """Number of tokens, and of those of the source: windows for which both are equal are not padded in a batch."""
        return len(self), len(self.source or self)

    def pair_with(self, source: Window, start: int, *, crosses: bool, document: int | None) -> Window:
        """Return the decoder input that predicts this window, the target, from another window, which the encoder reads.

        Args:
            source: What the encoder reads.
            start: Token id with which the decoder starts.
            crosses: Attention to the source is observed.
            document: Digest of the document; None if blocks are of windows.
        """
        ids = np.concatenate([source.ids, [-1], self.ids])  # no token has the id −1
        digest = hash_token_ids(np.ascontiguousarray(ids, dtype="<i4").tobytes())
        shifted = self.shift_right(start, crosses=crosses)
        return replace(shifted, source=source, is_pair=True, u=digest, document=document)

    def shift_right(self, start: int, *, crosses: bool) -> Window:
        """Return the decoder input that predicts this window: a start token, then all tokens but the last.

        It has as many tokens as its source; position i predicts token i of the source.
        """
        return Window(
            ids=np.concatenate([[start], self.ids[:-1]]),
            special=np.concatenate([[True], self.special[:-1]]),
            sentence=np.concatenate([self.sentence[:1], self.sentence[:-1]]),
            end=np.concatenate([[False], self.end[:-1]]),
            comma=np.concatenate([[False], self.comma[:-1]]),
            source=self,
            crosses=crosses,
            document=self.document,
            wordless=None if self.wordless is None else np.concatenate([[False], self.wordless[:-1]]),
        )


@dataclass(frozen=True)
class WindowSpec:
    """How windows are cut (METHOD §1, with its defaults)."""

    length: int = 128
    windows: WindowMode = "first"
    sentences: SentenceMode = "tokens"
    min_tokens: int = 2
    """documents with fewer tokens, without special ones, have no pairs of words and are skipped"""
    skip_broken: bool = False
    """skip documents that the tokenizer cannot process; otherwise they are errors"""
    blocks: BlockMode = "documents"
    """what is assigned to blocks as a whole; blocks of windows are for a single long document"""
    relations: tuple[str, ...] | None = ()
    """labelled relations that windows have; None: all that there are"""

    def __call__(self, document: Document, tokens: Tokens) -> list[Window] | str:
        """Return the windows of a document, or the reason why it has none."""
        if document.is_image:
            raise make_modality_error(document, "this model")
        if document.broken:
            return document.broken
        if not document.text.strip():
            return "empty"
        offsets = self.sentences == "text" or self._is_labelled(document)
        try:
            encodings = tokens.encode(document.text, self.length, all_windows=self.windows == "all", offsets=offsets)
        except CorpusError as error:
            if self.skip_broken:
                return NOT_TOKENIZABLE
            raise CorpusError(f"{document.name}: {error}") from None
        return next(self._build_windows([document], Encodings.from_encodings(encodings)))

    def cut_documents(self, documents: Sequence[Document], tokens: Tokens) -> Iterator[list[Window] | str]:
        """Yield the windows of each document, or the reason why it has none."""
        return iter([self(documents[0], tokens)]) if len(documents) == 1 else self.each(documents, tokens)

    def each(self, documents: Sequence[Document], tokens: Tokens) -> Iterator[list[Window] | str]:
        """Yield the windows of each document, or the reason why it has none; texts are tokenized in one call.

        If that call fails, documents are tokenized one by one, to find the one at which it fails and to cut those
        before it.
        """
        texts = [document for document in documents if self._can_batch(document)]
        encoded = tokens.encode_all(
            [document.text for document in texts],
            self.length,
            all_windows=self.windows == "all",
            offsets=self.sentences == "text",
        )
        if encoded is None:
            yield from (self(document, tokens) for document in documents)
            return
        text_windows = self._build_windows(texts, encoded)
        for document in documents:
            yield next(text_windows) if self._can_batch(document) else self(document, tokens)

    def _can_batch(self, document: Document) -> bool:
        """Return whether a document can be tokenized with others: not if positions of all its words are needed."""
        return not document.is_image and bool(document.text.strip()) and not self._is_labelled(document)

    def _is_labelled(self, document: Document) -> bool:
        return document.relations is not None and self.relations != ()

    def _build_windows(self, documents: Sequence[Document], encodings: Encodings) -> Iterator[list[Window] | str]:
        """Yield the windows of each document, or the reason why it has none."""
        plain_counts, firsts = encodings.plain, encodings.firsts
        builder = _WindowBuilder(encodings)
        for document, first, after in zip(documents, firsts[:-1], firsts[1:], strict=True):
            if not any(plain_counts[first:after]):
                yield "only special tokens"
                continue
            after_last = after - (self.windows == "all" and plain_counts[after - 1] < self.length / 2)
            selected = [k for k in range(first, after_last) if plain_counts[k] >= self.min_tokens]
            if not selected:
                yield TOO_SHORT
            else:
                sentence_starts = None
                if self.sentences == "text":
                    sentence_starts = self._find_sentence_starts(document, builder, selected[-1])
                digest = document.digest if self.blocks == "documents" else None
                windows = [builder.build(k, sentence_starts, digest) for k in selected]
                if self._is_labelled(document):
                    windows = [
                        replace(window, relations=self._find_relations(document, encodings, k))
                        for window, k in zip(windows, selected, strict=True)
                    ]
                yield windows

    def _find_relations(self, document: Document, encodings: Encodings, k: int) -> WindowRelations:
        """Return the labelled pairs of window k."""
        if encodings.starts is None or encodings.ends is None:
            raise CorpusError(
                f"{document.name}: has labelled relations, and this model's tokenizer does not say where its tokens "
                "are in the text: choose another model, or measure no relations with --relations none"
            )
        special = encodings.special[encodings.edges[k] : encodings.edges[k + 1]]
        words = None if encodings.words is None else encodings.words[k]
        return find_window_relations(document, self.relations, encodings.starts[k], encodings.ends[k], special, words)

    @staticmethod
    def _find_sentence_starts(document: Document, builder: _WindowBuilder, last: int) -> Ints:
        """Return where sentences start in the text, up to the end of its last selected window."""
        token_starts = builder.encodings.starts
        if token_starts is None:
            raise CorpusError(
                "this model's tokenizer does not say where its tokens start in the text, which --sentences text "
                "needs: use --sentences tokens"
            )
        return sentences.find_sentence_starts(document.text, int(token_starts[last].max()))


class _WindowBuilder:
    """Build windows from encodings, with data that is shared by all windows."""

    def __init__(self, encodings: Encodings) -> None:
        self.encodings, self.edges = encodings, encodings.edges.tolist()
        self.raw = memoryview(encodings.ids.astype("<i4").tobytes())

    def build(self, k: int, sentence_starts: Ints | None, document: int | None) -> Window:
        """Return window k of a document with this digest, with sentences by tokens, or with those that start at the
        given positions of the text."""
        encodings, start, stop = self.encodings, self.edges[k], self.edges[k + 1]
        special = encodings.special[start:stop]
        if sentence_starts is None or encodings.starts is None:
            sentence = encodings.sentence[start:stop]
        else:
            sentence = sentences.number_by_text(sentence_starts, encodings.starts[k], special)
        u = hash_token_ids(self.raw[4 * start : 4 * stop])
        return Window(
            encodings.ids[start:stop],
            special,
            sentence,
            encodings.end[start:stop],
            encodings.comma[start:stop],
            u=u,
            document=document,
            wordless=None if encodings.punctuation is None else encodings.punctuation[start:stop],
        )


def hash_token_ids(ids: bytes | memoryview) -> int:
    """Return `u` of METHOD §3, from token ids as little-endian int32."""
    return compute_digest(ids)


@dataclass(frozen=True)
class Batch:
    """Windows padded on the right to the longest: (window, token). `real` is False on padding, which is ignored.

    In cross-attention they are padded to the longest source as well, so that maps are square.
    """

    windows: list[Window]
    ids: Ints
    real: Bools
    pad_id: int = 0

    @classmethod
    def of(cls, windows: Iterable[Window], pad_id: int = 0) -> Batch:
        window_list = list(windows)
        lengths = np.array([len(window.ids) for window in window_list])
        longest = max(lengths.max(), *(len(window.keys) for window in window_list))
        real = np.arange(longest) < lengths[:, None]
        ids = np.full(real.shape, pad_id, dtype=np.int64)
        ids[real] = np.concatenate([window.ids for window in window_list])
        return cls(window_list, ids, real, pad_id)

    @property
    def source(self) -> tuple[Ints, Bools] | None:
        """Encoder input for this decoder input: token ids and the mask of real tokens; None without an encoder."""
        if self.windows[0].source is None:
            return None
        sources = [window.source or window for window in self.windows]
        longest = self.ids.shape[1] if self.windows[0].crosses else max(map(len, sources))
        real = np.arange(longest) < np.array([len(source) for source in sources])[:, None]
        ids = np.full(real.shape, self.pad_id, dtype=np.int64)
        ids[real] = np.concatenate([source.ids for source in sources])
        return ids, real

    @property
    def real_keys(self) -> Bools:
        """Like `real`, for the keys of attention, which are the source's tokens in cross-attention."""
        return np.arange(self.ids.shape[1]) < np.array([len(window.keys) for window in self.windows])[:, None]

    def __len__(self) -> int:
        return len(self.windows)


def group_by_length(
    items: Iterable[Item], size: int, *, alike: bool = False, by_length: bool = False, at_once: bool = False
) -> Iterator[list[Item]]:
    """Yield groups of at most `size` items of similar length, so that little is padded.

    Items are windows, or anything else with a length. Groups are formed among the next few items only: first among as
    many as make one batch, so that the model can start at once, then among twice as many, and so on up to 16 batches.
    Groups are yielded in the order of their first items. They depend only on the items and their order; if all have
    the same length, they stay in their order.

    Args:
        size: Largest number of items of a group.
        alike: Form groups of items of equal length, without any padding.
        by_length: Yield shorter groups first.
        at_once: Form groups among 16 batches from the beginning.

    >>> list(group_by_length(["one", "word", "and", "four", "by", "two"], 2))
    [['one', 'word'], ['and', 'by'], ['four', 'two']]
    """
    source, max_batches = iter(items), max(1, min(LOOK_AHEAD, LOOK_AHEAD_MOST // size))
    batches = max_batches if at_once else 1
    while pending := list(islice(source, batches * size)):
        lengths = [len(item) for item in pending]
        order = sorted(range(len(pending)), key=lengths.__getitem__)
        runs = [list(run) for _, run in groupby(order, key=lengths.__getitem__)] if alike else [order]
        groups = [sorted(run[k : k + size]) for run in runs for k in range(0, len(run), size)]
        for group in groups if by_length else sorted(groups):
            yield [pending[k] for k in group]
        batches = min(2 * batches, max_batches)

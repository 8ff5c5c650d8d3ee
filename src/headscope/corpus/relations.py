"""Labelled relations: from spans of a document to pairs of tokens of its windows (METHOD §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.array_types import Bools, Ints
from headscope.corpus.document import BrokenDocumentError, Document, Relation
from headscope.errors import CorpusError

if TYPE_CHECKING:
    from headscope.corpus.documents import Corpus

FindRelations = Callable[[str], Iterable[Any]]
"""function of a text that returns its relations, (start_a, end_a, start_b, end_b, label)"""


@dataclass(frozen=True, eq=False)
class WindowRelations:
    """The labelled pairs of tokens of a window, those of two different tokens."""

    first: Ints
    """position of the token of a, for each pair"""
    second: Ints
    """position of the token of b"""
    labels: tuple[str, ...]
    words: Bools
    """(token,): tokens that begin a word, or a labelled span"""


def find_window_relations(
    document: Document,
    labels: Sequence[str] | None,
    starts: Ints,
    ends: Ints,
    special: Bools,
    word_numbers: Ints | None,
) -> WindowRelations:
    """Return the labelled pairs of the tokens of a window.

    Args:
        document: A document with relations.
        labels: Relations that are wanted; None: all.
        starts: Positions in the text at which tokens start.
        ends: Positions before which they end.
        special: Special tokens, which are no part of the text.
        word_numbers: Number of the word of each token; needed unless the document knows its words.
    """
    relations = [row for row in document.relations or () if labels is None or row.label in labels]
    tokens = _TokenFinder(starts, ends, special)
    first = tokens.find([(row.start_a, row.end_a) for row in relations])
    second = tokens.find([(row.start_b, row.end_b) for row in relations])
    is_pair = (first >= 0) & (second >= 0) & (first != second)
    words = np.zeros(len(starts), dtype=bool)
    if document.words is not None:
        positions = tokens.find(document.words)
        words[positions[positions >= 0]] = True
    elif word_numbers is not None:
        words = ~special & np.concatenate([[True], np.diff(word_numbers) != 0])
    first, second = first[is_pair], second[is_pair]
    words[first] = words[second] = True
    names = tuple(row.label for row, is_counted in zip(relations, is_pair, strict=True) if is_counted)
    return WindowRelations(first, second, names, words)


class _TokenFinder:
    """Find the first token of a window that overlaps a span."""

    def __init__(self, starts: Ints, ends: Ints, special: Bools) -> None:
        self.positions = np.flatnonzero(~special & (ends > starts))
        self.starts = starts[self.positions]
        self.ends = np.maximum.accumulate(ends[self.positions])

    def find(self, spans: Sequence[tuple[int, int]]) -> Ints:
        """Return the positions of the tokens; -1 where no token overlaps."""
        bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
        index = np.searchsorted(self.ends, bounds[:, 0], side="right")  # the first token that ends after the start
        result = np.full(len(bounds), -1, dtype=np.int64)
        inside = np.flatnonzero(index < len(self.positions))
        overlapping = inside[self.starts[index[inside]] < bounds[inside, 1]]
        result[overlapping] = self.positions[index[overlapping]]
        return result


def label_documents(corpus: Corpus, find_relations: FindRelations) -> Corpus:
    """Return a corpus whose documents have the relations that a function finds in their texts."""
    sources = [replace(source, read=_LabelledReader(source.read, find_relations)) for source in corpus.sources]
    return replace(corpus, sources=sources)


@dataclass(frozen=True)
class _LabelledReader:
    """Read the documents of a source and label them."""

    read: Callable[..., Iterator[Document]]
    find_relations: FindRelations

    def __call__(self, *part: Any) -> Iterator[Document]:
        for document in self.read(*part):
            yield document if document.is_image or document.broken or document.is_blank else self._label(document)

    def _label(self, document: Document) -> Document:
        try:
            relations = tuple(Relation(*row) for row in self.find_relations(document.text))
            return replace(document, relations=relations, words=None)
        except BrokenDocumentError as error:
            raise CorpusError(f"the function relations=: {error}") from None
        except Exception as error:  # whatever a function of the user raises
            raise CorpusError(
                f"{document.name}: the function relations= failed: {type(error).__name__}: {error}"
            ) from error


def name_function(find_relations: FindRelations) -> str:
    """Return what a manifest calls a function that finds relations.

    >>> name_function(len)
    'function builtins.len'
    """
    name = getattr(find_relations, "__qualname__", type(find_relations).__qualname__)
    return f"function {getattr(find_relations, '__module__', '')}.{name}"

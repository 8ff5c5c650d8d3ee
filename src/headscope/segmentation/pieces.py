"""Pieces of a text: its sentences, windows of whole sentences, and the head outputs of each.

Split a text into sentences, the pieces that segments consist of; together they are exactly the text.

Headings, list numbers and initials have no subject. A sentence with fewer than two words, or with at most four words
that all begin with a capital, is joined to the next one, which it announces, or to the previous one if it begins in
lower case or with a closing mark. There is never a boundary between joined sentences.

Split a text into windows of whole sentences; the fine level segments them one after the other.

Head outputs of the pieces of a text, averaged over the tokens of each piece.

The mean of C over two pieces, a region average of the paper's Fig. 5, is the dot product of their averages. So no
matrix needs to be stored, and pieces any distance apart can be compared. Each piece is read by itself: pieces in one
window share their context, which makes all of them similar and hides their subjects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from headscope.array_types import Bools, Floats, Ints
from headscope.corpus import sentences
from headscope.corpus.windows import Batch, Encoding, Window, group_by_length
from headscope.devices import send
from headscope.errors import CorpusError, ModelError
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens
from headscope.run.executor import choose_batch_size

FEW_WORDS, TITLE = 2, 4
"""A sentence has no subject of its own with fewer words than the first, or with at most the second if each begins with
a capital."""
LONGEST_SENTENCE = 2_000
"""characters in a sentence; longer ones, as in texts without punctuation, are split at white space"""
_WORD = re.compile(r"[^\W\d_]{2,}")
_BREAK = re.compile(r"\n[ \t\r\f\v]*\n\s*")
_UNSPACED = re.compile(r"[。！？][」』”’）)]*\s*")
"""the end of a sentence in scripts without a space after it, which the sentence splitter requires"""
_CLOSING = frozenset(")]},;:.!?%”’»")


def find_sentence_edges(text: str) -> Ints:
    """Return where each sentence of a text starts, and the end of the text. Trailing white space is part of a sentence.

    A blank line ends a sentence too, because headings and list items have no full stop.

    >>> find_sentence_edges("Dr. Ito left.  She was late.").tolist()
    [0, 15, 28]
    """
    starts = {0}
    for block, end in _split_at_blank_lines(text):
        starts.add(block)
        starts.update(block + int(start) for start in sentences.find_sentence_starts(text[block:end]))
        starts.update(match.end() for match in _UNSPACED.finditer(text, block, end))
    lead = len(text) - len(text.lstrip())  # white space before the first sentence is part of it
    edges = [*[0][: len(text)], *sorted(start for start in starts if lead < start < len(text)), len(text)]
    return np.asarray(_split_long_sentences(text, edges), dtype=np.int64)


def _split_at_blank_lines(text: str) -> list[tuple[int, int]]:
    """Return start and end of the parts between blank lines."""
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    return [(a, b) for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if text[a:b].strip()]


def _split_long_sentences(text: str, edges: list[int]) -> list[int]:
    """Return the edges, with further ones in sentences of more than LONGEST characters."""
    short_edges: list[int] = []
    for start, end in pairwise(edges):
        short_edges.append(start)
        while len(text[short_edges[-1] : end].strip()) > LONGEST_SENTENCE:
            last = short_edges[-1]
            space = max(text.rfind(mark, last + 1, last + LONGEST_SENTENCE) for mark in " \n\t")
            short_edges.append(space + 1 if space > last else last + LONGEST_SENTENCE)
    return [*short_edges, edges[-1]]


def join_sentences(texts: Sequence[str]) -> tuple[str, Ints]:
    """Return sentences as one text, joined by spaces, and their edges in it."""
    for number, sentence in enumerate(texts):
        if not isinstance(sentence, str):
            raise CorpusError(f"sentence {number} is a {type(sentence).__name__}: sentences are strings")
    lengths = [len(sentence) + 1 for sentence in texts]
    if lengths:
        lengths[-1] -= 1
    return " ".join(texts), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def find_units(texts: Sequence[str]) -> Ints:
    """Return the numbers of the sentences that start a unit: a sentence with a subject, and those joined to it.

    >>> find_units(["1 .", "Rain fell all day .", "Snow fell all night .", "hp ."]).tolist()
    [0, 2]
    """
    is_start: Bools = np.ones(len(texts), dtype=bool)
    for k, text in enumerate(texts):
        if not _has_no_subject(text):
            continue
        first = text.lstrip()[:1]
        if k and (not first or first.islower() or first in _CLOSING or k + 1 == len(texts)):
            is_start[k] = False
        elif k + 1 < len(texts):
            is_start[k + 1] = False
    is_start[:1] = True
    starts = np.flatnonzero(is_start)
    # A unit without any subject, at the end or before a sentence that joins the previous one, joins the unit before it.
    without_subject = [
        k
        for k, (a, b) in enumerate(pairwise([*starts.tolist(), len(texts)]))
        if k and all(_has_no_subject(text) for text in texts[a:b])
    ]
    return np.delete(starts, without_subject)


def _has_no_subject(text: str) -> bool:
    words = _WORD.findall(text)
    if len(words) < FEW_WORDS:
        return not _is_unspaced(text)
    return len(words) <= TITLE and all(word[0].isupper() for word in words)


def _is_unspaced(text: str) -> bool:
    """Whether a text is long but has no spaces between words, as in Chinese, Japanese or Thai."""
    return len(text.strip()) > 12 and any(ord(character) > 0x0E00 for character in text)


def split_windows(model: Model, text: str, edges: Ints, length: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of windows of whole sentences; a sentence longer than a window is split at white space."""
    limit = min(length, model.max_length or length)
    start = 0
    for a, b in pairwise(_split_by_tokens(model, text, edges, limit)):
        if a > start and count_tokens(model, text[start:b]) > limit and text[start:a].strip():
            yield start, a
            start = a
    yield start, len(text)


def count_tokens(model: Model, text: str) -> int:
    """Return the number of tokens of a text, including special ones."""
    return 0 if isinstance(model.tokens, Patches) else model.tokens.count(text)


def _split_by_tokens(model: Model, text: str, edges: Ints, limit: int) -> list[int]:
    """Return the edges of sentences, with further ones where a sentence has more than `limit` tokens."""
    short_edges: list[int] = [0]
    for a, b in pairwise(edges.tolist()):
        short_edges += _split_in_halves(model, text, a, b, limit)
    return short_edges


def _split_in_halves(model: Model, text: str, a: int, b: int, limit: int) -> list[int]:
    """Return the ends of parts of text[a:b] that have at most `limit` tokens each."""
    if b - a < 2 or count_tokens(model, text[a:b]) <= limit:
        return [b]
    middle = (a + b) // 2
    space = max(text.rfind(mark, a + 1, middle) for mark in " \n\t") + 1
    cut = space if space > a + 1 else middle
    return [*_split_in_halves(model, text, a, cut, limit), *_split_in_halves(model, text, cut, b, limit)]


MAX_TOKENS = 256
"""tokens of a piece that are read; sentences are shorter, and the beginning of a longer piece shows its subject"""
ReadCallback = Callable[[int], None]
"""called with the number of pieces read since the last call"""


def compute_head_means(model: Model, texts: Sequence[str], done: ReadCallback | None = None) -> Floats:
    """Return the mean outputs of all heads of all layers (piece, head, width).

    A piece without tokens has zeros; if no piece has any, there are no heads either.

    Args:
        done: Called with the number of pieces read since the last call.
    """
    if isinstance(model.tokens, Patches):
        raise ModelError(f"{model.name} reads images: choose a model of texts")
    length = limit_length(model)
    batch_size = choose_batch_size(model, min(length, 128))
    windows = [_NumberedWindow(k, window) for k, window in enumerate(_encode(model, model.tokens, texts, length))]
    means = np.zeros((len(texts), 0, 0), dtype=np.float32)
    # Unlike a study, which sorts a few batches at a time, this sorts all windows: they are in memory anyway.
    ordered = sorted((window for window in windows if len(window)), key=len)
    for group in group_by_length(ordered, model.limit_batch_size(batch_size), alike=not model.ignores_padding):
        batch_means = _average_outputs(model, [numbered.window for numbered in group])
        if not means.size:
            means = np.zeros((len(texts), *batch_means.shape[1:]), dtype=np.float32)
        means[[numbered.number for numbered in group]] = batch_means
        if done is not None:
            done(len(group))
    if not np.isfinite(means).all():
        raise ModelError(f"{model.name}: its head outputs are not finite: try --dtype float32")
    return means


def limit_length(model: Model) -> int:
    """Return how many tokens of a piece are read, special ones included."""
    return min(MAX_TOKENS, model.max_length or MAX_TOKENS)


def count_read_in_part(model: Model, texts: Sequence[str]) -> int:
    """Return how many texts are longer than what is read of each."""
    limit = limit_length(model)
    # A token has at least one byte, and a tokenizer adds few: most texts need no counting.
    return sum(len(text.encode()) > limit // 2 and count_tokens(model, text) > limit for text in texts)


class _NumberedWindow:
    def __init__(self, number: int, window: Window) -> None:
        self.number, self.window = number, window

    def __len__(self) -> int:
        return len(self.window) if not self.window.special.all() else 0


def _encode(model: Model, tokens: ModelTokens, texts: Sequence[str], length: int) -> list[Window]:
    encodings: Iterable[list[Encoding]] | None = tokens.encode_all(texts, length, all_windows=False, offsets=False)
    if encodings is None:
        try:
            encodings = [tokens.encode(text, length, all_windows=False, offsets=False) for text in texts]
        except CorpusError as error:
            raise CorpusError(f"a sentence of the text: {error}") from None
    return [model.adapt_window(_make_window(text_encodings[0])) for text_encodings in encodings]


def _make_window(encoding: Encoding) -> Window:
    no_sentences = np.zeros(len(encoding.ids), dtype=np.int64)
    return Window(encoding.ids, encoding.special, no_sentences, encoding.end, encoding.comma)


def _average_outputs(model: Model, windows: list[Window]) -> Floats:
    """Return the mean outputs of windows over their tokens that are not special (window, head, width)."""
    batch = Batch.of(windows, model.tokens.pad_id)
    is_word = np.zeros_like(batch.real)
    for row, window in enumerate(windows):
        is_word[row, : len(window)] = ~window.special
    (mask,) = send([is_word], model.device)
    token_weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
    layers: list[torch.Tensor] = []

    def record(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        present = output[:, :, : model.architecture.head_counts[layer]]
        layers.append(torch.einsum("bnhd,bn->bhd", present.float(), token_weights))

    model.observe(batch, record)
    width = max(layer.shape[2] for layer in layers)
    # Where heads of layers differ in width, zeros fill up the narrow ones: they add nothing to a product.
    widened = [torch.nn.functional.pad(layer, (0, width - layer.shape[2])) for layer in layers]
    return torch.cat(widened, dim=1).cpu().numpy()

"""Split a text into windows of whole sentences; the fine level segments them one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from headscope.array_types import Ints
from headscope.model.image_patches import Patches
from headscope.model.model import Model


def split_windows(model: Model, text: str, edges: Ints, length: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of windows of whole sentences; a sentence longer than a window is split at white space."""
    limit = min(length, model.max_length or length)
    start = 0
    for a, b in pairwise(_split_long_sentences(model, text, edges, limit)):
        if a > start and count_tokens(model, text[start:b]) > limit and text[start:a].strip():
            yield start, a
            start = a
    yield start, len(text)


def count_tokens(model: Model, text: str) -> int:
    """Return the number of tokens of a text, including special ones."""
    return 0 if isinstance(model.tokens, Patches) else model.tokens.count(text)


def _split_long_sentences(model: Model, text: str, edges: Ints, limit: int) -> list[int]:
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

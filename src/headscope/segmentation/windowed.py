"""A text in windows of whole sentences: what the fine level reads one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.types import Ints


def windows_of(model: Model, text: str, edges: Ints, length: int) -> Iterator[tuple[int, int]]:
    """Parts of the text that fit into a window, of whole sentences; a sentence that does not is cut at white space."""
    limit = min(length, model.max_length or length)
    start = 0
    for a, b in pairwise(_short_edges(model, text, edges, limit)):
        if a > start and tokens_in(model, text[start:b]) > limit and text[start:a].strip():
            yield start, a
            start = a
    yield start, len(text)


def tokens_in(model: Model, text: str) -> int:
    """How many tokens a text has, special ones included."""
    return 0 if isinstance(model.tokens, Patches) else model.tokens.count(text)


def _short_edges(model: Model, text: str, edges: Ints, limit: int) -> list[int]:
    found: list[int] = [0]
    for a, b in pairwise(edges.tolist()):
        found += _halved(model, text, a, b, limit)
    return found


def _halved(model: Model, text: str, a: int, b: int, limit: int) -> list[int]:
    """The ends of parts of text[a:b] that have at most so many tokens each."""
    if b - a < 2 or tokens_in(model, text[a:b]) <= limit:
        return [b]
    middle = (a + b) // 2
    space = max(text.rfind(mark, a + 1, middle) for mark in " \n\t") + 1
    cut = space if space > a + 1 else middle
    return [*_halved(model, text, a, cut, limit), *_halved(model, text, cut, b, limit)]

"""Texts of millions of characters, of which a tokenizer that reads them whole takes more than a hundred bytes each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headscope.errors import CorpusError
from headscope.model.openings import CHARACTERS_A_TOKEN, opening
from headscope.types import Ints

LONG = 1_000_000
"""characters from which on a text is not given to a tokenizer as a whole, if that can be helped"""
GROWS = 4
"""a beginning that was not enough is made so many times as long"""

Tokenized = tuple[Ints, Ints]
"""ids; starts and ends, (n, 2), empty where they are not asked for"""


def openings(text: str, tokens: int) -> Iterator[str]:
    """Beginnings of a text that end between two words, each longer than the one before; at last all of it."""
    wanted = tokens
    while (size := CHARACTERS_A_TOKEN * wanted + 3) < len(text):  # as many as `opening` looks at
        held = opening(text[:size], wanted)
        if len(held) < size:  # else there is no place between two words among those looked at
            yield held
        wanted *= GROWS
    yield text


def settled(text: str, length: int, ids_of: Callable[[str], list[int]]) -> str:
    """A beginning of a long text whose first tokens are the text's, for a tokenizer of which that is not known.

    The beginning is taken where one of four times its length has the same window, which it fills. So the cut is far
    away from all that the window depends on, unless a tokenizer looks over tens of thousands of characters.
    """
    before: list[int] | None = None
    for size in (LONG // GROWS**2, LONG // GROWS, LONG, LONG * GROWS):
        held = text[:size]
        ids = ids_of(held)
        if len(ids) == length and ids == before:
            return held
        before = ids
        if size >= len(text):
            return text
    raise CorpusError(
        f"its first {LONG * GROWS:,} characters do not settle what its first {length} tokens are: no text of words"
    )


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """A text in parts that end between two words, each with where it starts."""
    start, size = 0, LONG
    while start < len(text):
        part = text[start : start + size]
        held = part if start + size >= len(text) else opening(part, (size - 3) // CHARACTERS_A_TOKEN)
        if len(held) == len(part) and start + size < len(text):
            size *= GROWS  # no place between words there
            continue
        yield start, held
        start, size = start + len(held), LONG


def tokenized(text: str, one: Callable[[str], Tokenized]) -> Tokenized:
    """All tokens of a text, taken piece by piece."""
    ids, spans = [], []
    for start, piece in pieces(text):
        made, places = one(piece)
        ids.append(made.astype(np.int32))
        spans.append(places + start)
    return np.concatenate(ids).astype(np.int64), np.concatenate(spans)


def windows(body: Tokenized, length: int, added: int, known: list[Ints]) -> list[Tokenized] | None:
    """Tokens in windows, with the `added` special tokens around them that are around the `known` ones; None if the
    known ones are other windows than these. A special token stands nowhere: at 0, as tokenizers say."""
    ids, spans = body
    step = length - added
    before = next((k for k in range(added + 1) if known and np.array_equal(known[0][k : k + step], ids[:step])), None)
    if before is None or step < 1:
        return None
    head, tail = known[0][:before], known[0][before + step :]
    found: list[Tokenized] = []
    for start in range(0, len(ids), step):
        row = np.concatenate([head, ids[start : start + step], tail])
        places = np.zeros((len(row), 2) if len(spans) else (0, 2), dtype=np.int64)
        if len(spans):
            places[before : len(row) - len(tail)] = spans[start : start + step]
        found.append((row, places))
    agree = all(np.array_equal(row, there) for (row, _), there in zip(found, known, strict=False))
    return found if agree and len(found) > len(known) else None


def spaces_stay(backend: Any) -> bool:
    """Whether no token that was added to a vocabulary takes away the space at which a text is cut."""
    return not any(
        (token.rstrip and token.content[-1:].isalnum()) or (token.lstrip and token.content[:1].isalnum())
        for token in backend.get_added_tokens_decoder().values()
    )

"""Split a text into sentences, the pieces that segments consist of; together they are exactly the text.

Headings, list numbers and initials have no subject. A sentence with fewer than two words, or with at most four words
that all begin with a capital, is joined to the next one, which it announces, or to the previous one if it begins in
lower case or with a closing mark. There is never a boundary between joined sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headscope.array_types import Bools, Ints
from headscope.corpus import sentences
from headscope.errors import CorpusError

FEW_WORDS, TITLE = 2, 4
"""A sentence has no subject of its own with fewer words than the first, or with at most the second if each begins with
a capital."""
LONGEST = 2_000
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
        while len(text[short_edges[-1] : end].strip()) > LONGEST:
            last = short_edges[-1]
            space = max(text.rfind(mark, last + 1, last + LONGEST) for mark in " \n\t")
            short_edges.append(space + 1 if space > last else last + LONGEST)
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

"""The pieces of a text that segments are made of: its sentences, so that they cover it to the last character.

A heading, a number of a list or an initial says nothing of a subject. A sentence with fewer than two words, or with at
most four that all begin with a capital, is joined to the one after it, which it announces, or to the one before where
it begins in lower case or with a closing mark. Between joined sentences no boundary is looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headscope.corpus import sentences
from headscope.errors import CorpusError
from headscope.types import Bools, Ints

FEW_WORDS, TITLE = 2, 4
"""A sentence with fewer words than the first, or as a title is written with at most the second, has no subject of its
own."""
LONGEST = 2_000
"""characters in a sentence; what the splitter leaves longer, as where there is no punctuation, is cut at white space"""
_WORD = re.compile(r"[^\W\d_]{2,}")
_BREAK = re.compile(r"\n[ \t\r\f\v]*\n\s*")
_UNSPACED = re.compile(r"[。！？][」』”’）)]*\s*")
"""the end of a sentence in scripts that put no space after it, which the splitter waits for"""
_CLOSING = frozenset(")]},;:.!?%”’»")


def edges_of(text: str) -> Ints:
    """Where each sentence of a text starts, and the text's end. White space belongs to the sentence before it.

    A blank line ends a sentence too: headings and items of a list have no full stop.

    >>> edges_of("Dr. Ito left.  She was late.").tolist()
    [0, 15, 28]
    """
    starts = {0}
    for block, end in _blocks(text):
        starts.add(block)
        starts.update(block + int(start) for start in sentences.starts(text[block:end]))
        starts.update(found.end() for found in _UNSPACED.finditer(text, block, end))
    lead = len(text) - len(text.lstrip())  # white space before the first sentence is part of it
    edges = [*[0][: len(text)], *sorted(start for start in starts if lead < start < len(text)), len(text)]
    return np.asarray(_bounded(text, edges), dtype=np.int64)


def _blocks(text: str) -> list[tuple[int, int]]:
    """Parts between blank lines: a sentence does not go over one."""
    starts = [0, *(found.end() for found in _BREAK.finditer(text))]
    return [(a, b) for a, b in zip(starts, [*starts[1:], len(text)], strict=True) if text[a:b].strip()]


def _bounded(text: str, edges: list[int]) -> list[int]:
    kept: list[int] = []
    for start, end in pairwise(edges):
        kept.append(start)
        while len(text[kept[-1] : end].strip()) > LONGEST:
            last = kept[-1]
            space = max(text.rfind(mark, last + 1, last + LONGEST) for mark in " \n\t")
            kept.append(space + 1 if space > last else last + LONGEST)
    return [*kept, edges[-1]]


def joined_text(given: Sequence[str]) -> tuple[str, Ints]:
    """Sentences that were given, as one text with a space between them, and their edges in it."""
    for number, sentence in enumerate(given):
        if not isinstance(sentence, str):
            raise CorpusError(f"sentence {number} is a {type(sentence).__name__}: sentences are strings")
    lengths = [len(sentence) + 1 for sentence in given]
    if lengths:
        lengths[-1] -= 1
    return " ".join(given), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def units(texts: Sequence[str]) -> Ints:
    """The numbers of the sentences that start a unit: one with a subject of its own, and what is joined to it.

    >>> units(["1 .", "Rain fell all day .", "Snow fell all night .", "hp ."]).tolist()
    [0, 2]
    """
    begins: Bools = np.ones(len(texts), dtype=bool)
    for k, text in enumerate(texts):
        if not _announces(text):
            continue
        first = text.lstrip()[:1]
        if k and (not first or first.islower() or first in _CLOSING or k + 1 == len(texts)):
            begins[k] = False
        elif k + 1 < len(texts):
            begins[k + 1] = False
    begins[:1] = True
    starts = np.flatnonzero(begins)
    # What announces nothing, being at the end or before something that looks back, belongs to what was before it.
    idle = [
        k
        for k, (a, b) in enumerate(pairwise([*starts.tolist(), len(texts)]))
        if k and all(_announces(text) for text in texts[a:b])
    ]
    return np.delete(starts, idle)


def _announces(text: str) -> bool:
    words = _WORD.findall(text)
    if len(words) < FEW_WORDS:
        return not _dense(text)
    return len(words) <= TITLE and all(word[0].isupper() for word in words)


def _dense(text: str) -> bool:
    """Whether a text is long though its words are not set apart, as in Chinese, Japanese or Thai."""
    return len(text.strip()) > 12 and any(ord(character) > 0x0E00 for character in text)

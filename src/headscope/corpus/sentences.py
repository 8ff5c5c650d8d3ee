"""Assign tokens to sentences: by punctuation tokens, as in the paper, or with a sentence splitter on the raw text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headscope.array_types import Bools, Ints

SENTENCE_ENDS = frozenset(".!?")
AFTER = 100_000
"""Characters read beyond a position to find the sentences that start before it. The splitter looks a few words ahead,
and over brackets of some hundred characters."""


def number_by_tokens(ends: Bools) -> Ints:
    """Return the sentence number of every token; a sentence ends with a token whose text is `.`, `!` or `?`.

    >>> number_by_tokens(np.array([False, False, True, False, True, False])).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    return np.asarray(
        np.cumsum(ends, dtype=np.int64) - ends
    )  # the end token itself belongs to the sentence that it ends


def number_by_text(sentence_starts: Ints, token_starts: Ints, special: Bools) -> Ints:
    """Return the sentence number of every token, from the positions where sentences and tokens start in the text.

    Special tokens have no position: before the first word they belong to its sentence, otherwise to the sentence of the
    word before them.
    """
    words = np.flatnonzero(~special)
    if len(words) == 0:
        return np.zeros(len(special), dtype=np.int64)
    numbers = np.searchsorted(sentence_starts, token_starts[words], side="right") - 1
    before = np.clip(np.searchsorted(words, np.arange(len(special)), side="right") - 1, 0, None)
    return np.maximum(numbers, 0)[before].astype(np.int64)


def find_sentence_starts(text: str, until: int | None = None) -> Ints:
    """Return where the sentences of a text start, up to position `until`. "Dr.", "U.S." and "3.5" end no sentence.

    >>> find_sentence_starts("Dr. Ito paid 3.5 dollars. She left.").tolist()
    [0, 26]
    """
    positions: list[int] = []
    # The splitter processes all of its text before it yields the first sentence.
    for start in _iterate_starts(text if until is None else text[: until + AFTER]):
        if until is not None and start > until:
            break
        positions.append(start)
    return np.asarray(positions, dtype=np.int64)


def _iterate_starts(text: str) -> Iterator[int]:
    from syntok import segmenter  # imported late: only needed here
    from syntok.tokenizer import Tokenizer

    tokenizer = Tokenizer(replace_not_contraction=False)
    # Like segmenter.analyze, which however copies all text before a paragraph for every paragraph.
    for offset, paragraph in segmenter.preprocess_with_offsets(text):
        for sentence in segmenter.segment(tokenizer.tokenize(paragraph)):
            yield offset + sentence[0].offset

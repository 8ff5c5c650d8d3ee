"""Where sentences end: by tokens, as in the paper, or by a real splitter on the raw text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headscope.types import Bools, Ints

SENTENCE_ENDS = frozenset(".!?")
AFTER = 100_000
"""characters that are read beyond a position to tell which sentences start before it; the splitter looks a few words
ahead, and over brackets of some hundred characters"""


def by_tokens(ends: Bools) -> Ints:
    """The sentence number of every token, where a sentence ends with a token whose text is `.`, `!` or `?`.

    >>> by_tokens(np.array([False, False, True, False, True, False])).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    return np.asarray(np.cumsum(ends, dtype=np.int64) - ends)  # its own end does not count yet


def by_text(sentence_starts: Ints, token_starts: Ints, special: Bools) -> Ints:
    """The sentence number of every token, from where sentences and tokens start in the text.

    Special tokens stand nowhere in the text: one before the first word belongs to that word's sentence, any other to
    the sentence of the word before it.
    """
    words = np.flatnonzero(~special)
    if len(words) == 0:
        return np.zeros(len(special), dtype=np.int64)
    numbers = np.searchsorted(sentence_starts, token_starts[words], side="right") - 1
    before = np.clip(np.searchsorted(words, np.arange(len(special)), side="right") - 1, 0, None)
    return np.maximum(numbers, 0)[before].astype(np.int64)


def starts(text: str, until: int | None = None) -> Ints:
    """Where each sentence of a text starts, up to position `until`. "Dr.", "U.S." and "3.5" end none.

    >>> starts("Dr. Ito paid 3.5 dollars. She left.").tolist()
    [0, 26]
    """
    found: list[int] = []
    # The splitter takes all of a text apart before it says where its first sentence ends.
    for start in _starts(text if until is None else text[: until + AFTER]):
        if until is not None and start > until:
            break
        found.append(start)
    return np.asarray(found, dtype=np.int64)


def _starts(text: str) -> Iterator[int]:
    from syntok import segmenter  # only the splitter needs it
    from syntok.tokenizer import Tokenizer

    tokenizer = Tokenizer(replace_not_contraction=False)
    # segmenter.analyze does the same, but copies all the text before a paragraph for every paragraph.
    for offset, paragraph in segmenter.preprocess_with_offsets(text):
        for sentence in segmenter.segment(tokenizer.tokenize(paragraph)):
            yield offset + sentence[0].offset

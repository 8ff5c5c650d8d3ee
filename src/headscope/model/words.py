"""Which tokens are pieces of one word, for every kind of tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from headscope.types import Bools, Ints

WORD_STARTS = ("Ġ", "▁")
"""How byte-level BPE and SentencePiece mark a token that starts a word."""
WORD_END = "</w>"
"""How the BPE of CLIP, XLM and the first GPT marks one that ends a word."""
CONTINUES = "##"
"""How WordPiece marks a token that goes on with a word."""


def unmarked(name: str) -> str:
    """A token without the marks of where words start or end.

    >>> unmarked("Ġthe"), unmarked("the</w>"), unmarked("##s")
    ('the', 'the', '##s')
    """
    return (name[1:] if name.startswith(WORD_STARTS) else name).removesuffix(WORD_END)


def by_text(text: str, spans: Sequence[tuple[int, int]], numbers: Sequence[int | None], special: Bools) -> Ints:
    """The word of each token, from where the tokens stand in the text.

    Neighbours are one word where the tokenizer gives them one number and letters or digits touch. Its numbers alone
    will not do: a tokenizer that does not split a text before cutting it into pieces calls the whole text one word.
    """
    goes_on = [
        k > 0
        and not special[k]
        and not special[k - 1]
        and numbers[k] == numbers[k - 1]
        and _touch(text, spans[k - 1], spans[k])
        for k in range(len(spans))
    ]
    return np.cumsum(~np.array(goes_on, dtype=bool)).astype(np.int64) - 1


def by_marks(names: Sequence[str], special: Bools) -> Ints:
    """The word of each token, from the marks of the vocabulary.

    >>> by_marks(["[CLS]", "air", "##port", ".", "[SEP]"], np.array([True, False, False, False, True])).tolist()
    [0, 1, 1, 2, 3]
    >>> by_marks(["▁air", "port", ".", "▁a"], np.zeros(4, dtype=bool)).tolist()
    [0, 0, 1, 2]
    """
    starts = any(name.startswith(WORD_STARTS) for name in names)
    ends = any(name.endswith(WORD_END) for name in names)

    def goes_on(k: int) -> bool:
        if k == 0 or special[k] or special[k - 1]:
            return False
        name, before = names[k], names[k - 1]
        if ends:
            return not before.endswith(WORD_END)
        if starts:
            return not name.startswith(WORD_STARTS) and _letter(name[:1]) and _letter(before[-1:])
        return name.startswith(CONTINUES)

    return np.cumsum([not goes_on(k) for k in range(len(names))]).astype(np.int64) - 1


def _touch(text: str, before: tuple[int, int], after: tuple[int, int]) -> bool:
    if after[0] < before[1]:  # pieces of one character share its place
        return True
    return after[0] == before[1] and _letter(text[before[1] - 1 : before[1]]) and _letter(text[after[0] : after[0] + 1])


def _letter(character: str) -> bool:
    return bool(character) and (character.isalnum() or unicodedata.category(character).startswith("M"))

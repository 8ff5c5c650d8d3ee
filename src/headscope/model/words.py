"""Which tokens are pieces of one word, for every kind of tokenizer."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headscope.types import Bools, Ints

WORD_STARTS = ("Ġ", "▁")
"""How byte-level BPE and SentencePiece mark a token that starts a word."""
WORD_END = "</w>"
"""How the BPE of CLIP, XLM and the first GPT marks one that ends a word."""
CONTINUES = "##"
"""How WordPiece marks a token that goes on with a word."""
PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(k): k for k in PLAIN} | {chr(0x100 + n): k for n, k in enumerate(sorted({*range(0x100)} - {*PLAIN}))}
"""How byte-level BPE writes bytes: those that Latin-1 can show as they are, the others from U+0100 on."""


def unmarked(name: str) -> str:
    """A token without the marks of where words start or end.

    >>> unmarked("Ġthe"), unmarked("the</w>"), unmarked("##s")
    ('the', 'the', '##s')
    """
    return (name[1:] if name.startswith(WORD_STARTS) else name).removesuffix(WORD_END)


def by_text(text: str, spans: Sequence[tuple[int, int]], numbers: Sequence[int | None], special: Bools) -> Ints:
    """The word of each token, from where the tokens stand in the text.

    Neighbours are one word where the tokenizer gives them one number and letters or digits touch. Its numbers alone
    will not do: a tokenizer that does not split a text before cutting it into pieces calls the whole text one word, and
    many split a letter from the marks on it, which belong to it whatever the number.
    """
    goes_on = [
        k > 0
        and not special[k]
        and not special[k - 1]
        and _touch(text, spans[k - 1], spans[k], one=numbers[k] == numbers[k - 1])
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
    ends = any(name.endswith(WORD_END) for name in names)
    if not ends and any(name.startswith(WORD_STARTS) for name in names):
        text, spans = _laid_out(names, special)
        return by_text(text, spans, [0] * len(names), special)

    def goes_on(k: int) -> bool:
        if k == 0 or special[k] or special[k - 1]:
            return False
        return not names[k - 1].endswith(WORD_END) if ends else names[k].startswith(CONTINUES)

    return np.cumsum([not goes_on(k) for k in range(len(names))]).astype(np.int64) - 1


def _touch(text: str, before: tuple[int, int], after: tuple[int, int], *, one: bool) -> bool:
    if after[0] < before[1]:  # pieces of one character share its place
        return one
    dropped = text[before[1] : after[0]]  # by the tokenizer: a space between words, or a mark within one
    if dropped and (not one or any(character.isspace() for character in dropped)):
        return False
    last, first = text[before[1] - 1 : before[1]], text[after[0] : after[0] + 1]
    base = before[1] - 1
    while base > 0 and _mark(text[base]):
        base -= 1
    if _mark(first):
        return not text[base : base + 1].isspace()
    return (one or _mark(last)) and text[base : base + 1].isalnum() and first.isalnum()


def _mark(character: str) -> bool:
    """Whether it belongs to the letter before it: an accent, a vowel sign, a joiner; a zero-width space does not."""
    kind = unicodedata.category(character) if character and character != "\u200b" else ""
    return kind.startswith("M") or kind == "Cf"


def _laid_out(names: Sequence[str], special: Bools) -> tuple[str, list[tuple[int, int]]]:
    """The text that tokens stand for, and where each stands in it; special tokens stand nowhere."""
    byte_level = any(name.startswith(WORD_STARTS[0]) for name in names)
    raw, edges = bytearray(), [0]
    for name, hidden in zip(names, special, strict=True):
        raw += b"" if hidden else _bytes_of(name, byte_level=byte_level)
        edges.append(len(raw))
    # A character stands where its first byte does, and the others of it are marked as such.
    begun = np.concatenate([[0], np.cumsum([byte & 0xC0 != 0x80 for byte in raw])]).astype(int).tolist()
    spans = [(begun[min(a + 1, len(raw))] - 1 if b > a else begun[a], begun[b]) for a, b in pairwise(edges)]
    return raw.decode("utf-8", "replace"), spans


def _bytes_of(name: str, *, byte_level: bool) -> bytes:
    if found := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
        return bytes.fromhex(found[1])
    if byte_level and all(character in BYTES for character in name):
        return bytes(BYTES[character] for character in name)
    return name.replace(WORD_STARTS[1], " ").encode("utf-8", "replace")

"""How vocabularies write tokens: what text a token stands for, how it is shown, and which tokens are one word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from headscope.types import Bools, Ints

WORD_STARTS = ("Ġ", "▁")
"""How byte-level BPE and SentencePiece mark a token that starts a word."""
WORD_END = "</w>"
"""How the BPE of CLIP, XLM and the first GPT marks one that ends a word."""
CONTINUES = "##"
"""How WordPiece marks a token that goes on with a word."""
GOES_ON = "@@"
"""How the BPE of CTRL and BERTweet marks one that the next token goes on with."""
PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = {chr(k): k for k in PLAIN} | {chr(0x100 + n): k for n, k in enumerate(sorted({*range(0x100)} - {*PLAIN}))}
"""How byte-level BPE writes bytes: those that Latin-1 can show as they are, the others from U+0100 on."""
RAW = {chr(k): k for k in range(0x100)}
"""How ByT5 writes them."""
Alphabet = Mapping[str, int]

SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""What stands for blanks that would not be seen."""
DIRECTIONS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""Characters that turn the direction of all that is written after them."""
JOINER = "\u200d"


# What a token stands for


def unmarked(name: str) -> str:
    """A token without the marks of where words start or end, to compare with `.` and `,`.

    >>> unmarked("Ġthe"), unmarked("the</w>"), unmarked("the@@"), unmarked("<0x2E>"), unmarked("##s")
    ('the', 'the', 'the', '.', '##s')
    """
    if (byte := _byte(name)) is not None:
        return chr(byte) if 0x20 < byte < 0x7F else name
    bare = (name[1:] if name.startswith(WORD_STARTS) else name).removesuffix(WORD_END)
    return bare.removesuffix(GOES_ON) or bare


def text_of(name: str, alphabet: Alphabet | None = None) -> str:
    """The characters a token stands for; bytes that make none by themselves are kept as lone surrogates.

    >>> text_of("▁the"), text_of("ĠcafÃ©", BYTES), text_of("<0x0A>"), text_of("ðŁ", BYTES)
    (' the', ' café', '\\n', '\\udcf0\\udc9f')
    """
    return _bytes_of(name, alphabet).decode("utf-8", "surrogateescape")


def _bytes_of(name: str, alphabet: Alphabet | None) -> bytes:
    if (byte := _byte(name)) is not None:
        return bytes([byte])
    if alphabet is not None and all(character in alphabet for character in name):
        return bytes(alphabet[character] for character in name)
    return name.replace(WORD_STARTS[1], " ").encode("utf-8", "replace")


def _byte(name: str) -> int | None:
    found = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
    return int(found[1], 16) if found else None


# How it is shown


def shown(name: str, alphabet: Alphabet | None = None) -> str:
    """A token as people read it, which no terminal and no page can take for anything but text.

    >>> shown("Ġthe", BYTES), shown("the</w>"), shown("▁"), shown(".Ċ", BYTES), shown("ðŁ", BYTES), shown("##s")
    ('the', 'the', '␣', '.⏎', '<0xF0><0x9F>', '##s')
    """
    if name.startswith(CONTINUES) and alphabet is None:
        return visible(name)
    whole = text_of(name.removesuffix(WORD_END) or name, alphabet)
    letter = alphabet is None and name.startswith(WORD_STARTS[0])  # Ġ is a mark of bytes, and else Maltese
    return visible(whole if letter or not whole.strip() else text_of(unmarked(name) or name, alphabet))


def visible(text: str) -> str:
    """A text whose every character can be seen, but for spaces and joiners among letters.

    >>> visible("a b"), visible(" a"), visible("\\n\\n"), visible("\\x1b[2J"), visible("\\u200b"), visible(" " * 8)
    ('a b', '␣a', '⏎⏎', '<0x1B>[2J', '<U+200B>', '␣×8')
    """
    nothing = not any(_seen(character) for character in text)
    start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
    made = "".join(_symbol(character, nothing or not start <= k < stop) for k, character in enumerate(text))
    return re.sub(r"([␣⏎⇥␍])\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", made)


def written(name: str) -> str:
    """A token as the vocabulary writes it, but for control characters and blanks, which nobody would see.

    >>> written("Ġthe"), written("\\n"), written(" ")
    ('Ġthe', '<U+000A>', '<U+0020>')
    """
    blank = not name.strip()
    return "".join(_code(k) if blank or unicodedata.category(k) in ("Cc", "Cs", "Zl", "Zp") else k for k in name)


def _symbol(character: str, bare: bool) -> str:
    """`bare`: nothing stands around it to make it visible."""
    kind = unicodedata.category(character)
    if character in SHOWN:
        return SHOWN[character] if bare or character != " " else character
    if "\udc80" <= character <= "\udcff":  # a byte of an unfinished character
        return f"<0x{ord(character) - 0xDC00:02X}>"
    if kind in ("Cc", "Cs", "Zl", "Zp") or character in DIRECTIONS or (bare and kind in ("Cf", "Co", "Zs")):
        return f"<0x{ord(character):02X}>" if ord(character) < 0x80 else _code(character)
    return character


def _seen(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs")


def _code(character: str) -> str:
    return f"<U+{ord(character):04X}>"


# Which tokens are one word


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


def by_marks(names: Sequence[str], special: Bools, alphabet: Alphabet | None = None) -> Ints:
    """The word of each token, from the marks of the vocabulary.

    >>> by_marks(["[CLS]", "air", "##port", ".", "[SEP]"], np.array([True, False, False, False, True])).tolist()
    [0, 1, 1, 2, 3]
    >>> by_marks(["▁air", "port", ".", "▁a"], np.zeros(4, dtype=bool)).tolist()
    [0, 0, 1, 2]
    """
    if alphabet is None and any(name.startswith(WORD_STARTS[0]) for name in names):
        alphabet = BYTES
    pieces = list(_laid_out(names, special, alphabet))
    text = b"".join(pieces).decode("utf-8", "replace")
    return by_text(text, _spans(pieces), [0] * len(names), special)


def places(text: str, names: Sequence[str], special: Bools, alphabet: Alphabet | None) -> list[tuple[int, int]] | None:
    """Where tokens stand in a text, if written one after another they are its beginning; special ones stand nowhere.

    >>> places("a b", ["a", " ", "b", "</s>"], np.array([False, False, False, True]), RAW)
    [(0, 1), (1, 2), (2, 3), (3, 3)]
    >>> places("the airport", ["the", "air", "##port"], np.zeros(3, dtype=bool), None) is None
    True
    """
    pieces = [
        b"" if hidden else _bytes_of(name, alphabet) if alphabet is not None else name.encode("utf-8", "replace")
        for name, hidden in zip(names, special, strict=True)
    ]
    return _spans(pieces) if text.encode("utf-8", "replace").startswith(b"".join(pieces)) else None


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
    if last == JOINER and _picture(first) and _picture(text[base : base + 1]):
        return True
    return (one or _mark(last)) and text[base : base + 1].isalnum() and first.isalnum()


def _mark(character: str) -> bool:
    """Whether it belongs to the character before it: an accent, a vowel sign, a joiner, the colour of a skin.

    A zero-width space does not.
    """
    kind = unicodedata.category(character) if character and character != "\u200b" else ""
    return kind.startswith("M") or kind == "Cf" or "\U0001f3fb" <= character <= "\U0001f3ff"


def _picture(character: str) -> bool:
    return bool(character) and unicodedata.category(character) == "So"


def _laid_out(names: Sequence[str], special: Bools, alphabet: Alphabet | None) -> Iterator[bytes]:
    """The bytes that each token stands for, with spaces where the marks say that words start or end."""
    ends = any(name.endswith(WORD_END) for name in names)
    starts = alphabet is not None or any(name.startswith(WORD_STARTS) for name in names)
    for k, (name, hidden) in enumerate(zip(names, special, strict=True)):
        if hidden:
            yield b""
        elif ends:
            bare = name.removesuffix(WORD_END)
            yield _bytes_of(bare, alphabet) + (b" " if bare != name else b"")
        elif starts:
            yield _bytes_of(name, alphabet)
        else:
            bare = name.removeprefix(CONTINUES)
            goes_on = bare != name or (k > 0 and names[k - 1].endswith(GOES_ON))
            yield (b"" if goes_on else b" ") + (bare.removesuffix(GOES_ON) or bare).encode("utf-8", "replace")


def _spans(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Where in a text tokens stand, given the bytes of each."""
    raw, edges = b"".join(pieces), np.cumsum([0, *map(len, pieces)]).tolist()
    # A character stands where its first byte does, and the others of it are marked as such.
    begun = np.concatenate([[0], np.cumsum([byte & 0xC0 != 0x80 for byte in raw])]).astype(int).tolist()
    return [(begun[min(a + 1, len(raw))] - 1 if b > a else begun[a], begun[b]) for a, b in pairwise(edges)]

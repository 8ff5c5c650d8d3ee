"""Text of vocabulary entries: what text a token stands for, how it is displayed, and which tokens form one word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from headscope.array_types import Bools, Ints

WORD_STARTS = ("Ġ", "▁")
"""marks of a token that starts a word, in byte-level BPE and in SentencePiece"""
WORD_END = "</w>"
"""mark of a token that ends a word, in the BPE of CLIP, XLM and the first GPT"""
CONTINUATION_PREFIX = "##"
"""mark of a token that continues a word, in WordPiece"""
CONTINUATION_SUFFIX = "@@"
"""mark of a token that the next one continues, in the BPE of CTRL and BERTweet"""
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_LEVEL = {chr(k): k for k in PRINTABLE} | {
    chr(0x100 + n): k for n, k in enumerate(sorted({*range(0x100)} - {*PRINTABLE}))
}
"""how byte-level BPE writes bytes: printable ones of Latin-1 as they are, the others from U+0100 on"""
RAW_BYTES = {chr(k): k for k in range(0x100)}
"""how ByT5 writes bytes"""
Alphabet = Mapping[str, int]

BLANK_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""symbols for blanks that would be invisible"""
DIRECTION_CONTROLS = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""control characters that change the direction of the text after them"""
JOINER = "\u200d"


# The text of a token


def strip_marks(name: str) -> str:
    """Return a token without the marks of where words start or end, to compare it with `.` and `,`.

    >>> strip_marks("Ġthe"), strip_marks("the</w>"), strip_marks("the@@"), strip_marks("<0x2E>"), strip_marks("##s")
    ('the', 'the', 'the', '.', '##s')
    """
    if (byte := _parse_byte(name)) is not None:
        return chr(byte) if 0x20 < byte < 0x7F else name
    bare = (name[1:] if name.startswith(WORD_STARTS) else name).removesuffix(WORD_END)
    return bare.removesuffix(CONTINUATION_SUFFIX) or bare


def decode_token(name: str, alphabet: Alphabet | None = None) -> str:
    """Return the text that a token stands for; bytes of incomplete characters become lone surrogates.

    >>> decode_token("▁the"), decode_token("ĠcafÃ©", BYTE_LEVEL), decode_token("<0x0A>"), decode_token("ðŁ", BYTE_LEVEL)
    (' the', ' café', '\\n', '\\udcf0\\udc9f')
    """
    return _encode_token(name, alphabet).decode("utf-8", "surrogateescape")


def _encode_token(name: str, alphabet: Alphabet | None) -> bytes:
    if (byte := _parse_byte(name)) is not None:
        return bytes([byte])
    if alphabet is not None and all(character in alphabet for character in name):
        return bytes(alphabet[character] for character in name)
    return name.replace(WORD_STARTS[1], " ").encode("utf-8", "replace")


def _parse_byte(name: str) -> int | None:
    match = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
    return int(match[1], 16) if match else None


# Display


def format_label(name: str, alphabet: Alphabet | None = None) -> str:
    """Return a token as people read it, safe to print in terminals and pages.

    >>> format_label("Ġthe", BYTE_LEVEL), format_label(".Ċ", BYTE_LEVEL), format_label("ðŁ", BYTE_LEVEL)
    ('the', '.⏎', '<0xF0><0x9F>')
    >>> format_label("the</w>"), format_label("▁"), format_label("##s")
    ('the', '␣', '##s')
    """
    if name.startswith(CONTINUATION_PREFIX) and alphabet is None:
        return replace_invisible(name)
    text = decode_token(name.removesuffix(WORD_END) or name, alphabet)
    is_letter = alphabet is None and name.startswith(WORD_STARTS[0])  # Ġ is a mark of bytes, and else Maltese
    return replace_invisible(
        text if is_letter or not text.strip() else decode_token(strip_marks(name) or name, alphabet)
    )


def has_letter_or_digit(text: str) -> bool:
    """Return whether a token's text has a letter or a digit. Marks are parts of letters, such as vowel signs.

    >>> [has_letter_or_digit(text) for text in ("the", "7", "--", "\u0e31")]
    [True, True, False, True]
    """
    return any(unicodedata.category(character)[0] in "LMN" for character in text)


def replace_invisible(text: str) -> str:
    """Return a text with symbols in place of invisible characters, except spaces and joiners between letters.

    >>> [replace_invisible(text) for text in ("a b", " a", "\\n\\n", "\\x1b[2J", "\\u200b", " " * 8)]
    ['a b', '␣a', '⏎⏎', '<0x1B>[2J', '<U+200B>', '␣×8']
    """
    all_invisible = not any(_is_visible(character) for character in text)
    start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
    symbols = "".join(
        _format_character(character, all_invisible or not start <= k < stop) for k, character in enumerate(text)
    )
    return re.sub(r"([␣⏎⇥␍])\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", symbols)


def format_name(name: str) -> str:
    """Return a token as the vocabulary writes it, with codes in place of control characters and blanks.

    >>> format_name("Ġthe"), format_name("\\n"), format_name(" ")
    ('Ġthe', '<U+000A>', '<U+0020>')
    """
    blank = not name.strip()
    return "".join(
        _format_code_point(k) if blank or unicodedata.category(k) in ("Cc", "Cs", "Zl", "Zp") else k for k in name
    )


def _format_character(character: str, bare: bool) -> str:
    """Return how a character is displayed. `bare`: no visible characters surround it."""
    category = unicodedata.category(character)
    if character in BLANK_SYMBOLS:
        return BLANK_SYMBOLS[character] if bare or character != " " else character
    if "\udc80" <= character <= "\udcff":  # a byte of an unfinished character
        return f"<0x{ord(character) - 0xDC00:02X}>"
    if (
        category in ("Cc", "Cs", "Zl", "Zp")
        or character in DIRECTION_CONTROLS
        or (bare and category in ("Cf", "Co", "Zs"))
    ):
        return f"<0x{ord(character):02X}>" if ord(character) < 0x80 else _format_code_point(character)
    return character


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs")


def _format_code_point(character: str) -> str:
    return f"<U+{ord(character):04X}>"


# Which tokens are one word


def number_words_by_text(
    text: str, spans: Sequence[tuple[int, int]], numbers: Sequence[int | None], special: Bools
) -> Ints:
    """Return the word number of each token, from the tokens' positions in the text.

    Adjacent tokens form one word where the tokenizer gives them the same number and letters or digits touch. Its
    numbers alone are not enough: a tokenizer that does not split a text before cutting it into pieces numbers the whole
    text as one word, and many separate a letter from its marks, which belong to it whatever the number.
    """
    continues = [
        k > 0
        and not special[k]
        and not special[k - 1]
        and _is_same_word(text, spans[k - 1], spans[k], same_number=numbers[k] == numbers[k - 1])
        for k in range(len(spans))
    ]
    return np.cumsum(~np.array(continues, dtype=bool)).astype(np.int64) - 1


def number_words_by_marks(names: Sequence[str], special: Bools, alphabet: Alphabet | None = None) -> Ints:
    """Return the word number of each token, from the marks of the vocabulary.

    >>> is_special = np.array([True, False, False, False, True])
    >>> number_words_by_marks(["[CLS]", "air", "##port", ".", "[SEP]"], is_special).tolist()
    [0, 1, 1, 2, 3]
    >>> number_words_by_marks(["▁air", "port", ".", "▁a"], np.zeros(4, dtype=bool)).tolist()
    [0, 0, 1, 2]
    """
    if alphabet is None and any(name.startswith(WORD_STARTS[0]) for name in names):
        alphabet = BYTE_LEVEL
    pieces = list(_spell_tokens(names, special, alphabet))
    text = b"".join(pieces).decode("utf-8", "replace")
    return number_words_by_text(text, _compute_spans(pieces), [0] * len(names), special)


def locate_tokens(
    text: str, names: Sequence[str], special: Bools, alphabet: Alphabet | None
) -> list[tuple[int, int]] | None:
    """Return the tokens' positions in a text, or None if their concatenation is not its beginning.

    Special tokens have empty spans.

    >>> locate_tokens("a b", ["a", " ", "b", "</s>"], np.array([False, False, False, True]), RAW_BYTES)
    [(0, 1), (1, 2), (2, 3), (3, 3)]
    >>> locate_tokens("the airport", ["the", "air", "##port"], np.zeros(3, dtype=bool), None) is None
    True
    """
    pieces = [
        b""
        if is_special
        else _encode_token(name, alphabet)
        if alphabet is not None
        else name.encode("utf-8", "replace")
        for name, is_special in zip(names, special, strict=True)
    ]
    return _compute_spans(pieces) if text.encode("utf-8", "replace").startswith(b"".join(pieces)) else None


def _is_same_word(text: str, before: tuple[int, int], after: tuple[int, int], *, same_number: bool) -> bool:
    if after[0] < before[1]:  # pieces of one character share its position
        return same_number
    dropped = text[before[1] : after[0]]  # by the tokenizer: a space between words, or a mark within one
    if dropped and (not same_number or any(character.isspace() for character in dropped)):
        return False
    last, first = text[before[1] - 1 : before[1]], text[after[0] : after[0] + 1]
    base = before[1] - 1
    while base > 0 and _is_mark(text[base]):
        base -= 1
    if _is_mark(first):
        return not text[base : base + 1].isspace()
    if last == JOINER and _is_pictograph(first) and _is_pictograph(text[base : base + 1]):
        return True
    return (same_number or _is_mark(last)) and text[base : base + 1].isalnum() and first.isalnum()


def _is_mark(character: str) -> bool:
    """Return whether a character modifies the one before it: an accent, vowel sign, joiner or skin tone.

    A zero-width space does not.
    """
    category = unicodedata.category(character) if character and character != "\u200b" else ""
    return category.startswith("M") or category == "Cf" or "\U0001f3fb" <= character <= "\U0001f3ff"


def _is_pictograph(character: str) -> bool:
    return bool(character) and unicodedata.category(character) == "So"


def _spell_tokens(names: Sequence[str], special: Bools, alphabet: Alphabet | None) -> Iterator[bytes]:
    """Yield the bytes of each token, with spaces where the marks say that words start or end."""
    has_ends = any(name.endswith(WORD_END) for name in names)
    has_starts = alphabet is not None or any(name.startswith(WORD_STARTS) for name in names)
    for k, (name, is_special) in enumerate(zip(names, special, strict=True)):
        if is_special:
            yield b""
        elif has_ends:
            stem = name.removesuffix(WORD_END)
            yield _encode_token(stem, alphabet) + (b" " if stem != name else b"")
        elif has_starts:
            yield _encode_token(name, alphabet)
        else:
            stem = name.removeprefix(CONTINUATION_PREFIX)
            continues = stem != name or (k > 0 and names[k - 1].endswith(CONTINUATION_SUFFIX))
            yield (b"" if continues else b" ") + (stem.removesuffix(CONTINUATION_SUFFIX) or stem).encode(
                "utf-8", "replace"
            )


def _compute_spans(pieces: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the tokens' positions in their concatenated text, given the bytes of each."""
    joined, edges = b"".join(pieces), np.cumsum([0, *map(len, pieces)]).tolist()
    # A character counts at its first byte; continuation bytes have the bits 10 in front.
    characters = np.concatenate([[0], np.cumsum([byte & 0xC0 != 0x80 for byte in joined])]).astype(int).tolist()
    return [
        (characters[min(a + 1, len(joined))] - 1 if b > a else characters[a], characters[b]) for a, b in pairwise(edges)
    ]

"""How much of a text its first tokens need, so that a book is not tokenized for its first page.

A tokenizer reads all of a text before it cuts it to length. Of many it is known that a text's beginning, up to a space
between two words, has the tokens it has in the whole text, for nothing they do reaches over such a space: these get the
beginning alone. Of all others nothing is assumed, and they read the whole.
"""

from __future__ import annotations

import json
from typing import Any

CHARACTERS_A_TOKEN = 6
"""English has four and a half. A text whose tokens are longer is tokenized again, as a whole."""
PLACES = 50
"""Spaces that are looked at; a text without a good one among them is taken whole."""
NORMALIZERS = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents")
"""They change characters, and letters with the marks on them; a space and the letter after it stay as they are."""
SPLITTERS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
"""They make words, and no word has a space in it."""


def opening(text: str, tokens: int) -> str:
    """A beginning of a text that ends before a space between two words and is long enough for so many tokens, or all.

    >>> opening("word " * 100, 3)
    'word word word'
    """
    place = CHARACTERS_A_TOKEN * tokens + 1
    if len(text) <= place + 1:
        return text
    for _ in range(PLACES):
        place = text.rfind(" ", 1, place)
        if place < 0:
            return text
        before, after = text[place - 1], text[place + 1]
        if before.isascii() and before.isalnum() and after.isascii() and after.isalnum():
            return text[:place]
    return text


def suffice(backend: Any) -> bool:
    """Whether the tokens of a text's opening are the first tokens of the text, with this tokenizer of `tokenizers`."""
    try:
        normalizer, splitter = _steps(backend.normalizer), _steps(backend.pre_tokenizer)
        model = json.loads(backend.model.__getstate__())
        added = backend.get_added_tokens_decoder().values()
    except Exception:  # a step written in Python says nothing about itself
        return False
    if any(" " in token.content for token in added):  # may lie across the space
        return False
    if not (splitter and _splits(splitter[0]) and all(step["type"] in NORMALIZERS for step in normalizer)):
        return False
    # One that fails at a character it does not know must see them all, to fail as it would.
    unknown = model.get("unk_token")
    if model.get("type") == "WordPiece":
        return unknown is not None and backend.token_to_id(unknown) is not None
    return model.get("type") == "BPE" and (unknown is None or backend.token_to_id(unknown) is not None)


def _splits(step: dict[str, Any]) -> bool:
    # GPT-2's pattern gives a space to the word after it, and where it splits at all, it splits before that space.
    return step["type"] in SPLITTERS or (step["type"] == "ByteLevel" and bool(step.get("use_regex", True)))


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer, those of a sequence each."""
    if part is None:
        return []
    state = json.loads(part.__getstate__())
    steps: list[dict[str, Any]] = state.get("normalizers") or state.get("pretokenizers") or [state]
    return steps

"""How much of a text its first tokens depend on, so that a book is not tokenized for its first page.

A tokenizer reads the whole text before it truncates. For many tokenizers, the beginning of a text up to a space between
two words has the same tokens as in the whole text, because no step of theirs reaches across such a space: these get the
beginning alone. All others get the whole text.
"""

from __future__ import annotations

import json
from typing import Any

CHARACTERS_PER_TOKEN = 6
"""English has 4.5. A text whose tokens are longer is tokenized again, as a whole."""
MAX_SPACES = 50
"""spaces that are examined; a text without a suitable one among them is taken whole"""
NORMALIZERS = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents")
"""These change characters, and letters with their marks; a space and the letter after it stay."""
SPLITTERS = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
"""These split a text into words that contain no spaces."""


def cut_opening(text: str, tokens: int) -> str:
    """Return a beginning of a text that ends before a space between two words and is long enough for so many tokens.

    Return the whole text if there is no suitable space.

    >>> cut_opening("word " * 100, 3)
    'word word word'
    """
    end = CHARACTERS_PER_TOKEN * tokens + 1
    if len(text) <= end + 1:
        return text
    for _ in range(MAX_SPACES):
        end = text.rfind(" ", 1, end)
        if end < 0:
            return text
        before, after = text[end - 1], text[end + 1]
        if before.isascii() and before.isalnum() and after.isascii() and after.isalnum():
            return text[:end]
    return text


def is_opening_sufficient(backend: Any) -> bool:
    """Return whether a text's opening has the text's first tokens, with this tokenizer of `tokenizers`."""
    try:
        normalizer, splitter = _list_steps(backend.normalizer), _list_steps(backend.pre_tokenizer)
        model = json.loads(backend.model.__getstate__())
        added = backend.get_added_tokens_decoder().values()
    except Exception:  # a step written in Python cannot be examined
        return False
    if any(" " in token.content for token in added):  # may contain the space
        return False
    if not (splitter and _is_splitter(splitter[0]) and all(step["type"] in NORMALIZERS for step in normalizer)):
        return False
    # A tokenizer that fails at unknown characters must get the whole text, to fail in the same way.
    unknown = model.get("unk_token")
    if model.get("type") == "WordPiece":
        return unknown is not None and backend.token_to_id(unknown) is not None
    return model.get("type") == "BPE" and (unknown is None or backend.token_to_id(unknown) is not None)


def _is_splitter(step: dict[str, Any]) -> bool:
    # GPT-2's pattern attaches a space to the word after it, and splits before that space.
    return step["type"] in SPLITTERS or (step["type"] == "ByteLevel" and bool(step.get("use_regex", True)))


def _list_steps(component: Any) -> list[dict[str, Any]]:
    """Return the steps of a part of a tokenizer; those of a sequence separately."""
    if component is None:
        return []
    state = json.loads(component.__getstate__())
    steps: list[dict[str, Any]] = state.get("normalizers") or state.get("pretokenizers") or [state]
    return steps

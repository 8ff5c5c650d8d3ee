"""Fast tokenization: many texts in one call, and only as much of a long text as is needed.

Tokenization of many texts in one call of a fast tokenizer, which spreads them over all cores.

transformers wraps such a tokenizer, configures it, and computes more than is needed here. If the wrapper adds nothing
of its own, the backend is called directly, for ids alone; but only after both ways gave the same for the first texts.

How much of a text its first tokens depend on, so that a book is not tokenized for its first page.

A tokenizer reads the whole text before it truncates. For many tokenizers, the beginning of a text up to a space between
two words has the same tokens as in the whole text, because no step of theirs reaches across such a space: these get the
beginning alone. All others get the whole text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

TOKENIZER_LOCK = threading.RLock()
"""The maximum length is state of a tokenizer, not an argument of a call: threads must take turns."""
PLAIN_WRAPPER = {
    "__call__": "transformers.tokenization_utils_base",
    "_encode_plus": "transformers.tokenization_utils_tokenizers",
}
"""modules that define these methods, for a wrapper that adds nothing of its own"""


class Row(NamedTuple):
    """Tokens of one window."""

    ids: list[int]
    spans: list[tuple[int, int]] | None = None


class BatchTokenizer:
    """Tokenize many texts into windows, with the backend alone where that gives the same."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.uses_backend: bool | None = None if _is_plain_wrapper(tokenizer) else False
        """whether the backend may be called directly; None: not known yet"""

    def tokenize(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> list[list[Row]]:
        """Return the first window of each text, or all of them.

        Args:
            offsets: Whether to include the tokens' positions in the text.
        """
        if not texts:
            return []
        if not offsets and self.uses_backend is not False:
            rows = self._call_backend(texts, length, all_windows)
            if self.uses_backend is None:
                self.uses_backend = rows == self._call_transformers(texts, length, all_windows, offsets=False)
            if self.uses_backend:
                return rows
        return self._call_transformers(texts, length, all_windows, offsets)

    def _call_backend(self, texts: Sequence[str], length: int, all_windows: bool) -> list[list[Row]]:
        with TOKENIZER_LOCK:
            self.tokenizer("a", truncation=True, max_length=length)  # lets transformers configure the backend
            encodings = self.tokenizer.backend_tokenizer.encode_batch_fast(texts)
        if all_windows:
            return [
                [Row(encoding.ids), *(Row(overflow.ids) for overflow in encoding.overflowing)] for encoding in encodings
            ]
        return [[Row(encoding.ids)] for encoding in encodings]

    def _call_transformers(
        self, texts: Sequence[str], length: int, all_windows: bool, offsets: bool
    ) -> list[list[Row]]:
        with TOKENIZER_LOCK:
            encoded = self.tokenizer(
                list(texts),
                truncation=True,
                max_length=length,
                return_overflowing_tokens=all_windows,
                return_offsets_mapping=offsets,
                # These are not needed, and every list of a window's length costs microseconds.
                return_attention_mask=False,
                return_token_type_ids=False,
            )
        rows: list[list[Row]] = [[] for _ in texts]
        sources = encoded["overflow_to_sample_mapping"] if all_windows else range(len(texts))
        for source, ids, spans in zip(
            sources, encoded["input_ids"], encoded["offset_mapping"] if offsets else repeat(None), strict=False
        ):
            rows[source].append(Row(ids, spans))
        return rows


def _is_plain_wrapper(tokenizer: Any) -> bool:
    origins = {name: getattr(getattr(type(tokenizer), name, None), "__module__", "") for name in PLAIN_WRAPPER}
    return origins == PLAIN_WRAPPER and hasattr(tokenizer.backend_tokenizer, "encode_batch_fast")


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

"""Tokenization of many texts in one call of a fast tokenizer, which spreads them over all cores.

transformers wraps such a tokenizer, configures it, and computes more than is needed here. If the wrapper adds nothing
of its own, the backend is called directly, for ids alone; but only after both ways gave the same for the first texts.
"""

from __future__ import annotations

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

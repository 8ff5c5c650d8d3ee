"""Many texts through a fast tokenizer in one call, which spreads them over all cores.

transformers wraps such a tokenizer, sets it up, and makes more of what it gives than is wanted here. Where the wrapper
adds nothing of its own, the tokenizer inside is asked by itself, for ids alone; but only after both ways made the same
of the first texts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

TURNS = threading.RLock()
"""How long a text may be is a state of a tokenizer and not of a call: two threads would cut each other's texts."""
PLAIN = {
    "__call__": "transformers.tokenization_utils_base",
    "_encode_plus": "transformers.tokenization_utils_tokenizers",
}
"""where the methods of a wrapper come from that adds nothing of its own"""


class Row(NamedTuple):
    """One window as a tokenizer makes it."""

    ids: list[int]
    spans: list[tuple[int, int]] | None = None


class ManyTexts:
    """The windows of each of many texts."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.directly: bool | None = None if _wraps_plainly(tokenizer) else False
        """whether the tokenizer inside may be asked by itself; None: that is not known yet"""

    def rows(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> list[list[Row]]:
        """The first window of each text, or all of them; `offsets`: with where its tokens stand."""
        if not texts:
            return []
        if not offsets and self.directly is not False:
            rows = self._directly(texts, length, all_windows)
            if self.directly is None:
                self.directly = rows == self._by_transformers(texts, length, all_windows, offsets=False)
            if self.directly:
                return rows
        return self._by_transformers(texts, length, all_windows, offsets)

    def _directly(self, texts: Sequence[str], length: int, all_windows: bool) -> list[list[Row]]:
        with TURNS:
            self.tokenizer("a", truncation=True, max_length=length)  # transformers sets it up
            made = self.tokenizer.backend_tokenizer.encode_batch_fast(texts)
        if all_windows:
            return [[Row(each.ids), *(Row(more.ids) for more in each.overflowing)] for each in made]
        return [[Row(each.ids)] for each in made]

    def _by_transformers(self, texts: Sequence[str], length: int, all_windows: bool, offsets: bool) -> list[list[Row]]:
        with TURNS:
            made = self.tokenizer(
                list(texts),
                truncation=True,
                max_length=length,
                return_overflowing_tokens=all_windows,
                return_offsets_mapping=offsets,
                # Nobody looks at these, and every list of a window's length costs microseconds.
                return_attention_mask=False,
                return_token_type_ids=False,
            )
        rows: list[list[Row]] = [[] for _ in texts]
        sources = made["overflow_to_sample_mapping"] if all_windows else range(len(texts))
        for source, ids, spans in zip(
            sources, made["input_ids"], made["offset_mapping"] if offsets else repeat(None), strict=False
        ):
            rows[source].append(Row(ids, spans))
        return rows


def _wraps_plainly(tokenizer: Any) -> bool:
    own = {name: getattr(getattr(type(tokenizer), name, None), "__module__", "") for name in PLAIN}
    return own == PLAIN and hasattr(tokenizer.backend_tokenizer, "encode_batch_fast")

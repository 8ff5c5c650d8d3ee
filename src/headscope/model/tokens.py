"""A model's tokenizer, reduced to what headscope asks of one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from headscope.corpus.windows import Encoding
from headscope.errors import CorpusError, ModelError
from headscope.model import words
from headscope.types import Bools, Ints


class ModelTokens:
    """Wraps a transformers tokenizer. Its own truncation and special tokens are used, never imitated."""

    def __init__(self, tokenizer: Any) -> None:
        # METHOD §1 wants a text's first tokens, and some tokenizers cut on the left. Theirs is not ours to change.
        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.truncation_side = "right"
        # A text of unknown characters is still a text: the unknown token counts as a word, unless it has another role
        # too (in GPT-2 and OPT the token that starts or ends a text is also the unknown one).
        roles = {getattr(tokenizer, f"{role}_token_id") for role in ("bos", "eos", "cls", "sep", "pad", "mask")}
        self._special = {int(k) for k in tokenizer.all_special_ids} - ({tokenizer.unk_token_id} - roles)
        self._texts: dict[int, str] = {}

    @property
    def name(self) -> str:
        return type(self.tokenizer).__name__

    @property
    def pad_id(self) -> int:
        """What stands on padding. No token there is ever looked at, so any id the model knows will do."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def added(self) -> int:
        """How many special tokens each window carries."""
        return int(self.tokenizer.num_special_tokens_to_add(False))

    def first_special(self) -> str | None:
        """The special token every window starts with, if this tokenizer puts one there."""
        ids = self.tokenizer("a").input_ids
        return self.names([ids[0]])[0] if ids and ids[0] in self._special else None

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]:
        fast = bool(self.tokenizer.is_fast)
        if all_windows and not fast:
            raise ModelError(
                f"{self.name} is a slow tokenizer, which cannot cut a text into all its windows: use --windows first"
            )
        try:
            made = self.tokenizer(
                text,
                truncation=True,
                max_length=length,
                return_overflowing_tokens=all_windows,
                return_offsets_mapping=offsets and fast,
            )
        except Exception as error:  # a tokenizer may break on a text in ways of its own
            raise CorpusError(
                f"the tokenizer {self.name} cannot read this text: {type(error).__name__}: {error}"
            ) from None
        rows = made["input_ids"] if all_windows else [made["input_ids"]]
        spans = made.get("offset_mapping")
        starts = spans if all_windows or spans is None else [spans]
        numbers = [made.word_ids(k) if spans is not None else None for k in range(len(rows))]
        return [
            self._encoding(text, ids, None if starts is None else starts[k], numbers[k]) for k, ids in enumerate(rows)
        ]

    def _encoding(
        self, text: str, ids: list[int], spans: list[tuple[int, int]] | None, numbers: list[int | None] | None
    ) -> Encoding:
        special = np.array([k in self._special for k in ids], dtype=bool)
        held = np.asarray(ids, dtype=np.int64)
        if spans is None or numbers is None:
            return Encoding(ids=held, special=special, starts=None)
        return Encoding(
            ids=held,
            special=special,
            starts=np.array([_word_start(text, *span) for span in spans], dtype=np.int64),
            ends=np.array([end for _, end in spans], dtype=np.int64),
            words=words.by_text(text, spans, numbers, special),
        )

    def count(self, text: str) -> int:
        """How many tokens the whole text has, special ones included."""
        return len(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def word_numbers(self, ids: Ints, special: Bools) -> Ints:
        """The word each token belongs to, from the vocabulary's marks alone, for tokenizers that know no positions."""
        return words.by_marks(self.names([int(k) for k in ids]), special)

    def names(self, ids: list[int]) -> list[str]:
        """Tokens as the vocabulary writes them, which is unique: `##ing`, `Ġthe`, `[CLS]`."""
        named: list[str | None] = self.tokenizer.convert_ids_to_tokens(ids)
        return [f"<{k}>" if name is None else name for k, name in zip(ids, named, strict=True)]

    def labels(self, ids: Ints) -> list[str]:
        """Tokens as people read them: `the` for `Ġthe`, `’` for `âĢĻ`; pieces of words keep their `##`."""
        held = [int(k) for k in ids]
        return [self._label(name) or f"<{k}>" for k, name in zip(held, self.names(held), strict=True)]

    def _label(self, name: str) -> str:
        if name.startswith(words.CONTINUES) or name in self.tokenizer.all_special_tokens:
            return name
        shown = words.unmarked(str(self.tokenizer.convert_tokens_to_string([name]))).strip()
        readable = any(character.isprintable() for character in shown) and "\N{REPLACEMENT CHARACTER}" not in shown
        return shown if readable else name

    def texts(self, ids: Ints) -> list[str]:
        """Tokens without the marks of where words start or end, to compare with `.` and `,`."""
        new = [int(k) for k in np.unique(ids) if int(k) not in self._texts]
        for k, name in zip(new, self.names(new), strict=True):
            self._texts[k] = words.unmarked(name)
        return [self._texts[int(k)] for k in ids]


def _word_start(text: str, start: int, end: int) -> int:
    """Where a token's first letter stands: byte-level BPE counts the space before a word to its token."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()) if piece.strip() else start

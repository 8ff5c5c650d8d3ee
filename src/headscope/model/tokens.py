"""A model's tokenizer, reduced to what headscope asks of one."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from headscope.corpus.sentences import SENTENCE_ENDS
from headscope.corpus.windows import Encoding, Encodings
from headscope.errors import CorpusError, ModelError
from headscope.model import words
from headscope.model.many_texts import TURNS, ManyTexts, Row
from headscope.model.openings import CHARACTERS_A_TOKEN, opening
from headscope.model.openings import suffice as openings_suffice
from headscope.types import Bools, Ints

ROLES = {
    "cls": "the classification token",
    "bos": "the start-of-text token",
    "sep": "the separator token",
    "eos": "the end-of-text token",
    "mask": "the mask token",
    "pad": "the padding token",
}
"""What tokenizers use special tokens for, by the names transformers has for it."""
LANGUAGE = r"[a-z]{2,3}_[A-Za-z]{2,4}|__[a-z]{2,3}__|>>\w+<<"
"""Language codes as mBART, NLLB, M2M100 and Marian write them: `en_XX`, `eng_Latn`, `__en__`, `>>fra<<`."""

KNOWN, END, COMMA = 1, 2, 4
"""What is noted of a token id, in bits."""
LONG = 1_000_000
"""characters from which on a text is not given to a tokenizer as a whole, if that can be helped: a tokenizer that reads
millions of characters at once takes more than a hundred bytes for each"""
GROWS = 4
"""a beginning that was not enough is made so many times as long"""

Tokenized = tuple[Ints, Ints]
"""ids; starts and ends, (n, 2), empty where they are not asked for"""


class ModelTokens:
    """Wraps a transformers tokenizer. Its own truncation and special tokens are used, never imitated."""

    def __init__(self, tokenizer: Any) -> None:
        # METHOD §1 wants a text's first tokens, and some tokenizers cut on the left. Theirs is not ours to change.
        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.truncation_side = "right"
        # A text of unknown characters is still a text: the unknown token counts as a word, unless it has another role
        # too (in GPT-2 and OPT the token that starts or ends a text is also the unknown one).
        roles = {getattr(tokenizer, f"{role}_token_id") for role in ROLES}
        self._special = {int(k) for k in tokenizer.all_special_ids} - ({tokenizer.unk_token_id} - roles)
        self._set_apart = {int(k) for k in tokenizer.all_special_ids}  # the unknown token among them
        self._texts: dict[int, str] = {}
        # Tables over token ids: a look into one takes a microsecond a window, a loop over its tokens many.
        self._is_special = np.zeros(max(self._special, default=0) + 2, dtype=bool)  # the last stands for all beyond
        self._is_special[sorted(self._special)] = True
        self._marks = np.zeros(0, dtype=np.uint8)
        self._many = ManyTexts(self.tokenizer)

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
        first = self._first_special_id()
        return None if first is None else self.names([first])[0]

    def first_role(self) -> str:
        """What that token is for, in words: `the classification token`; empty where there is none."""
        first = self._first_special_id()
        return "" if first is None else self.role(first)

    def role(self, token_id: int) -> str:
        """What a special token is for, in words. One that starts texts and classifies them goes by its name."""
        name = self._written([token_id])[0]
        held = [role for role in ROLES if getattr(self.tokenizer, f"{role}_token_id") == token_id]
        if held[:2] == ["cls", "bos"] and "cls" not in self.names([token_id])[0].lower():
            held = ["bos"]
        if held:
            return ROLES[held[0]]
        coded = name == getattr(self.tokenizer, "src_lang", None) or re.fullmatch(LANGUAGE, name)
        return "the language code" if coded else "a special token"

    def _first_special_id(self) -> int | None:
        with TURNS:
            ids = self.tokenizer("a").input_ids
        return int(ids[0]) if ids and ids[0] in self._special else None

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]:
        fast = bool(self.tokenizer.is_fast)
        if all_windows and not fast:
            raise ModelError(
                f"{self.name} is a slow tokenizer, which cannot cut a text into all its windows: use --windows first"
            )
        try:
            if all_windows and len(text) > LONG and (taken := self._all_windows(text, length, offsets)):
                return taken
            made = self._made(text, length, all_windows=all_windows, offsets=offsets and fast)
        except CorpusError:
            raise
        except Exception as error:  # a tokenizer may break on a text in ways of its own
            raise CorpusError(
                f"the tokenizer {self.name} cannot read this text: {type(error).__name__}: {error}"
            ) from None
        rows = made["input_ids"] if all_windows else [made["input_ids"]]
        if offsets and not fast:
            return [self._placed(text, rows[0])]
        spans = made.get("offset_mapping")
        starts = spans if all_windows or spans is None else [spans]
        numbers = [made.word_ids(k) if spans is not None else None for k in range(len(rows))]
        return [
            self._encoding(text, ids, None if starts is None else starts[k], numbers[k]) for k, ids in enumerate(rows)
        ]

    def _made(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> Any:
        """What the tokenizer makes of a text, or for its first window of as much of it as decides that."""

        def made(held: str) -> Any:
            with TURNS:
                return self.tokenizer(
                    held,
                    truncation=True,
                    max_length=length,
                    return_overflowing_tokens=all_windows,
                    return_offsets_mapping=offsets,
                )

        if all_windows:
            return made(text)
        if self.tokenizer.is_fast and self._openings_suffice:
            for held in _lengthen_openings(text, length):
                if len(held) > LONG * GROWS:
                    break
                found = made(held)
                if len(held) == len(text) or len(found["input_ids"]) == length:
                    return found
        if len(text) > LONG:
            text = _find_settled_opening(text, length, lambda held: list(made(held)["input_ids"]))
        return made(text)

    def _all_windows(self, text: str, length: int, offsets: bool) -> list[Encoding] | None:
        """All windows of a long text, which is tokenized in pieces; None where that might change its tokens."""
        if not (self._openings_suffice and _keeps_spaces(self.tokenizer.backend_tokenizer)):
            return None

        def tokenize(piece: str) -> Tokenized:
            with TURNS:
                made = self.tokenizer(
                    piece, add_special_tokens=False, verbose=False, return_offsets_mapping=offsets, truncation=False
                )
            return np.asarray(made["input_ids"], np.int64), np.asarray(made.get("offset_mapping", []), int).reshape(
                -1, 2
            )

        beginning = self._made(next(_lengthen_openings(text, 8 * length)), length, all_windows=True, offsets=False)
        known = [np.asarray(ids, dtype=np.int64) for ids in beginning["input_ids"][:-1]]  # the last may be cut short
        rows = _cut_windows(_tokenize_in_pieces(text, tokenize), length, self.added, known)
        return None if rows is None else [self._row(text, ids, spans if offsets else None) for ids, spans in rows]

    def _row(self, text: str, ids: Ints, spans: Ints | None) -> Encoding:
        starts = None if spans is None else _starts(text, [(int(a), int(b)) for a, b in spans])
        return Encoding(ids, self._specials(ids), *self._marks_of(ids), starts)

    def encode_all(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> Encodings | None:
        """Many texts in one call, which a fast tokenizer spreads over all cores; words are not numbered here.

        None where they have to be taken one by one: by a slow tokenizer, or because one of them breaks this one.
        """
        if not self.tokenizer.is_fast or any(len(text) > LONG for text in texts):
            return None
        try:
            if all_windows or not self._openings_suffice:
                return self._in_one_row(texts, self._rows(texts, length, all_windows=all_windows, offsets=offsets))
            openings = [opening(text, length) for text in texts]
            rows = self._rows(openings, length, all_windows=False, offsets=offsets)
            short = [
                k
                for k, (text, held) in enumerate(zip(texts, openings, strict=True))
                if len(held) < len(text) and len(rows[k][0].ids) < length
            ]
            whole = self._rows([texts[k] for k in short], length, all_windows=False, offsets=offsets)
            for k, row in zip(short, whole, strict=True):
                rows[k] = row
            return self._in_one_row(texts, rows)
        except Exception:  # as in `encode`
            return None

    @cached_property
    def _openings_suffice(self) -> bool:
        return openings_suffice(self.tokenizer.backend_tokenizer)

    def _rows(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> list[list[Row]]:
        if self._many.tokenizer is not self.tokenizer:
            self._many = ManyTexts(self.tokenizer)
        return self._many.rows(texts, length, all_windows=all_windows, offsets=offsets)

    def _in_one_row(self, texts: Sequence[str], rows: list[list[Row]]) -> Encodings:
        windows = [window for row in rows for window in row]
        edges = np.array([0, *accumulate(len(window.ids) for window in windows)])
        ids = np.fromiter(chain.from_iterable(window.ids for window in windows), dtype=np.int64, count=edges[-1])
        starts = [
            _starts(text, window.spans)
            for text, row in zip(texts, rows, strict=True)
            for window in row
            if window.spans is not None
        ]
        firsts = [0, *accumulate(map(len, rows))]
        return Encodings(ids, self._specials(ids), *self._marks_of(ids), edges, firsts, starts or None)

    def _specials(self, ids: Ints) -> Bools:
        return self._is_special[np.minimum(ids, len(self._is_special) - 1)]

    def _encoding(
        self, text: str, ids: list[int], spans: list[tuple[int, int]] | None, numbers: list[int | None] | None
    ) -> Encoding:
        held = np.asarray(ids, dtype=np.int64)
        special, end, comma = self._specials(held), *self._marks_of(held)
        if spans is None or numbers is None:
            return Encoding(held, special, end, comma, starts=None)
        return Encoding(
            ids=held,
            special=special,
            end=end,
            comma=comma,
            starts=_starts(text, spans),
            ends=np.array([end for _, end in spans], dtype=np.int64),
            words=words.by_text(text, spans, numbers, special),
        )

    def _placed(self, text: str, ids: list[int]) -> Encoding:
        """A slow tokenizer does not say where its tokens stand, but bytes and characters stand one after another."""
        special = self._specials(np.asarray(ids, dtype=np.int64))
        places = words.places(text, self._written(ids), special, self._alphabet)
        return self._encoding(text, ids, places, None if places is None else [0] * len(ids))

    def count(self, text: str) -> int:
        """How many tokens the whole text has, special ones included."""
        with TURNS:
            return len(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def word_numbers(self, ids: Ints, special: Bools) -> Ints:
        """The word each token belongs to, from the vocabulary's marks alone, for tokenizers that know no positions."""
        return words.by_marks(self._written([int(k) for k in ids]), special, self._alphabet)

    def names(self, ids: list[int]) -> list[str]:
        """Tokens as the vocabulary writes them, which is unique: `##ing`, `Ġthe`, `[CLS]`; a line break `<U+000A>`."""
        return [self._name(k, name) or f"<{k}>" for k, name in zip(ids, self._written(ids), strict=True)]

    def _name(self, token_id: int, name: str) -> str:
        if token_id in self._set_apart:
            return self._special_name(token_id, name)
        byte = words.RAW.get(name) if self._alphabet is words.RAW else None
        return words.written(name) if byte is None or 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def _special_name(self, token_id: int, name: str) -> str:
        """CANINE's special tokens are characters that nobody can see: they go by what they are for."""
        if any(character.isprintable() for character in name):
            return words.written(name)
        held = [role for role in ROLES if getattr(self.tokenizer, f"{role}_token_id") == token_id]
        return f"[{held[0].upper()}]" if held else words.visible(name)

    def labels(self, ids: Ints) -> list[str]:
        """Tokens as people read them: `the` for `Ġthe`, `’` for `âĢĻ`, `␣` for a space; pieces keep their `##`."""
        held = [int(k) for k in ids]
        return [
            (self._special_name(k, name) if k in self._set_apart else words.shown(name, self._alphabet)) or f"<{k}>"
            for k, name in zip(held, self._written(held), strict=True)
        ]

    def texts(self, ids: Ints) -> list[str]:
        """Tokens without the marks of where words start or end, to compare with `.` and `,`."""
        new = [int(k) for k in np.unique(ids) if int(k) not in self._texts]
        for k, name in zip(new, self._written(new), strict=True):
            bare = words.unmarked(name)
            text = bare if k in self._set_apart else words.text_of(bare, self._alphabet)
            self._texts[k] = bare if any("\ud800" <= character <= "\udfff" for character in text) else text
        return [self._texts[int(k)] for k in ids]

    def _marks_of(self, ids: Ints) -> tuple[Bools, Bools]:
        """Which tokens are `.`, `!` or `?`, and which are commas."""
        if ids.size and ids.max() >= len(self._marks):
            self._marks = np.concatenate([self._marks, np.zeros(int(ids.max()) + 1 - len(self._marks), dtype=np.uint8)])
        if not self._marks[ids].all():
            new = np.unique(ids)
            for k, text in zip(new, self.texts(new), strict=True):
                self._marks[k] = KNOWN | (END if text in SENTENCE_ENDS else 0) | (COMMA if text == "," else 0)
        found = self._marks[ids]
        return (found & END).astype(bool), (found & COMMA).astype(bool)

    def _written(self, ids: list[int]) -> list[str]:
        named: list[str | None] = self.tokenizer.convert_ids_to_tokens(ids)
        return ["" if name is None else str(name) for name in named]

    @cached_property
    def _alphabet(self) -> words.Alphabet | None:
        """How the vocabulary writes bytes, where its tokens are bytes and not characters."""
        if self.tokenizer.is_fast:
            made = self.tokenizer.backend_tokenizer
            parts = (made.normalizer, made.pre_tokenizer, made.decoder)
            return words.BYTES if any(_makes_bytes(part) for part in parts) else None
        try:
            seen = self.tokenizer.tokenize("a é")
        except Exception:  # as in `encode`: a tokenizer may break in ways of its own
            return None
        if seen == list("a é".encode().decode("latin-1")):
            return words.RAW
        return words.BYTES if any(token.startswith(words.WORD_STARTS[0]) for token in seen) else None


def _makes_bytes(step: Any) -> bool:
    """Whether a step of a fast tokenizer turns characters to bytes and back."""
    try:
        return "ByteLevel(" in repr(step)
    except Exception:  # one that is written in Python cannot be shown; such split words
        return False


def _starts(text: str, spans: Sequence[tuple[int, int]]) -> Ints:
    return np.array([_word_start(text, *span) for span in spans], dtype=np.int64)


def _word_start(text: str, start: int, end: int) -> int:
    """Where a token's first letter stands: byte-level BPE counts the space before a word to its token."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()) if piece.strip() else start


def _lengthen_openings(text: str, tokens: int) -> Iterator[str]:
    """Yield beginnings of a text that end between two words, each longer than the one before; at last all of it."""
    wanted = tokens
    while (size := CHARACTERS_A_TOKEN * wanted + 3) < len(text):  # as many as `opening` looks at
        held = opening(text[:size], wanted)
        if len(held) < size:  # else there is no place between two words among those looked at
            yield held
        wanted *= GROWS
    yield text


def _find_settled_opening(text: str, length: int, ids_of: Callable[[str], list[int]]) -> str:
    """Find a beginning of a long text whose first tokens are the text's, where the tokenizer does not guarantee it.

    The beginning is taken where one of four times its length has the same window, which it fills. So the cut is far
    away from all that the window depends on, unless a tokenizer looks over tens of thousands of characters.
    """
    before: list[int] | None = None
    for size in (LONG // GROWS**2, LONG // GROWS, LONG, LONG * GROWS):
        held = text[:size]
        ids = ids_of(held)
        if len(ids) == length and ids == before:
            return held
        before = ids
        if size >= len(text):
            return text
    raise CorpusError(
        f"its first {LONG * GROWS:,} characters do not settle what its first {length} tokens are: no text of words"
    )


def _split_between_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield a text in parts that end between two words, each with where it starts."""
    start, size = 0, LONG
    while start < len(text):
        part = text[start : start + size]
        held = part if start + size >= len(text) else opening(part, (size - 3) // CHARACTERS_A_TOKEN)
        if len(held) == len(part) and start + size < len(text):
            size *= GROWS  # no place between words there
            continue
        yield start, held
        start, size = start + len(held), LONG


def _tokenize_in_pieces(text: str, tokenize: Callable[[str], Tokenized]) -> Tokenized:
    """Return all tokens of a text, tokenized piece by piece."""
    ids, spans = [], []
    for start, piece in _split_between_words(text):
        made, places = tokenize(piece)
        ids.append(made.astype(np.int32))
        spans.append(places + start)
    return np.concatenate(ids).astype(np.int64), np.concatenate(spans)


def _cut_windows(body: Tokenized, length: int, added: int, known: list[Ints]) -> list[Tokenized] | None:
    """Cut tokens into windows, with the `added` special tokens that the `known` first windows have around theirs.

    Return None if the known windows differ from these. A special token stands nowhere: at 0, as tokenizers say.
    """
    ids, spans = body
    step = length - added
    before = next((k for k in range(added + 1) if known and np.array_equal(known[0][k : k + step], ids[:step])), None)
    if before is None or step < 1:
        return None
    head, tail = known[0][:before], known[0][before + step :]
    found: list[Tokenized] = []
    for start in range(0, len(ids), step):
        row = np.concatenate([head, ids[start : start + step], tail])
        places = np.zeros((len(row), 2) if len(spans) else (0, 2), dtype=np.int64)
        if len(spans):
            places[before : len(row) - len(tail)] = spans[start : start + step]
        found.append((row, places))
    agree = all(np.array_equal(row, there) for (row, _), there in zip(found, known, strict=False))
    return found if agree and len(found) > len(known) else None


def _keeps_spaces(backend: Any) -> bool:
    """Return whether no token that was added to a vocabulary takes away the space at which a text is cut."""
    return not any(
        (token.rstrip and token.content[-1:].isalnum()) or (token.lstrip and token.content[:1].isalnum())
        for token in backend.get_added_tokens_decoder().values()
    )

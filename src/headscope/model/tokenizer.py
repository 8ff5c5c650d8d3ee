"""Wrapper of a model's tokenizer: windows of tokens with their marks, names and labels."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from headscope.array_types import Bools, Ints
from headscope.corpus.sentences import SENTENCE_ENDS
from headscope.corpus.windows import Encoding, Encodings
from headscope.errors import CorpusError, ModelError
from headscope.model import token_text
from headscope.model.batch_tokenizer import CHARACTERS_PER_TOKEN, TOKENIZER_LOCK, BatchTokenizer, Row, cut_opening
from headscope.model.batch_tokenizer import is_opening_sufficient as openings_suffice

ROLES = {
    "cls": "the classification token",
    "bos": "the start-of-text token",
    "sep": "the separator token",
    "eos": "the end-of-text token",
    "mask": "the mask token",
    "pad": "the padding token",
}
"""purposes of special tokens, by their names in transformers"""
LANGUAGE = r"[a-z]{2,3}_[A-Za-z]{2,4}|__[a-z]{2,3}__|>>\w+<<"
"""language codes of mBART, NLLB, M2M100 and Marian: `en_XX`, `eng_Latn`, `__en__`, `>>fra<<`"""

MARK_KNOWN, MARK_END, MARK_COMMA, MARK_PUNCTUATION = 1, 2, 4, 8
"""bits in the table of marks by token id"""
LONG = 1_000_000
"""characters above which a text is not tokenized as a whole if possible: a tokenizer that reads millions of characters
at once takes more than a hundred bytes for each
"""
GROWTH = 4
"""factor by which a beginning is lengthened that was not enough"""

Tokenized = tuple[Ints, Ints]
"""ids; starts and ends, (n, 2), empty if not requested"""


@cache
def check_windows_are_complete() -> None:
    """Raise a ModelError if the installed version of tokenizers loses what follows the first window of a text."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)
    if len(tokenizer.encode("a a a a a a").overflowing) != 2:
        raise ModelError(
            f"tokenizers {tokenizers.__version__} returns only the first window of a text (0.23.2 is known to): "
            "install another version, or use --windows first"
        )


class ModelTokens:
    """Wrapper of a transformers tokenizer. It uses its truncation and special tokens as they are."""

    def __init__(self, tokenizer: Any) -> None:
        # METHOD §1 uses a text's first tokens, but some tokenizers truncate on the left. The original stays as it is.
        self.tokenizer = copy.copy(tokenizer)
        self.tokenizer.truncation_side = "right"
        # The unknown token counts as a word, unless it also has another role (in GPT-2 and OPT the token that starts or
        # ends a text is also the unknown one).
        roles = {getattr(tokenizer, f"{role}_token_id") for role in ROLES}
        self._special = {int(k) for k in tokenizer.all_special_ids} - ({tokenizer.unk_token_id} - roles)
        self._special_or_unknown = {int(k) for k in tokenizer.all_special_ids}
        self._text_cache: dict[int, str] = {}
        # Tables by token id: a lookup takes a microsecond per window, a loop over its tokens many.
        # The last entry of `_is_special` is for all larger ids.
        self._is_special = np.zeros(max(self._special, default=0) + 2, dtype=bool)
        self._is_special[sorted(self._special)] = True
        self._marks = np.zeros(0, dtype=np.uint8)
        self._batch_tokenizer = BatchTokenizer(self.tokenizer)

    def for_targets(self) -> ModelTokens:
        """Return the tokens of what a decoder writes: many tokenizers of translation models treat it in another way,
        with another language code or vocabulary."""
        if not hasattr(self.tokenizer, "_switch_to_target_mode"):
            return self
        if getattr(self.tokenizer, "tgt_lang", "") is None:
            raise ModelError(
                f"the tokenizer {self.name} does not know the language of the targets: set its tgt_lang (and "
                "src_lang), in Python or in the tokenizer_config.json of the model's folder"
            )
        tokenizer = copy.deepcopy(self.tokenizer)  # a shallow copy would share the special tokens it adds
        tokenizer._switch_to_target_mode()
        tokenizer._in_target_context_manager = True  # otherwise every call switches it back
        return ModelTokens(tokenizer)

    @property
    def name(self) -> str:
        return type(self.tokenizer).__name__

    @property
    def pad_id(self) -> int:
        """Token id of padding. No token attends to padding, so any id that the model knows will do."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def special_count(self) -> int:
        """Number of special tokens in each window."""
        return int(self.tokenizer.num_special_tokens_to_add(False))

    def find_first_special(self) -> str | None:
        """Return the name of the special token that every window starts with, or None."""
        first = self._find_first_special_id()
        return None if first is None else self.names([first])[0]

    def describe_first_special(self) -> str:
        """Return the role of that token, in words: `the classification token`; empty if there is none."""
        first = self._find_first_special_id()
        return "" if first is None else self.describe_role(first)

    def describe_role(self, token_id: int) -> str:
        """Return the role of a special token, in words.

        The name of a token that both starts texts and classifies them decides which of the two it is.
        """
        name = self._get_names([token_id])[0]
        roles = [role for role in ROLES if getattr(self.tokenizer, f"{role}_token_id") == token_id]
        if roles[:2] == ["cls", "bos"] and "cls" not in self.names([token_id])[0].lower():
            roles = ["bos"]
        if roles:
            return ROLES[roles[0]]
        is_language = name == getattr(self.tokenizer, "src_lang", None) or re.fullmatch(LANGUAGE, name)
        return "the language code" if is_language else "a special token"

    def _find_first_special_id(self) -> int | None:
        with TOKENIZER_LOCK:
            ids = self.tokenizer("a").input_ids
        return int(ids[0]) if ids and ids[0] in self._special else None

    def encode(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> list[Encoding]:
        """Return the windows of a text: the first, or all of them.

        Args:
            length: Maximum number of tokens of a window, including special ones.
            offsets: Whether to include the tokens' positions in the text, and word numbers.

        Raises:
            ModelError: If all windows are requested of a slow tokenizer.
            CorpusError: If the tokenizer fails on this text.
        """
        is_fast = bool(self.tokenizer.is_fast)
        if all_windows and not is_fast:
            raise ModelError(
                f"{self.name} is a slow tokenizer, which cannot cut a text into all its windows: use --windows first"
            )
        if all_windows:
            check_windows_are_complete()
        try:
            if all_windows and len(text) > LONG and (windows := self._encode_in_pieces(text, length, offsets)):
                return windows
            encoded = self._tokenize(text, length, all_windows=all_windows, offsets=offsets and is_fast)
        except CorpusError:
            raise
        except Exception as error:  # tokenizers raise errors of many kinds
            raise CorpusError(
                f"the tokenizer {self.name} cannot read this text: {type(error).__name__}: {error}"
            ) from None
        rows = encoded["input_ids"] if all_windows else [encoded["input_ids"]]
        if offsets and not is_fast:
            return [self._make_slow_encoding(text, rows[0])]
        spans = encoded.get("offset_mapping")
        starts = spans if all_windows or spans is None else [spans]
        numbers = [encoded.word_ids(k) if spans is not None else None for k in range(len(rows))]
        return [
            self._make_encoding(text, ids, None if starts is None else starts[k], numbers[k])
            for k, ids in enumerate(rows)
        ]

    def _tokenize(self, text: str, length: int, *, all_windows: bool, offsets: bool) -> Any:
        """Tokenize a text; for its first window, only as much of it as that depends on."""

        def call(beginning: str) -> Any:
            with TOKENIZER_LOCK:
                return self.tokenizer(
                    beginning,
                    truncation=True,
                    max_length=length,
                    return_overflowing_tokens=all_windows,
                    return_offsets_mapping=offsets,
                )

        if all_windows:
            return call(text)
        if self.tokenizer.is_fast and self._openings_suffice:
            for beginning in _lengthen_openings(text, length):
                if len(beginning) > LONG * GROWTH:
                    break
                encoded = call(beginning)
                if len(beginning) == len(text) or len(encoded["input_ids"]) == length:
                    return encoded
        if len(text) > LONG:
            text = _find_settled_opening(text, length, lambda beginning: list(call(beginning)["input_ids"]))
        return call(text)

    def _encode_in_pieces(self, text: str, length: int, offsets: bool) -> list[Encoding] | None:
        """Return all windows of a long text, tokenized in pieces, or None if that might change its tokens."""
        if not (self._openings_suffice and _can_cut_at_spaces(self.tokenizer.backend_tokenizer)):
            return None

        def tokenize(piece: str) -> Tokenized:
            with TOKENIZER_LOCK:
                encoded = self.tokenizer(
                    piece, add_special_tokens=False, verbose=False, return_offsets_mapping=offsets, truncation=False
                )
            return np.asarray(encoded["input_ids"], np.int64), np.asarray(
                encoded.get("offset_mapping", []), int
            ).reshape(-1, 2)

        first = self._tokenize(next(_lengthen_openings(text, 8 * length)), length, all_windows=True, offsets=False)
        known = [np.asarray(ids, dtype=np.int64) for ids in first["input_ids"][:-1]]  # the last may be incomplete
        rows = _cut_windows(_tokenize_in_pieces(text, tokenize), length, self.special_count, known)
        return (
            None if rows is None else [self._make_window(text, ids, spans if offsets else None) for ids, spans in rows]
        )

    def _make_window(self, text: str, ids: Ints, spans: Ints | None) -> Encoding:
        pairs = None if spans is None else [(int(a), int(b)) for a, b in spans]
        numbers: list[int | None] | None = None if pairs is None else [0] * len(ids)
        return self._make_encoding(text, ids.tolist(), pairs, numbers)

    def encode_all(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> Encodings | None:
        """Return the windows of many texts, tokenized in one call that uses all cores; without word numbers.

        Return None if the texts must be tokenized one by one: with a slow tokenizer, or if it fails on one of them.
        """
        if not self.tokenizer.is_fast or any(len(text) > LONG for text in texts):
            return None
        if all_windows:
            check_windows_are_complete()
        try:
            if all_windows or not self._openings_suffice:
                return self._concatenate(
                    texts, self._tokenize_many(texts, length, all_windows=all_windows, offsets=offsets)
                )
            openings = [cut_opening(text, length) for text in texts]
            rows = self._tokenize_many(openings, length, all_windows=False, offsets=offsets)
            incomplete = [
                k
                for k, (text, beginning) in enumerate(zip(texts, openings, strict=True))
                if len(beginning) < len(text) and len(rows[k][0].ids) < length
            ]
            complete_rows = self._tokenize_many(
                [texts[k] for k in incomplete], length, all_windows=False, offsets=offsets
            )
            for k, row in zip(incomplete, complete_rows, strict=True):
                rows[k] = row
            return self._concatenate(texts, rows)
        except Exception:  # as in `encode`
            return None

    @cached_property
    def _openings_suffice(self) -> bool:
        return openings_suffice(self.tokenizer.backend_tokenizer)

    def _tokenize_many(self, texts: Sequence[str], length: int, *, all_windows: bool, offsets: bool) -> list[list[Row]]:
        if self._batch_tokenizer.tokenizer is not self.tokenizer:
            self._batch_tokenizer = BatchTokenizer(self.tokenizer)
        return self._batch_tokenizer.tokenize(texts, length, all_windows=all_windows, offsets=offsets)

    def _concatenate(self, texts: Sequence[str], rows: list[list[Row]]) -> Encodings:
        windows = [window for row in rows for window in row]
        edges = np.array([0, *accumulate(len(window.ids) for window in windows)])
        ids = np.fromiter(chain.from_iterable(window.ids for window in windows), dtype=np.int64, count=edges[-1])
        starts = [
            _compute_starts(text, window.spans)
            for text, row in zip(texts, rows, strict=True)
            for window in row
            if window.spans is not None
        ]
        firsts = [0, *accumulate(map(len, rows))]
        end, comma, punctuation = self._find_marks(ids)
        return Encodings(ids, self._find_special(ids), end, comma, edges, firsts, starts or None, punctuation)

    def _find_special(self, ids: Ints) -> Bools:
        return self._is_special[np.minimum(ids, len(self._is_special) - 1)]

    def _make_encoding(
        self, text: str, ids: list[int], spans: list[tuple[int, int]] | None, numbers: list[int | None] | None
    ) -> Encoding:
        id_array = np.asarray(ids, dtype=np.int64)
        special, (end, comma, punctuation) = self._find_special(id_array), self._find_marks(id_array)
        if spans is None or numbers is None:
            return Encoding(id_array, special, end, comma, starts=None, punctuation=punctuation)
        return Encoding(
            ids=id_array,
            special=special,
            end=end,
            comma=comma,
            starts=_compute_starts(text, spans),
            ends=np.array([end for _, end in spans], dtype=np.int64),
            words=token_text.number_words_by_text(text, spans, numbers, special),
            punctuation=punctuation,
        )

    def _make_slow_encoding(self, text: str, ids: list[int]) -> Encoding:
        """Return the window of a slow tokenizer, which gives no positions.

        They are known if its tokens are bytes or characters, which follow each other in the text.
        """
        special = self._find_special(np.asarray(ids, dtype=np.int64))
        spans = token_text.locate_tokens(text, self._get_names(ids), special, self._alphabet)
        return self._make_encoding(text, ids, spans, None if spans is None else [0] * len(ids))

    def count(self, text: str) -> int:
        """Return the number of tokens of a whole text, including special ones."""
        with TOKENIZER_LOCK:
            return len(self.tokenizer(text, truncation=False, verbose=False)["input_ids"])

    def number_words(self, ids: Ints, special: Bools) -> Ints:
        """Return the word number of each token from the vocabulary's marks alone, for tokenizers without positions."""
        return token_text.number_words_by_marks(self._get_names([int(k) for k in ids]), special, self._alphabet)

    def names(self, ids: list[int]) -> list[str]:
        """Return tokens as the vocabulary writes them, which is unique: `##ing`, `Ġthe`, `[CLS]`, `<U+000A>`."""
        return [self._format_name(k, name) or f"<{k}>" for k, name in zip(ids, self._get_names(ids), strict=True)]

    def _format_name(self, token_id: int, name: str) -> str:
        if token_id in self._special_or_unknown:
            return self._format_special_name(token_id, name)
        byte = token_text.RAW_BYTES.get(name) if self._alphabet is token_text.RAW_BYTES else None
        return token_text.format_name(name) if byte is None or 0x20 < byte < 0x7F else f"<0x{byte:02X}>"

    def _format_special_name(self, token_id: int, name: str) -> str:
        """Return the name of a special token; CANINE's are invisible characters, which are named by their role."""
        if any(character.isprintable() for character in name):
            return token_text.format_name(name)
        roles = [role for role in ROLES if getattr(self.tokenizer, f"{role}_token_id") == token_id]
        return f"[{roles[0].upper()}]" if roles else token_text.replace_invisible(name)

    def labels(self, ids: Ints) -> list[str]:
        """Return tokens as people read them: `the` for `Ġthe`, `’` for `âĢĻ`, `␣` for a space; `##` stays."""
        id_list = [int(k) for k in ids]
        return [
            (
                self._format_special_name(k, name)
                if k in self._special_or_unknown
                else token_text.format_label(name, self._alphabet)
            )
            or f"<{k}>"
            for k, name in zip(id_list, self._get_names(id_list), strict=True)
        ]

    def pieces(self, ids: Ints) -> list[str]:
        """Return tokens as they are written in a text, safe to print, with the blanks before or after them."""
        id_list = [int(k) for k in ids]
        special = [k in self._special_or_unknown for k in id_list]
        return token_text.list_pieces(self._get_names(id_list), self.labels(ids), special, self._alphabet)

    def texts(self, ids: Ints) -> list[str]:
        """Return tokens without the marks of where words start or end, to compare them with `.` and `,`."""
        unknown = [int(k) for k in np.unique(ids) if int(k) not in self._text_cache]
        for k, name in zip(unknown, self._get_names(unknown), strict=True):
            stem = token_text.strip_marks(name)
            text = stem if k in self._special_or_unknown else token_text.decode_token(stem, self._alphabet)
            self._text_cache[k] = stem if any("\ud800" <= character <= "\udfff" for character in text) else text
        return [self._text_cache[int(k)] for k in ids]

    def _find_marks(self, ids: Ints) -> tuple[Bools, Bools, Bools]:
        """Return which tokens are `.`, `!` or `?`, which are commas, and which have no letter or digit."""
        if ids.size and ids.max() >= len(self._marks):
            self._marks = np.concatenate([self._marks, np.zeros(int(ids.max()) + 1 - len(self._marks), dtype=np.uint8)])
        if not self._marks[ids].all():
            unknown = np.unique(ids)
            for k, text in zip(unknown, self.texts(unknown), strict=True):
                self._marks[k] = (
                    MARK_KNOWN
                    | (MARK_END if text in SENTENCE_ENDS else 0)
                    | (MARK_COMMA if text == "," else 0)
                    | (0 if token_text.has_letter_or_digit(text) else MARK_PUNCTUATION)
                )
        marks = self._marks[ids]
        end, comma, punctuation = ((marks & mark).astype(bool) for mark in (MARK_END, MARK_COMMA, MARK_PUNCTUATION))
        return end, comma, punctuation

    def _get_names(self, ids: list[int]) -> list[str]:
        names: list[str | None] = self.tokenizer.convert_ids_to_tokens(ids)
        return ["" if name is None else str(name) for name in names]

    @cached_property
    def _alphabet(self) -> token_text.Alphabet | None:
        """How the vocabulary writes bytes, if its tokens are bytes; None if they are characters."""
        if self.tokenizer.is_fast:
            backend = self.tokenizer.backend_tokenizer
            parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
            return token_text.BYTE_LEVEL if any(_is_byte_level(part) for part in parts) else None
        try:
            pieces = self.tokenizer.tokenize("a é")
        except Exception:  # as in `encode`
            return None
        if pieces == list("a é".encode().decode("latin-1")):
            return token_text.RAW_BYTES
        return token_text.BYTE_LEVEL if any(token.startswith(token_text.WORD_STARTS[0]) for token in pieces) else None


def _is_byte_level(step: Any) -> bool:
    """Return whether a step of a fast tokenizer converts characters to bytes or back."""
    try:
        return "ByteLevel(" in repr(step)
    except Exception:  # steps written in Python have no repr; they split words
        return False


def _compute_starts(text: str, spans: Sequence[tuple[int, int]]) -> Ints:
    return np.array([_find_word_start(text, *span) for span in spans], dtype=np.int64)


def _find_word_start(text: str, start: int, end: int) -> int:
    """Return the position of a token's first letter: byte-level BPE includes the space before a word in its token."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()) if piece.strip() else start


def _lengthen_openings(text: str, tokens: int) -> Iterator[str]:
    """Yield beginnings of a text that end between two words, each longer than the last; finally the whole text."""
    target = tokens
    while (size := CHARACTERS_PER_TOKEN * target + 3) < len(text):  # as many as `opening` examines
        beginning = cut_opening(text[:size], target)
        if len(beginning) < size:  # otherwise no suitable space was found
            yield beginning
        target *= GROWTH
    yield text


def _find_settled_opening(text: str, length: int, get_ids: Callable[[str], list[int]]) -> str:
    """Return a beginning of a long text that has the text's first tokens, for a tokenizer that does not guarantee it.

    A beginning is taken if one of four times its length has the same first window, and fills it. So the cut is far from
    everything the window depends on, unless a tokenizer looks ahead over tens of thousands of characters.
    """
    previous: list[int] | None = None
    for size in (LONG // GROWTH**2, LONG // GROWTH, LONG, LONG * GROWTH):
        beginning = text[:size]
        ids = get_ids(beginning)
        if len(ids) == length and ids == previous:
            return beginning
        previous = ids
        if size >= len(text):
            return text
    raise CorpusError(
        f"its first {LONG * GROWTH:,} characters do not determine its first {length} tokens: it is no text of words"
    )


def _split_between_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield parts of a text that end between two words, each with its position in the text."""
    start, size = 0, LONG
    while start < len(text):
        part = text[start : start + size]
        piece = part if start + size >= len(text) else cut_opening(part, (size - 3) // CHARACTERS_PER_TOKEN)
        if len(piece) == len(part) and start + size < len(text):
            size *= GROWTH  # no suitable space in this part
            continue
        yield start, piece
        start, size = start + len(piece), LONG


def _tokenize_in_pieces(text: str, tokenize: Callable[[str], Tokenized]) -> Tokenized:
    """Return all tokens of a text, tokenized piece by piece."""
    ids, spans = [], []
    for start, piece in _split_between_words(text):
        piece_ids, piece_spans = tokenize(piece)
        ids.append(piece_ids.astype(np.int32))
        spans.append(piece_spans + start)
    return np.concatenate(ids).astype(np.int64), np.concatenate(spans)


def _cut_windows(body: Tokenized, length: int, added: int, known: list[Ints]) -> list[Tokenized] | None:
    """Cut tokens into windows, with the special tokens that the known first windows have.

    Return None if the known windows differ from these. The position of a special token is 0, as in tokenizers.

    Args:
        added: Number of special tokens in each window.
        known: First windows of the text, as the tokenizer gives them.
    """
    ids, spans = body
    step = length - added
    leading = next((k for k in range(added + 1) if known and np.array_equal(known[0][k : k + step], ids[:step])), None)
    if leading is None or step < 1:
        return None
    head, tail = known[0][:leading], known[0][leading + step :]
    windows: list[Tokenized] = []
    for start in range(0, len(ids), step):
        row = np.concatenate([head, ids[start : start + step], tail])
        row_spans = np.zeros((len(row), 2) if len(spans) else (0, 2), dtype=np.int64)
        if len(spans):
            row_spans[leading : len(row) - len(tail)] = spans[start : start + step]
        windows.append((row, row_spans))
    matches = all(np.array_equal(row, expected) for (row, _), expected in zip(windows, known, strict=False))
    return windows if matches and len(windows) > len(known) else None


def _can_cut_at_spaces(backend: Any) -> bool:
    """Return whether no added token of a vocabulary removes the space at which a text is cut."""
    return not any(
        (token.rstrip and token.content[-1:].isalnum()) or (token.lstrip and token.content[:1].isalnum())
        for token in backend.get_added_tokens_decoder().values()
    )

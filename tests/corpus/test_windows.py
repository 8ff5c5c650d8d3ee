"""Test windows (METHOD §1): their tokens, sentences, and the digest that decides samples and blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import syntok.tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headscope.corpus import sentences
from headscope.corpus.formats import Document, load_openings
from headscope.corpus.windows import BLOCKS, Batch, Window, WindowSpec, group_by_length
from headscope.errors import CorpusError, ModelError
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens

CLS, SEP, UNK = 101, 102, 100
LONG = " ".join(opening.text for opening, _ in zip(load_openings(), range(5), strict=False))


@pytest.fixture(scope="module")
def tokens(minilm: Model) -> ModelTokens:
    return minilm.tokens


def cut(text: str, tokens: ModelTokens, **options: Any) -> list[Window]:
    windows = WindowSpec(**options)(Document(text, "a text"), tokens)
    assert isinstance(windows, list), windows
    return windows


def tokenize(text: str, tokens: ModelTokens) -> list[int]:
    """Return a document's token ids without special tokens, from the tokenizer itself."""
    return list(tokens.tokenizer(text, add_special_tokens=False).input_ids)


def make_words(count: int) -> str:
    """Return a text of `count` tokens without equal neighbours."""
    return " ".join(["cat", "dog", "sun", "red", "map"][k % 5] for k in range(count))


def join_sentences(window: Window, tokens: ModelTokens) -> list[str]:
    texts = tokens.texts(window.ids)
    return [" ".join(texts[k] for k in np.flatnonzero(window.sentence == n)) for n in np.unique(window.sentence)]


# Windows


@pytest.mark.parametrize("length", [16, 128])
def test_first_is_the_first_tokens_special_ones_included(tokens: ModelTokens, length: int):
    (window,) = cut(LONG, tokens, length=length)
    assert window.ids.tolist() == [CLS, *tokenize(LONG, tokens)[: length - 2], SEP]
    assert window.special.tolist() == [True, *[False] * (length - 2), True]


def test_a_short_document_is_whole_and_not_padded(tokens: ModelTokens):
    (window,) = cut("Two owlets, met.", tokens)
    assert tokens.names(window.ids.tolist()) == ["[CLS]", "two", "owl", "##ets", ",", "met", ".", "[SEP]"]
    assert np.flatnonzero(window.comma).tolist() == [4]
    assert (window.punctuation >= window.comma).all()
    assert not (window.punctuation & window.special).any()
    shifted = window.shift_right(0, crosses=False)
    np.testing.assert_array_equal(shifted.punctuation[1:], window.punctuation[:-1] & ~shifted.special[1:])
    assert np.flatnonzero(window.end).tolist() == [6]
    assert len(window) == 8


@pytest.mark.parametrize("length", [10, 16, 37, 128])
@pytest.mark.parametrize("sentence_mode", ["tokens", "text"])
def test_all_windows_lose_and_repeat_nothing(tokens: ModelTokens, length: int, sentence_mode: str):
    expected, step = tokenize(LONG, tokens), length - 2
    windows = cut(LONG, tokens, length=length, windows="all", sentences=sentence_mode)
    assert all(window.ids[0] == CLS and window.ids[-1] == SEP for window in windows)
    assert all(len(window) == length for window in windows[:-1])
    joined = [k for window in windows for k in window.ids[1:-1].tolist()]
    dropped = len(expected) % step if len(expected) % step < length / 2 else 0
    assert joined == expected[: len(expected) - dropped]
    assert windows[0].ids.tolist() == cut(LONG, tokens, length=length)[0].ids.tolist()


@pytest.mark.parametrize(
    ("count", "lengths"),
    [
        (14, [16]),
        (28, [16, 16]),
        (42, [16, 16, 16]),
        (29, [16, 16]),
        (35, [16, 16]),  # a last piece of 7 tokens, half a window being 8
        (36, [16, 16, 10]),
        (41, [16, 16, 15]),
        (8, [10]),
        (13, [15]),
    ],
)
def test_the_last_piece(tokens: ModelTokens, count: int, lengths: list[int]):
    windows = cut(make_words(count), tokens, length=16, windows="all")
    assert [len(window) for window in windows] == lengths


@pytest.mark.parametrize(("count", "lengths"), [(17, [19]), (16, [])])
def test_half_of_an_odd_length(tokens: ModelTokens, count: int, lengths: list[int]):
    cut_up = WindowSpec(length=33, windows="all")(Document(make_words(count), "a"), tokens)
    assert (cut_up if isinstance(cut_up, str) else [len(window) for window in cut_up]) == (lengths or "too short")


@given(st.integers(1, 80), st.integers(6, 24))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_number_of_tokens_and_any_length(minilm: Model, count: int, length: int):
    cut_up = WindowSpec(length=length, windows="all", min_tokens=1)(Document(make_words(count), "a"), minilm.tokens)
    full, rest = divmod(count, length - 2)
    expected = [length] * full + [rest + 2] * (rest > 0 and rest >= length / 2)
    lengths = cut_up if isinstance(cut_up, str) else [len(window) for window in cut_up]
    assert lengths == (expected or "too short")


@pytest.mark.parametrize("mode", ["first", "all"])
@pytest.mark.parametrize("sentence_mode", ["tokens", "text"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t\u3000\x1c ", "empty"),
        ("[CLS] [SEP]", "only special tokens"),
        ("[SEP]" * 300, "only special tokens"),
        ("\u200b\x01", "only special tokens"),
        ("word", "too short"),
        ("[MASK] word [SEP]", "too short"),
    ],
)
def test_documents_without_windows(tokens: ModelTokens, mode: Any, sentence_mode: Any, text: str, reason: str):
    assert WindowSpec(windows=mode, sentences=sentence_mode)(Document(text, "a"), tokens) == reason


def test_how_short_is_too_short(tokens: ModelTokens):
    assert len(cut("two words", tokens)[0]) == 4
    assert len(cut("word", tokens, min_tokens=1)[0]) == 3
    assert WindowSpec(min_tokens=4)(Document("just three words", "a"), tokens) == "too short"
    assert len(cut("now four words here", tokens, min_tokens=4)[0]) == 6


def test_unknown_characters_are_text(tokens: ModelTokens):
    (window,) = cut("\u13a0\u13a1 \u13a2", tokens)
    assert window.ids.tolist() == [CLS, UNK, UNK, SEP]
    assert window.special.tolist() == [True, False, False, True]


def test_a_text_the_tokenizer_cannot_read_is_named(tokens: ModelTokens, monkeypatch: pytest.MonkeyPatch):
    class Broken:
        is_fast = True

        def __call__(self, *_: Any, **__: Any) -> None:
            raise OverflowError("too much")

    monkeypatch.setattr(tokens, "tokenizer", Broken())
    message = r"^corpus\.jsonl:7: the tokenizer Broken cannot read this text: OverflowError: too much$"
    with pytest.raises(CorpusError, match=message):
        WindowSpec()(Document("a text", "corpus.jsonl:7"), tokens)


# Sentences by tokens


def test_sentences_by_tokens(tokens: ModelTokens):
    (window,) = cut("Dr. Ito paid 3.5 dollars! Why? She left", tokens)
    names = " ".join(tokens.names(window.ids.tolist()))
    assert names == "[CLS] dr . ito paid 3 . 5 dollars ! why ? she left [SEP]"
    assert window.sentence.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4]
    assert np.flatnonzero(window.end).tolist() == [2, 6, 9, 11]


def test_a_full_stop_at_the_very_end_gives_the_closing_token_its_own_sentence(tokens: ModelTokens):
    (window,) = cut("They met. They left.", tokens)
    assert window.sentence.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]


@given(st.lists(st.booleans(), max_size=40))
def test_by_tokens_counts_the_ends_before(ends: list[bool]):
    expected = [sum(ends[:k]) for k in range(len(ends))]
    assert sentences.number_by_tokens(np.array(ends, dtype=bool)).tolist() == expected


# Sentences by the text


def test_sentences_by_text(tokens: ModelTokens):
    text = "Dr. Ito, of the U.S. Navy, paid 3.5 dollars. Mr. E. Poe left. Why? He had to."
    (window,) = cut(text, tokens, sentences="text")
    assert join_sentences(window, tokens) == [
        "[CLS] dr . ito , of the u . s . navy , paid 3 . 5 dollars .",
        "mr . e . poe left .",
        "why ?",
        "he had to . [SEP]",
    ]


def test_windows_of_one_document_share_sentence_numbers(tokens: ModelTokens):
    text = "One two three four five six. Seven eight nine ten. Eleven twelve one two three. Four five six."
    windows = cut(text, tokens, length=10, windows="all", sentences="text")
    assert [join_sentences(window, tokens) for window in windows] == [
        ["[CLS] one two three four five six .", "seven [SEP]"],
        ["[CLS] eight nine ten .", "eleven twelve one two [SEP]"],
        ["[CLS] three .", "four five six . [SEP]"],
    ]
    assert [np.unique(window.sentence).tolist() for window in windows] == [[0, 1], [1, 2], [2, 3]]


def test_special_tokens_belong_to_the_sentence_beside_them():
    #          [CLS] two words here   next [SEP] one more   [SEP] [SEP]
    special = np.array([1, 0, 0, 0, 0, 1, 0, 0, 1, 1], dtype=bool)
    starts = np.array([0, 0, 4, 10, 16, 0, 21, 25, 0, 0])
    numbers = sentences.number_by_text(np.array([0, 16, 25]), starts, special)
    assert numbers.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sentences.number_by_text(np.array([0]), np.zeros(2, int), np.ones(2, bool)).tolist() == [0, 0]
    assert (
        sentences.number_by_text(np.array([], int), np.array([0, 0, 3]), np.array([True, False, False])).tolist()
        == [0] * 3
    )


def test_sentences_by_text_need_offsets(tokens: ModelTokens, monkeypatch: pytest.MonkeyPatch):
    encode = tokens.encode
    monkeypatch.setattr(
        tokens,
        "encode",
        lambda text, length, *, all_windows, offsets: encode(text, length, all_windows=all_windows, offsets=False),
    )
    with pytest.raises(CorpusError, match="--sentences tokens"):
        WindowSpec(sentences="text")(Document("Two words.", "a"), tokens)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Ito left. She ran.", ["Dr. Ito left.", "She ran."]),
        ("The U.S. Army left. It ran.", ["The U.S. Army left.", "It ran."]),
        ("It costs 3.5 dollars. Cheap.", ["It costs 3.5 dollars.", "Cheap."]),
        ("See Fig. 3 and vol. 4, e.g. cats. Yes!", ["See Fig. 3 and vol. 4, e.g. cats.", "Yes!"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("A title\n\nA text. More", ["A title", "A text.", "More"]),
        ("\n\n  Late start?  \n Yes.\n\n", ["Late start?", "Yes."]),
        ("Don't join hyphen-\nated words. Can't.", ["Don't join hyphen-\nated words.", "Can't."]),
    ],
)
def test_sentence_starts(text: str, expected: list[str]):
    starts = sentences.find_sentence_starts(text).tolist()
    assert [text[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] == expected


def is_space(character: str) -> bool:
    """Return whether a character is Unicode white space or the zero-width space. Python adds four separators."""
    return (character.isspace() and character not in "\x1c\x1d\x1e\x1f") or character == "\u200b"


@given(st.one_of(st.text(), st.text("aB3.?!…。;:-_ \n\r\t\"'()[]\u200b\u00ad"), st.text("\n\rA. ")))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_sentence_starts_of_any_text(text: str):
    starts = sentences.find_sentence_starts(text).tolist()
    assert all(a < b for a, b in pairwise(starts))
    assert not any(is_space(text[start]) for start in starts)
    assert starts[:1] == [k for k, character in enumerate(text) if not is_space(character)][:1]
    for until in {0, len(text) // 2, len(text)}:
        assert sentences.find_sentence_starts(text, until).tolist() == [start for start in starts if start <= until]


def test_every_paragraph_is_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    # syntok's own way copies all that stands before a paragraph, for each: minutes for a book.
    looked_at = 0
    tokenize = syntok.tokenizer.Tokenizer.tokenize

    def count_characters(self: Any, text: str, base_offset: int = 0) -> Iterator[Any]:
        nonlocal looked_at
        looked_at += base_offset + len(text)
        return iter(tokenize(self, text, base_offset))

    monkeypatch.setattr(syntok.tokenizer.Tokenizer, "tokenize", count_characters)
    text = "One two three. Four.\n\n" * 500
    assert len(sentences.find_sentence_starts(text)) == 1000
    assert 500 * len("One two three. Four.") <= looked_at <= len(text)


@given(st.text(max_size=80))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_text_is_cut(minilm: Model, text: str):
    for sentence_mode in ("tokens", "text"):
        windows = WindowSpec(length=16, windows="all", sentences=sentence_mode, min_tokens=1)(
            Document(text, "a"), minilm.tokens
        )
        for window in windows if isinstance(windows, list) else []:
            assert len(window) == len(window.special) == len(window.sentence) == len(window.end) == len(window.comma)
            assert (np.diff(window.sentence) >= 0).all()


# Other tokenizers


def make_byte_level_tokens(**options: Any) -> ModelTokens:
    """Return a tokenizer like GPT-2's: a space belongs to the word after it, one token has every special role."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: k for k, token in enumerate(["<|end|>", *alphabet, "ĠS", "ĠT", "ĠSh", "ĠShe"])}
    merges = [("Ġ", "S"), ("Ġ", "T"), ("ĠS", "h"), ("ĠSh", "e")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    roles = {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
    return ModelTokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles, **options))


def test_a_word_that_carries_its_space_is_in_its_own_sentence():
    tokens = make_byte_level_tokens()
    (window,) = cut("It is. She saw. To be.", tokens, sentences="text")
    texts = tokens.texts(window.ids)
    assert texts[:8] == ["<|end|>", "I", "t", "", "i", "s", ".", "She"]
    assert window.sentence[:8].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    assert texts.index("T") == 13
    assert window.sentence[12:15].tolist() == [1, 2, 2]
    assert np.flatnonzero(window.end).tolist() == [6, 12, len(window) - 1]


def test_a_token_of_every_role_is_special():
    tokens = make_byte_level_tokens()
    (window,) = cut("word", tokens)
    assert window.special.tolist() == [True, False, False, False, False]
    assert tokens.find_first_special() == "<|end|>"
    assert WindowSpec()(Document("<|end|>", "a"), tokens) == "only special tokens"


def test_a_tokenizer_that_cuts_on_the_left_gives_the_first_tokens_too():
    right, left = make_byte_level_tokens(), make_byte_level_tokens(truncation_side="left")
    assert cut("abcdefgh", left, length=5)[0].ids.tolist() == cut("abcdefgh", right, length=5)[0].ids.tolist()
    assert left.texts(cut("abcdefgh", left, length=5)[0].ids) == ["<|end|>", "a", "b", "c", "d"]
    windows = cut("abcdefgh", left, length=5, windows="all")
    assert [left.texts(window.ids[1:]) for window in windows] == [["a", "b", "c", "d"], ["e", "f", "g", "h"]]


def test_the_tokenizer_given_is_left_as_it_was():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=make_byte_level_tokens().tokenizer.backend_tokenizer, truncation_side="left"
    )
    ModelTokens(tokenizer)
    assert tokenizer.truncation_side == "left"


def test_a_slow_tokenizer_cannot_cut_all_windows(tokens: ModelTokens, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "tokenizer", SimpleNamespace(is_fast=False))
    with pytest.raises(ModelError, match=r"slow tokenizer.*--windows first"):
        WindowSpec(windows="all")(Document("a text", "a"), tokens)


# Digest, block, sample


def make_window(ids: list[int]) -> Window:
    flags = np.zeros(len(ids), dtype=bool)
    return Window(ids=np.array(ids), special=flags, sentence=np.zeros(len(ids), dtype=np.int64), end=flags, comma=flags)


IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)


@given(IDS, st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, derandomize=True)
def test_digest_block_and_sample_by_the_definition(ids: list[int], one: float, other: float):
    raw = b"".join(k.to_bytes(4, "little", signed=True) for k in ids)
    u = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
    window = make_window(ids)
    assert window.digest == u
    assert window.block == u % 20 == u % BLOCKS
    assert window.is_sampled(one) == ((u >> 8) / 2**56 < one)
    assert window.is_sampled(max(one, other)) or not window.is_sampled(min(one, other))
    assert window.is_sampled(1.0)
    assert not window.is_sampled(0.0)


def test_a_digest_written_out():
    # printf '\x65\x00\x00\x00\x66\x00\x00\x00' | b2sum -l 64
    assert make_window([CLS, SEP]).digest.to_bytes(8, "little").hex() == "f71f3e6faf555eeb"


def test_the_digest_depends_on_the_ids_alone(tokens: ModelTokens):
    first = cut("Two ravens met. They left.", tokens)[0]
    second = cut("TWO  ravens met.\nthey left.", tokens, sentences="text")[0]
    assert first.sentence.tolist() != second.sentence.tolist()
    assert first.digest == second.digest
    assert first.digest != cut("Two ravens met. They left", tokens)[0].digest


def test_the_block_of_a_document_written_out(tokens: ModelTokens):
    # printf 'Two ravens met. They left.' | b2sum -l 64 prints 3ef6111d8f7d6629, read from its last byte to its first
    document = Document("Two ravens met. They left.", "a")
    assert document.digest == 0x29667D8F1D11F63E
    window = cut(document.text, tokens)[0]
    assert window.block == 0x29667D8F1D11F63E % 20 == 10
    by_window = cut(document.text, tokens, blocks="windows")[0]
    assert by_window.block == window.digest % 20 == by_window.digest % 20 != window.block


@given(
    texts=st.lists(st.text("the cat. ", max_size=120).map(lambda text: text * 3), min_size=1, max_size=8, unique=True),
    length=st.sampled_from([8, 16]),
    mode=st.sampled_from(["first", "all"]),
    sentence_mode=st.sampled_from(["tokens", "text"]),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_block_of_a_window_depends_on_the_document_only(
    tokens: ModelTokens, texts: list[str], length: int, mode: Any, sentence_mode: Any, order: Random
):
    spec = WindowSpec(length=length, windows=mode, sentences=sentence_mode, min_tokens=1)
    documents = [Document(text, f"text {k}") for k, text in enumerate(texts)]
    order.shuffle(documents)
    for document, windows in zip(documents, spec.each(documents, tokens), strict=True):
        u = hashlib.blake2b(document.text.encode(), digest_size=8).digest()
        blocks = {window.block for window in windows if isinstance(window, Window)}
        assert blocks <= {int.from_bytes(u, "little") % BLOCKS}
        alone = spec(document, tokens)
        assert isinstance(alone, str) or {window.block for window in alone} == blocks


def test_the_largest_digest_is_in_the_whole_sample():
    window = make_window([1])
    window.__dict__["digest"] = 2**64 - 1
    assert window.is_sampled(1.0)
    assert not window.is_sampled(0.999)


# Batches


def test_batches_are_padded_on_the_right():
    windows = [make_window([5, 6]), make_window([1, 2, 3, 4]), make_window([9])]
    batch = Batch.of(windows, pad_id=7)
    assert batch.ids.tolist() == [[5, 6, 7, 7], [1, 2, 3, 4], [9, 7, 7, 7]]
    assert batch.real.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert len(batch) == 3
    assert batch.windows == windows


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (6, [3, 3])])
def test_batches_of_a_size(count: int, sizes: list[int]):
    windows = [make_window([k]) for k in range(count)]
    batches = list(group_by_length(iter(windows), 3))
    assert [len(batch) for batch in batches] == sizes
    assert [window for batch in batches for window in batch] == windows


@given(st.lists(st.integers(1, 9), max_size=200), st.integers(1, 7), st.booleans())
@settings(deadline=None, derandomize=True)
def test_windows_of_like_length_stand_together(lengths: list[int], size: int, alike: bool):
    windows = [make_window([k] * length) for k, length in enumerate(lengths)]
    batches = list(group_by_length(iter(windows), size, alike=alike))
    places = [[int(window.ids[0]) for window in batch] for batch in batches]
    assert sorted(k for batch in places for k in batch) == list(range(len(lengths)))
    assert all(batch == sorted(batch) and len(batch) <= size for batch in places)
    assert places == [[int(w.ids[0]) for w in batch] for batch in group_by_length(list(windows), size, alike=alike)]
    if alike:
        assert all(len({len(window) for window in batch}) == 1 for batch in batches)
    else:
        assert [len(batch) for batch in batches].count(size) == len(lengths) // size
    # Nothing is given out before what came a look-ahead earlier.
    given_out = [k for batch in places for k in batch]
    assert all(k - place < 16 * size for place, k in enumerate(given_out))


def test_batches_come_in_the_order_of_their_first_windows():
    assert list(group_by_length(["aa", "aa", "bbbb", "b", "bb", "bbb"], 2)) == [
        ["aa", "aa"],
        ["bbbb", "bbb"],
        ["b", "bb"],
    ]


def test_batches_come_by_length_where_they_are_to_be_computed_side_by_side():
    items = ["aa", "aa", "bbbb", "b", "bb", "bbb"]
    assert list(group_by_length(items, 2, by_length=True)) == [["aa", "aa"], ["b", "bb"], ["bbbb", "bbb"]]
    assert list(group_by_length(items, 2, by_length=True, at_once=True)) == [["aa", "b"], ["aa", "bb"], ["bbbb", "bbb"]]


def test_little_is_padded_and_the_first_batch_comes_at_once():
    count = 0

    def yield_windows() -> Iterator[Window]:
        nonlocal count
        for k in range(1000):
            count += 1
            yield make_window([1] * (1 + 37 * k % 100))

    batches = group_by_length(yield_windows(), 10)
    next(batches)
    assert count == 10
    sorted_out = [Batch.of(group) for group in batches]
    plain = [Batch.of(make_window([1] * (1 + 37 * k % 100)) for k in range(n, n + 10)) for n in range(0, 1000, 10)]
    padded, unsorted = (
        1 - sum(b.real.sum() for b in all_) / sum(b.real.size for b in all_) for all_ in (sorted_out, plain)
    )
    assert padded < 0.15 < 0.3 < unsorted


def test_marks_of_word_starts_and_ends_do_not_hide_a_full_stop():
    written = [".", "Ġ.", "▁.", ".</w>", "##.", "a.", "▁!", "?</w>"]
    vocabulary = {token: k for k, token in enumerate(["[UNK]", *written])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokens = ModelTokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"))
    assert tokens.texts(np.arange(1, 9)) == [".", ".", ".", ".", "##.", "a.", "!", "?"]

"""Many texts in one call: the direct call of the backend gives what transformers gives, or is not used."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from headscope.corpus.document import Document
from headscope.corpus.windows import Encoding, Encodings, WindowSpec, hash_token_ids
from headscope.model.batch_tokenizer import BatchTokenizer
from headscope.model.tokenizer import ModelTokens
from tests.helpers import tiny
from tests.helpers.tokenizing import KINDS, SLOW

FAST = {name: KINDS[name]() for name in KINDS if name not in SLOW}
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from(["The", "airport", "café,", "<s>", "[CLS]", "</s>", "3.5", "\n", "東", "owls."])).map(
            " ".join
        ),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(texts=TEXTS, length=st.integers(6, 24), all_windows=st.booleans())
def test_both_ways_make_the_same(name: str, texts: list[str], length: int, all_windows: bool):
    many = BatchTokenizer(FAST[name])
    assert many.uses_backend is None
    rows = many.tokenize(texts, length, all_windows=all_windows, offsets=False)
    assert many.uses_backend
    assert rows == many._call_transformers(texts, length, all_windows, offsets=False)
    assert rows == many.tokenize(texts, length, all_windows=all_windows, offsets=False)


def list_has_spans(rows: Any) -> list[Any]:
    return [row.spans is not None for text_rows in rows for row in text_rows]


def test_places_come_from_transformers():
    many = BatchTokenizer(FAST["bert"])
    for offsets in (True, False, True):
        rows = many.tokenize(["The owl.", "A cat saw it."], 8, all_windows=False, offsets=offsets)
        assert list_has_spans(rows) == [offsets] * 2


class Own(PreTrainedTokenizerFast):
    """A wrapper that changes texts before it calls the backend."""

    def _encode_plus(self, text: Any, *args: Any, **options: Any) -> Any:
        text = text.upper() if isinstance(text, str) else [item.upper() for item in text]
        return super()._encode_plus(text, *args, **options)


def test_a_wrapper_with_ways_of_its_own_is_asked_itself():
    inside = tiny.tokenizer().backend_tokenizer
    own = Own(tokenizer_object=inside, unk_token="[UNK]")
    assert BatchTokenizer(own).uses_backend is False


def test_a_short_way_that_makes_something_else_is_not_gone(monkeypatch: pytest.MonkeyPatch):
    tokenizer = tiny.tokenizer()
    original = PreTrainedTokenizerFast._encode_plus

    def replace_texts(self: Any, text: Any, *args: Any, **options: Any) -> Any:
        return original(self, ["a cat"] * len(text) if isinstance(text, list) else text, *args, **options)

    replace_texts.__module__ = original.__module__
    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", replace_texts)
    many = BatchTokenizer(tokenizer)
    assert many.uses_backend is None
    rows = many.tokenize(["the owl", "the mat"], 8, all_windows=False, offsets=False)
    assert many.uses_backend is False
    assert rows[0] == rows[1]


def test_windows_in_one_row_are_those_of_each_text():
    random = np.random.default_rng(0)
    encodings = [
        Encoding(random.integers(0, 9, n), random.random(n) < 0.3, random.random(n) < 0.3, random.random(n) < 0.3, None)
        for n in (5, 0, 7, 1)
    ]
    row = Encodings.from_encodings(encodings)
    assert len(row) == 1
    assert row.plain == [int((~encoding.special).sum()) for encoding in encodings]
    ends = [np.cumsum(encoding.end) - encoding.end for encoding in encodings]
    assert row.sentence.tolist() == np.concatenate(ends).tolist()
    (windows,) = row
    for window, encoding in zip(windows, encodings, strict=True):
        for name in ("ids", "special", "end", "comma"):
            assert getattr(window, name).tolist() == getattr(encoding, name).tolist()


@pytest.mark.parametrize("windows", ["first", "all"])
def test_windows_of_many_documents_are_those_of_each(windows: Any):
    tokens = ModelTokens(tiny.tokenizer())
    texts = ["the owl sat. a cat left! " * k for k in range(9)] + ["", "the", "[SEP]", "x, y?"]
    cut, documents = WindowSpec(length=12, windows=windows), [Document(text, str(k)) for k, text in enumerate(texts)]
    together, alone = list(cut.each(documents, tokens)), [cut(document, tokens) for document in documents]
    assert [type(windows_of_text) for windows_of_text in together] == [
        type(windows_of_text) for windows_of_text in alone
    ]
    for from_many, from_one in zip(together, alone, strict=True):
        if isinstance(from_many, str):
            assert from_many == from_one
            continue
        for a, b in zip(from_many, from_one, strict=True):
            assert a.sentence.tolist() == b.sentence.tolist() == (np.cumsum(a.end) - a.end).tolist()
            plain = hashlib.blake2b(a.ids.astype("<i4").tobytes(), digest_size=8).digest()
            assert (
                a.digest == b.digest == int.from_bytes(plain, "little") == hash_token_ids(a.ids.astype("<i4").tobytes())
            )

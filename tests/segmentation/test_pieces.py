"""Sentences cover a text completely, and those without a subject are joined to others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import CorpusError
from headscope.segmentation.pieces import LONGEST_SENTENCE, find_sentence_edges, find_units, join_sentences

PARTS = [
    "Rain fell.", " Dr. Ito left", "3.5", "\n", "\r\n", "\n\n", "\t", "  ", "?", "!", "…", ". ", "a", "É", "日本。",
    "😀", "\x00", "\ud800", "\u2028", "\x85", "\xa0", "\xad", "مرحبا.", "'s", "\"Yes.\" ", "1. ", "U.S. ", "e\u0301",
    "-\n",
]  # fmt: skip


def split(text: str) -> list[str]:
    return [text[a:b] for a, b in pairwise(find_sentence_edges(text))]


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PARTS), max_size=25).map("".join)))
def test_sentences_cover_the_text(text: str):
    edges = find_sentence_edges(text)
    assert edges.dtype == np.int64
    assert edges[-1] == len(text)
    if text:
        assert edges[0] == 0
        assert (np.diff(edges) > 0).all()
        assert np.diff(edges).max() <= LONGEST_SENTENCE
    assert "".join(split(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Ito paid 3.5 dollars.  She left.", ["Dr. Ito paid 3.5 dollars.  ", "She left."]),
        ("Rain fell. Did it? It did! ", ["Rain fell. ", "Did it? ", "It did! "]),
        ("A heading\n\nRain fell\n  \n\tSnow too", ["A heading\n\n", "Rain fell\n  \n\t", "Snow too"]),
        ("A heading\r\n\r\nRain fell.\r\nSnow too.\r\n", ["A heading\r\n\r\n", "Rain fell.\r\n", "Snow too.\r\n"]),
        ("Rain fell\non the hills and\non us.", ["Rain fell\non the hills and\non us."]),
        ("Rain\x00fell. It \ud800 stopped.", ["Rain\x00fell. ", "It \ud800 stopped."]),
        (" \n\n\t ", [" \n\n\t "]),
        ("  Lead. Two.", ["  Lead. ", "Two."]),
        ("雨が降った。「風も吹いた。」銀行は休みだ！", ["雨が降った。", "「風も吹いた。」", "銀行は休みだ！"]),
        ("", []),
        ("x", ["x"]),
    ],
)
def test_where_sentences_end(text: str, expected: list[str]):
    assert split(text) == expected


def test_white_space_belongs_to_the_sentence_before():
    text = "\n\n  Rain fell.   Snow too.\n\n\n Hail as well. \t\n"
    assert not any(part[0].isspace() for part in split(text)[1:])
    assert [part.strip() for part in split(text)][-3:] == ["Rain fell.", "Snow too.", "Hail as well."]


def test_a_text_without_punctuation_is_bounded():
    words = "word and more " * 720
    sentences = split(words)
    assert len(words) > 10_000
    assert "".join(sentences) == words
    assert LONGEST_SENTENCE // 2 < max(map(len, sentences)) <= LONGEST_SENTENCE
    assert all(part[-1].isspace() for part in sentences)
    solid = "x" * (2 * LONGEST_SENTENCE + 1)
    assert list(map(len, split(solid))) == [LONGEST_SENTENCE, LONGEST_SENTENCE, 1]
    assert list(map(len, split("x" * LONGEST_SENTENCE))) == [LONGEST_SENTENCE]
    only_early = "a " + "x" * 2 * LONGEST_SENTENCE
    assert list(map(len, split(only_early))) == [2, LONGEST_SENTENCE, LONGEST_SENTENCE]


# Units


@pytest.mark.parametrize(
    ("sentences", "starts"),
    [
        (["Rain fell all day.", "Snow fell all night."], [0, 1]),
        (["Rain fell all day.", "Introduction", "Snow fell all night."], [0, 1]),  # a heading announces
        (["Rain fell all day.", "12.", "Snow fell all night."], [0, 1]),
        (["1.", "Rain fell all day."], [0]),
        (["1.", "2.", "Rain fell all day.", "Snow fell."], [0, 3]),
        (["Rain fell all day.", "hp.", "Snow fell all night."], [0, 2]),  # continues in lower case
        (["Rain fell all day.", ") 4", "Snow fell all night."], [0, 2]),
        (["Rain fell all day.", "”", "Snow fell all night."], [0, 2]),
        (["Rain fell all day.", "", "Snow fell all night."], [0, 2]),
        (["Rain fell all day.", "End."], [0]),  # the last has nothing after it
        (["Rain fell all day.", "A B 1 2 _ x"], [0]),  # letters and numbers are no words
        (["Rain fell all day.", "Snow fell."], [0, 1]),  # two words are enough
        (["hp.", "Rain fell all day."], [0]),  # the first has nothing before it
        (["", "Rain fell all day."], [0]),
        (["Hello"], [0]),
        ([""], [0]),
        (["1", "2", "3"], [0]),
        ([], []),
    ],
)
def test_what_is_joined(sentences: list[str], starts: list[int]):
    assert find_units(sentences).tolist() == starts


def test_sentences_without_spaces_are_no_fragments():
    chinese = ["今天下了一整天的雨而且很冷。", "银行昨天再次提高了贷款利率。", "第一章", "股市本周下跌了百分之五点三。"]
    assert find_units(chinese).tolist() == [0, 1, 2]
    assert find_units(["วันนี้ฝนตกหนักมากทั้งวัน", "ธนาคารขึ้นดอกเบี้ยอีกครั้ง"]).tolist() == [0, 1]
    assert find_units(["Rain fell all day.", "12345678901234567.", "Snow fell all night."]).tolist() == [0, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["Rain fell all day.", "1.", "hp.", "", "Title", ")", "雨" * 20]), max_size=12))
def test_units_start_with_the_first_sentence_and_in_order(sentences: list[str]):
    starts = find_units(sentences).tolist()
    assert starts[:1] == [0] * bool(sentences)
    assert starts == sorted(set(starts))
    assert all(k < len(sentences) for k in starts)
    # What has a subject starts a unit, unless something without one announces it.
    has_subject = [text in ("Rain fell all day.", "雨" * 20) for text in sentences]
    assert all(k in starts for k in range(len(has_subject)) if has_subject[k] and (k == 0 or has_subject[k - 1]))


# Lists of sentences


def test_given_sentences_are_joined_with_a_space():
    text, edges = join_sentences(["Rain fell.", "Snow\n", "", "Hail"])
    assert text == "Rain fell. Snow\n  Hail"
    assert [text[a:b] for a, b in pairwise(edges)] == ["Rain fell. ", "Snow\n ", " ", "Hail"]
    assert edges.dtype == np.int64
    assert join_sentences(("One.",))[1].tolist() == [0, 4]
    nothing, none = join_sentences([])
    assert (nothing, none.tolist()) == ("", [0])


@pytest.mark.parametrize("wrong", [3, None, b"Rain", ["Rain"]])
def test_what_is_no_sentence_is_named(wrong: object):
    with pytest.raises(CorpusError, match=f"sentence 1 is a {type(wrong).__name__}: sentences are strings"):
        join_sentences(["Rain fell.", wrong])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("sentences", "starts"),
    [
        (["Rain fell all day .", "Elburn , Ill .", "A dealer tilts back in a chair ."], [0, 1]),
        (["Rain fell all day .", "Elburn in Illinois .", "A dealer tilts back in a chair ."], [0, 1, 2]),
        (["Rain fell all day .", "One Two Three Four Five .", "A dealer tilts back in a chair ."], [0, 1, 2]),
        (["Rain fell all day .", "1 .", "1 ."], [0]),
        (["1 .", "1 .", "Rain fell all day ."], [0]),
        (["Rain fell all day .", "Title", "hp .", "Snow fell all night ."], [0, 3]),
        (["مطر غزير اليوم .", "ثلج في الليل ."], [0, 1]),
    ],
)
def test_titles_announce_and_what_announces_nothing_looks_back(sentences: list[str], starts: list[int]):
    assert find_units(sentences).tolist() == starts

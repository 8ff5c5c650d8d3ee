"""Which high pairs of a reading the text explains: against examples by hand, plain loops, and a study.

position   0      1   2   3   4          sentences {0, 1, 2}, {3, 4}
token     [CLS]   a   .   a  [SEP]       high pairs: see tests/readings/test_reading.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope import Reading, open_reading
from headscope.errors import ReadingError
from headscope.readings.reading import RELATIONS
from tests.helpers import tiny
from tests.helpers.example_reading import HEADS, IDS, SPECIAL, make_reading

TEXT = "the cat sat. the dog ran, the owl!"


@pytest.fixture(scope="module")
def example() -> Reading:
    return make_reading(HEADS, ids=IDS, special=SPECIAL)


def map_relations(table: Any) -> dict[tuple[int, int], str]:
    return dict(zip(zip(table["index_i"], table["index_j"], strict=True), table["relation"], strict=True))


@pytest.mark.parametrize(
    ("head", "theta", "expected"),
    [
        (0, 0.3, {(0, 1): "sentence + neighbours", (0, 3): "", (1, 3): "equal"}),
        (0, 0.0, {(0, 1): "sentence + neighbours", (0, 3): "", (1, 3): "equal", (2, 3): "neighbours"}),
        (1, 0.3, {(0, 2): "sentence", (0, 4): "", (2, 4): ""}),
        ("sum", 0.3, {(0, 1): "sentence + neighbours", (0, 2): "sentence", (0, 3): "", (1, 3): "equal"}),
    ],
)
def test_relations_worked_out(example: Reading, head: Any, theta: float, expected: dict[tuple[int, int], str]):
    table = example.pairs(0, head, theta, explain=True)
    assert map_relations(table) == expected
    assert table.drop(columns="relation").equals(example.pairs(0, head, theta))
    assert list(table.columns)[-1] == "relation"
    assert example.explained(0, head, theta) == np.mean([name != "" for name in expected.values()])


def test_relations_of_several_heads_and_without_special_tokens(example: Reading):
    table = example.pairs(explain=True)
    assert table["relation"].tolist() == ["sentence + neighbours", "", "equal", "sentence", "", ""]
    assert list(table.columns)[:3] == ["head", "layer", "head_number"]
    assert map_relations(example.pairs(0, "sum", special=False, explain=True)) == {(1, 3): "equal"}
    assert example.with_thresholds(theta=0.5).explained(0, 1) == 0.5  # (0, 2) and (2, 4)


def test_words_are_related_where_any_of_their_tokens_are():
    # airport . | airman saw it: sentences {0, 1, 2} and {3, 4, 5, 6}
    reading = make_reading([[[1]] * 7], tokens=["air", "##port", ".", "air", "##man", "saw", "it"])
    assert map_relations(reading.pairs(0, 0, words=True, explain=True)) == {
        (0, 2): "sentence + neighbours",
        (0, 3): "equal",
        (0, 5): "",
        (0, 6): "",
        (2, 3): "neighbours",
        (2, 5): "",
        (2, 6): "",
        (3, 5): "sentence + neighbours",
        (3, 6): "sentence",
        (5, 6): "sentence + neighbours",
    }
    assert map_relations(make_reading([[[1]] * 4], tokens=["a", "a", ".", "b"]).pairs(0, 0, explain=True)) == {
        (0, 1): "equal + sentence + neighbours",
        (0, 2): "sentence",
        (0, 3): "",
        (1, 2): "sentence + neighbours",
        (1, 3): "",
        (2, 3): "neighbours",
    }


@given(st.lists(st.sampled_from(["a", "b", "##c", ".", "[CLS]"]), min_size=2, max_size=9), st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_relations_by_a_loop(tokens: list[str], words: bool):
    reading = make_reading([[[1]] * len(tokens)], tokens=tokens, special=[token == "[CLS]" for token in tokens])
    ids, sentence, word = (reading.tokens[name].values for name in ("token_id", "sentence", "word"))
    known = sentence.any()
    holds = {
        "equal": lambda i, j: ids[i] == ids[j],
        "sentence": lambda i, j: known and sentence[i] == sentence[j],
        "neighbours": lambda i, j: j == i + 1,
    }
    for (index_i, index_j), relation in map_relations(reading.pairs(0, 0, words=words, explain=True)).items():
        tokens_i, tokens_j = (
            [k for k in range(len(ids)) if (word[k] == word[start] if words else k == start)]
            for start in (index_i, index_j)
        )
        expected = [name for name in RELATIONS if any(holds[name](i, j) for i in tokens_i for j in tokens_j)]
        assert relation == " + ".join(expected)


# Unknown relations


def test_arrays_without_sentences_know_only_the_rest():
    reading = make_reading([[[1]] * 4], tokens=["a", "b", "a", "c"])
    assert reading.relations == ("equal", "neighbours")
    names = {(0, 1): "neighbours", (0, 2): "equal", (0, 3): "", (1, 2): "neighbours", (1, 3): "", (2, 3): "neighbours"}
    assert map_relations(reading.pairs(0, 0, explain=True)) == names
    assert reading.explained(0, 0) == 4 / 6
    assert make_reading(HEADS).relations == RELATIONS
    # In a text, unlike in arrays, a single sentence is known to be one.
    one_sentence = headscope.read(tiny.model("bert"), "the cat sat", length=40)
    assert one_sentence.relations == RELATIONS
    assert one_sentence.explained(0, 0) == 1


def test_of_an_image_nothing_is_explained():
    reading = headscope.read(tiny.vision_model(), tiny.pictures(1)[0])
    assert reading.relations == ()
    table = reading.pairs(explain=True)
    assert len(table) > 0
    assert set(table["relation"]) == {""}
    assert np.isnan(reading.explained(0, 0))


def test_without_pairs():
    empty = make_reading([[[1], [-1]]])
    table = empty.pairs(0, 0, explain=True)
    assert len(table) == 0
    assert table.dtypes["relation"] == table.dtypes["token_i"]
    assert np.isnan(empty.explained(0, 0))


def test_readings_saved_earlier(example: Reading, tmp_path: Path):
    read = headscope.read(tiny.model("bert"), TEXT, length=40)
    older = Reading(read.data.copy())
    del older.data.attrs["modality"]
    for number, (reading, again) in enumerate(((example, example), (read, older))):
        opened = open_reading(again.save(tmp_path / f"{number}.nc"))
        assert opened.relations == RELATIONS
        assert opened.pairs(explain=True).equals(reading.pairs(explain=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.explained(4, 0), "no layer 4: this reading has layers 0"),
        (lambda r: r.explained(0, 7), "no head 7: this reading has heads 0, 1"),
        (lambda r: r.explained(0, [0, 1]), "heads 0, 1: give one head at a time"),
        (lambda r: r.explained(0, 0, 1.5), "theta is 1.5"),
    ],
)
def test_what_is_not_there_is_said(example: Reading, call: Any, message: str):
    with pytest.raises(ReadingError, match=message):
        call(example)

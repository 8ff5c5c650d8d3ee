"""Test the bundled data: 64 openings with varied sentences, and the paper's two printed inputs."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

import headscope
from headscope.corpus import formats, sentences
from headscope.corpus.formats import Document
from headscope.corpus.windows import WindowSpec
from headscope.errors import CorpusError
from headscope.model.model import Model

OPENINGS = list(formats.load_openings())
EXAMPLES = {"gerstenslager": "4", "airport-policing": "9"}


def read_rows() -> list[dict[str, str]]:
    raw = (files("headscope") / "data" / "openings.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in raw.split("\n") if line]


def test_as_many_openings_as_said():
    assert len(OPENINGS) == len(read_rows()) == formats.OPENINGS == 64
    assert [opening.name for opening in OPENINGS] == [f"openings:{k}" for k in range(1, 65)]
    assert [opening.text for opening in OPENINGS] == [row["text"] for row in read_rows()]


def test_titles_and_texts_are_unique():
    assert len({row["title"].casefold() for row in read_rows()}) == 64
    assert len({opening.text for opening in OPENINGS}) == 64
    assert len({opening.text[:40] for opening in OPENINGS}) == 64


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.name)
def test_an_opening_is_one_paragraph_of_the_right_length(opening: Document):
    assert 140 <= len(opening.text.split()) <= 220
    assert not re.search(r"[\n\r\t\x00-\x1f\ufffd]|  ", opening.text)
    assert opening.text == opening.text.strip()
    assert opening.text[-1] in '.!?"'
    assert len(sentences.find_sentence_starts(opening.text)) >= 4


@pytest.mark.parametrize(
    ("what", "pattern", "least"),
    [
        ("quotations", r'"[^"]+"', 8),
        ("years", r"\b1[0-9]{3}\b", 20),
        ("decimal numbers", r"\d\.\d", 5),
        ("abbreviations", r"\b(?:Dr|Mr|Mrs|St|U\.S|U\.K|e\.g|i\.e|No|[A-Z]\. ?[A-Z])\.", 5),
        ("questions", r"\?", 1),
    ],
)
def test_openings_hold_what_makes_sentences_hard(what: str, pattern: str, least: int):
    assert sum(bool(re.search(pattern, opening.text)) for opening in OPENINGS) >= least, what


def test_openings_fill_the_papers_window(minilm: Model):
    windows = [WindowSpec()(opening, minilm.tokens) for opening in OPENINGS]
    assert [[len(window) for window in cut] for cut in windows] == [[128]] * 64


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_printed_inputs_have_the_published_tokens(minilm: Model, name: str):
    published = formats.load_paper_examples()[name]
    assert published["figure"] == EXAMPLES[name]
    tokens = published["tokens"]
    assert len(tokens) == 128
    windows = WindowSpec()(formats.load_example(name), minilm.tokens)
    assert len(windows) == 1
    assert minilm.tokens.names(windows[0].ids.tolist()) == tokens
    # The text is what was printed, and no more: without a limit to the length there are no other tokens.
    long_windows = WindowSpec(length=512)(formats.load_example(name), minilm.tokens)
    assert long_windows[0].ids.tolist()[:127] == windows[0].ids.tolist()[:127]
    assert len(long_windows[0]) == 128


def test_the_published_pairs_are_pairs_of_the_published_tokens():
    published = formats.load_paper_examples()["airport-policing"]
    assert (published["layer"], published["theta"]) == (11, 0.3)
    assert published["pairs_by_head"]
    for pairs in published["pairs_by_head"].values():
        assert all(0 <= i < j < 128 for i, j in pairs)
        assert len({tuple(pair) for pair in pairs}) == len(pairs)


def test_examples():
    assert set(headscope.examples()) == set(EXAMPLES)
    assert formats.load_example("gerstenslager").name == "example:gerstenslager"
    with pytest.raises(
        CorpusError, match="example:nosuch: no such example; there are: airport-policing, gerstenslager"
    ):
        formats.load_example("nosuch")

"""Segments as chunks: the interface of LangChain's and LlamaIndex's splitters, and no character lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

import headscope
from headscope import Splitter
from headscope.errors import CorpusError, StudyError
from headscope.model.model import Model
from headscope.segmentation.splitter import Chunk
from tests.helpers.subjects import BANK, COOK, RAIN, TEXT

pytestmark = pytest.mark.usefixtures("shared_cache")


@dataclass
class Document:
    """Like LangChain's."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Node:
    """Like LlamaIndex's."""

    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Page(Document):
    """A user's class."""


@pytest.fixture(scope="module")
def splitter(minilm: Model) -> Splitter:
    return Splitter(minilm)


def test_a_text_in_segments(splitter: Splitter, minilm: Model):
    assert splitter.split_text(TEXT) == [RAIN, BANK, COOK]
    assert splitter.split_text(TEXT) == [part.text for part in headscope.segment(minilm, TEXT)]


@pytest.mark.parametrize("text", ["", " ", "\n\t\r\n"])
def test_an_empty_text_has_none(splitter: Splitter, text: str):
    assert splitter.split_text(text) == []
    assert splitter.create_documents([text]) == []
    assert splitter.split_documents([Document(text)]) == []


def test_granularity_is_passed_on(minilm: Model):
    assert len(Splitter(minilm, granularity=0.01).split_text(TEXT)) == 1
    with pytest.raises(StudyError, match="granularity is -1"):
        Splitter(minilm, granularity=-1).split_text(TEXT)


def test_documents_are_made(splitter: Splitter):
    metadata = [{"source": "a"}, {"source": "b"}]
    chunks = splitter.create_documents([TEXT, "Rain fell."], metadata)
    assert [chunk.page_content for chunk in chunks] == [RAIN, BANK, COOK, "Rain fell."]
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert [chunk.metadata["source"] for chunk in chunks] == ["a", "a", "a", "b"]
    assert [chunk.metadata["start_index"] for chunk in chunks] == [0, len(RAIN), len(RAIN + BANK), 0]
    assert metadata == [{"source": "a"}, {"source": "b"}]  # the input is unchanged
    assert [chunk.metadata for chunk in splitter.create_documents(["Rain fell."])] == [{"start_index": 0}]
    with pytest.raises(ValueError):
        splitter.create_documents([TEXT, TEXT], [{}])


@pytest.mark.parametrize(("kind", "name"), [(Document, "page_content"), (Page, "page_content"), (Node, "text")])
def test_documents_come_out_as_they_went_in(splitter: Splitter, kind: Any, name: str):
    documents = [kind(TEXT, {"page": 3}), kind("Rain fell.")]
    parts = splitter.split_documents(iter(documents))
    assert [type(part) for part in parts] == [kind] * 4
    assert [getattr(part, name) for part in parts] == [RAIN, BANK, COOK, "Rain fell."]
    assert [part.metadata.get("page") for part in parts] == [3, 3, 3, None]
    for part in parts[:3]:
        start = part.metadata["start_index"]
        assert TEXT[start : start + len(getattr(part, name))] == getattr(part, name)
    assert documents[0].metadata == {"page": 3}
    for split in (splitter.transform_documents, splitter, splitter.get_nodes_from_documents):
        assert split(documents) == parts
    assert splitter(documents, show_progress=True) == parts


def test_strings_and_documents_without_metadata(splitter: Splitter):
    assert splitter.split_documents([TEXT]) == [RAIN, BANK, COOK]
    (part,) = splitter.split_documents([Document("Rain fell.", None)])  # type: ignore[arg-type]
    assert part.metadata == {"start_index": 0}


@pytest.mark.parametrize("bad", [3, None, {"page_content": TEXT}, b"Rain", Document(None), Node(7)])  # type: ignore[arg-type]
def test_what_is_no_document_is_named(splitter: Splitter, bad: Any):
    with pytest.raises(CorpusError, match=f"a {type(bad).__name__} has no text: documents have `page_content` or"):
        splitter.split_documents([bad])


@pytest.mark.parametrize("limit", [1, 7, 40, 100, 250, 10_000])
def test_a_bound_on_characters(minilm: Model, limit: int):
    text = "  " + TEXT.replace(". ", ".\r\n") + "\n\n" + "x" * 60 + " \n"
    chunks = Splitter(minilm, max_characters=limit).create_documents([text])
    parts = [chunk.page_content for chunk in chunks]
    assert "".join(parts) == text
    assert all(0 < len(part) <= limit for part in parts)
    starts = [chunk.metadata["start_index"] for chunk in chunks]
    assert [text[a:b] for a, b in pairwise([*starts, len(text)])] == parts


def test_bounded_chunks_are_whole_sentences_as_many_as_fit(minilm: Model):
    bounded = Splitter(minilm, max_characters=120)
    parts = bounded.split_text(TEXT)
    assert len(parts) > 6
    assert all(part.strip().endswith(".") for part in parts)
    edges = headscope.segment(minilm, TEXT).edges.tolist()
    segments = {0, len(RAIN), len(RAIN + BANK)}
    start = 0
    for part in parts:
        end = start + len(part)
        assert end in edges
        if end not in segments and end != len(TEXT):  # one more would not have fitted
            assert edges[edges.index(end) + 1] - start > 120
        start = end
    assert {RAIN, BANK, COOK} & set(parts) == set()
    assert Splitter(minilm, max_characters=len(RAIN)).split_text(TEXT)[0] == RAIN


@pytest.mark.parametrize("limit", [0, -5])
def test_a_bound_that_is_none(minilm: Model, limit: int):
    with pytest.raises(CorpusError, match=f"max_characters is {limit}: it is a number of characters, 1 or more"):
        Splitter(minilm, max_characters=limit)


def test_a_model_is_loaded_by_name_once(minilm: Model, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    monkeypatch.setattr("headscope.model.loading.load", lambda name, **options: loaded.append(name) or minilm)
    named = Splitter()
    named.split_documents([Document(TEXT), Document("Rain fell.")])
    assert loaded == ["minilm"]

"""A corpus in shards, shards in portions: where they begin depends on the documents alone."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import shards
from headscope.corpus.document import Broken
from headscope.corpus.formats import Document
from headscope.corpus.shards import portions
from headscope.errors import CorpusError


def numbered(count: int, length: int = 1) -> list[tuple[int, Document]]:
    return [(0, Document("x" * length, str(k))) for k in range(count)]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 9), st.integers(1, 60))
@settings(deadline=None, derandomize=True)
def test_portions_are_cut_by_hand(lengths: list[int], most: int, characters: int):
    documents = [(0, Document("x" * length, str(k))) for k, length in enumerate(lengths)]
    expected: list[list[str]] = []
    left = (0, 0)
    for _, document in documents:
        if left[0] <= 0 or left[1] <= 0:
            expected.append([])
            left = (most, characters)
        expected[-1].append(document.name)
        left = (left[0] - 1, left[1] - len(document.text))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shards, "PORTION", most)
        made = [(portion.number, [d.name for _, d in portion]) for portion in portions(iter(documents), characters)]
    assert made == list(enumerate(expected))


def test_what_is_left_of_a_portion_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "PORTION", 4)
    firsts = [next(portion)[1].name for portion in portions(iter(numbered(10)), 100)]
    assert firsts == ["0", "4", "8"]
    assert list(portions(iter([]), 100)) == []


def sizes(folder: Path, *counts: int) -> list[str]:
    made = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.jsonl"
        path.write_text('{"text": "a"}\n' * count)  # fourteen bytes each
        made.append(str(path))
    return made


def test_small_files_make_one_shard_and_large_ones_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 70)
    corpus = headscope.documents(sizes(tmp_path, 1, 3, 1, 9, 0, 2, 2))
    names = [[Path(source.name).stem for source in shard.sources] for shard in corpus.shards]
    assert names == [["0", "1", "2"], ["3"], ["4", "5", "6"]]
    assert [(shard.number, shard.first) for shard in corpus.shards] == [(0, 0), (1, 3), (2, 4)]
    assert [number for shard in corpus.shards for number, _ in shard.documents()] == [0, 1, 1, 1, 2] + [3] * 9 + [
        5, 5, 6, 6,
    ]  # fmt: skip
    assert sum(1 for _ in corpus) == 18
    assert corpus.shards[0].name.endswith("0.jsonl and 2 more")


def test_a_limit_counts_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    corpus = headscope.documents(sizes(tmp_path, 3, 3, 3), limit=5)
    (shard,) = corpus.shards
    assert [number for number, _ in shard.documents()] == [0, 0, 0, 1, 1]


def test_of_very_many_small_files_one_account_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shards, "SINGLE", 3)
    for k in range(4):
        (tmp_path / f"{k}.txt").write_text(f"text {k}")
    (shard,) = headscope.documents(tmp_path).shards
    assert {number for number, _ in shard.documents()} == {0}
    (tmp_path / "3.txt").unlink()
    (shard,) = headscope.documents(tmp_path).shards
    assert {number for number, _ in shard.documents()} == {0, 1, 2}


@pytest.mark.parametrize("how", ["grows", "is written anew", "vanishes"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, how: str):
    (path,) = sizes(tmp_path, 5)
    (shard,) = headscope.documents(path).shards
    reading = shard.documents()
    next(reading)
    if how == "grows":
        with Path(path).open("a") as file:
            file.write('{"text": "more"}\n')
    elif how == "is written anew":
        Path(path).write_text('{"text": "other"}\n' * 5)
    else:
        Path(path).unlink()
    with pytest.raises(CorpusError, match=r"0\.jsonl"):
        list(reading)


def test_a_stamp_tells_whether_files_are_those_that_were_read(tmp_path: Path):
    made = sizes(tmp_path, 2, 2)
    (shard,) = headscope.documents(made).shards
    before = shard.stamp()
    assert before == shard.stamp() is not None
    Path(made[1]).write_text('{"text": "b"}\n' * 3)
    assert shard.stamp() != before
    os.utime(made[0], ns=(0, 2**62))
    assert shard.newest() == made[0]
    (given_here,) = headscope.corpus.documents.as_corpus(["a text"]).shards
    assert given_here.stamp() is None
    assert given_here.newest() == ""


def test_what_a_worker_says_of_a_broken_document_travels():
    error = pickle.loads(pickle.dumps(Broken("not JSON", "a.jsonl:3: not a JSON object")))
    assert (error.reason, str(error)) == ("not JSON", "a.jsonl:3: not a JSON object")

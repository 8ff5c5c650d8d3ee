"""Test chunks: every document is in exactly one, whatever the file contains and however large chunks are."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import chunks, lines, tables
from headscope.corpus.chunks import Chunk, ChunkSize
from headscope.corpus.document import BrokenDocumentError, Document
from headscope.corpus.documents import Corpus, as_corpus
from headscope.errors import CorpusError
from tests.helpers.document_formats import as_csv, as_jsonl, put
from tests.helpers.interrupting import write_parquet

LARGE = ChunkSize(10**9, 10**9)
SIZES = st.builds(ChunkSize, st.integers(1, 9), st.integers(1, 200))

# Contents of files of lines
ENDS = st.sampled_from(["\n", "\n", "\r\n"])
WORDS = st.sampled_from(
    ["", " ", "the cat", "é", "東京", "\u2028", "🐈" * 3, "x" * 70, "\u0085", "\x0b", "a\rb", "0" * 5000]
)
LINES = st.lists(st.tuples(WORDS, ENDS), max_size=25)


def join_lines(lines: list[tuple[str, str]], bom: bool, cut_end: bool) -> bytes:
    text = "".join(word + end for word, end in lines)
    return (("\ufeff" if bom else "") + (text.rstrip("\r\n") if cut_end else text)).encode()


def read(corpus: Corpus, size: ChunkSize) -> list[tuple[int, Document]]:
    return [item for chunk in corpus.plan_chunks(size) for item in corpus.read_chunk(chunk)]


def get_texts(items: list[tuple[int, Document]]) -> list[str]:
    return [document.text for _, document in items]


class CountingFile:
    """A file that counts the bytes read from it."""

    def __init__(self, stream: BinaryIO, counts: list[int]) -> None:
        self.stream, self.counts = stream, counts

    def read(self, size: int = -1) -> bytes:
        raw = self.stream.read(size)
        self.counts.append(len(raw))
        return raw

    def readinto(self, buffer: Any) -> int:
        count = self.stream.readinto(buffer)  # type: ignore[attr-defined]
        self.counts.append(count)
        return count

    def __getattr__(self, name: str) -> Any:
        if name == "read1":
            raise AttributeError(name)
        return getattr(self.stream, name)


@pytest.fixture(scope="module")
def bytes_read() -> Iterator[list[int]]:
    """Numbers of bytes returned by each read from files of lines."""
    counts, open_file = list[int](), lines.open_file

    @contextmanager
    def open_counting(path: str, **options: Any) -> Iterator[Any]:
        with open_file(path, **options) as stream:
            yield CountingFile(stream, counts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "open_file", open_counting)
        yield counts


@given(LINES, st.booleans(), st.booleans(), SIZES)
@example([("a", "\n")] * 9, False, False, ChunkSize(1, 2))
@example([("", "\n")] * 9, True, False, ChunkSize(1, 1))
@example([("x" * 5000, "\n"), ("y", "\r\n")], True, True, ChunkSize(1, 7))
@settings(max_examples=300)
def test_every_line_is_in_exactly_one_chunk(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[tuple[str, str]],
    bom: bool,
    cut_end: bool,
    size: ChunkSize,
):
    path = tmp_path_factory.getbasetemp() / "a.txt"
    path.write_bytes(join_lines(content, bom, cut_end))
    corpus = headscope.documents(path, format="lines")
    items = read(corpus, size)
    assert get_texts(items) == [document.text for document in corpus]
    assert {source for source, _ in items} <= {0}
    if path.stat().st_size > 2 * size.bytes:
        assert len(corpus.plan_chunks(size)) > 1


@given(LINES, st.booleans(), st.booleans(), SIZES)
@settings(max_examples=150)
def test_every_object_is_in_exactly_one_chunk(
    tmp_path_factory: pytest.TempPathFactory,
    content: list[tuple[str, str]],
    bom: bool,
    cut_end: bool,
    size: ChunkSize,
):
    path = tmp_path_factory.getbasetemp() / "a.jsonl"
    rows = [
        (json.dumps({"text": word}, ensure_ascii=k % 2 == 0) if k % 4 else "", end)
        for k, (word, end) in enumerate(content)
    ]
    path.write_bytes(join_lines(rows, bom, cut_end))
    corpus = headscope.documents(path)
    assert get_texts(read(corpus, size)) == [word for k, (word, _) in enumerate(content) if k % 4]


@given(
    length=st.integers(1, 2000),
    count=st.integers(0, 400),
    chunk_bytes=st.integers(5_000, 60_000),
    cut_end=st.booleans(),
    character=st.sampled_from("xé東"),
)
@settings(max_examples=60)
def test_of_other_chunks_only_what_completes_a_line_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    bytes_read: list[int],
    length: int,
    count: int,
    chunk_bytes: int,
    cut_end: bool,
    character: str,
):
    path = tmp_path_factory.getbasetemp() / "once.txt"
    text = "".join(f"{k} {character * (k * length // 400)}\n" for k in range(count))
    path.write_bytes((text[:-1] if cut_end else text).encode())
    corpus = headscope.documents(path, format="lines")
    planned = corpus.plan_chunks(ChunkSize(9, chunk_bytes))
    del bytes_read[:]
    texts = [document.text for chunk in planned for _, document in corpus.read_chunk(chunk)]
    total, overhead = sum(bytes_read), (len(planned) - 1) * (lines.TAIL + 1)
    assert texts == text.split("\n")[:-1]
    longest = max((len(line.encode()) for line in texts), default=0)
    assert path.stat().st_size <= total <= path.stat().st_size + overhead + len(planned) * longest


def test_all_chunks_together_read_a_file_of_lines_once(tmp_path: Path, bytes_read: list[int]):
    path = tmp_path / "a.jsonl"
    rows = (json.dumps({"text": f"{k} " + "the cat sat. " * (k % 60)}) for k in range(20_000))
    path.write_text("\n".join(rows), "utf-8")
    corpus = headscope.documents(path)
    planned = corpus.plan_chunks(ChunkSize(1024, 2**19))  # such as `choose_chunk_size` chooses for a small model
    assert len(planned) > 10
    del bytes_read[:]
    assert sum(1 for chunk in planned for _ in corpus.read_chunk(chunk)) == 20_000
    assert path.stat().st_size <= sum(bytes_read) <= 1.01 * path.stat().st_size


def test_a_line_longer_than_many_chunks_is_read_by_one_of_them(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("a\n" + "x" * 300_000 + "\nb\n", "utf-8")
    corpus = headscope.documents(path, format="lines")
    planned = corpus.plan_chunks(ChunkSize(9, 1000))
    assert len(planned) == 300
    lengths = [[len(document.text) for _, document in corpus.read_chunk(chunk)] for chunk in planned]
    assert lengths[0] == [1, 300_000]
    assert not any(lengths[1:-1])
    assert lengths[-1] == [1]


def test_a_limit_makes_one_chunk_and_counts_over_all_files(tmp_path: Path):
    corpus = headscope.documents(write_objects(tmp_path, 3, 3, 3), limit=5)
    (chunk,) = corpus.plan_chunks(ChunkSize(1, 1))
    assert [source for source, _ in corpus.read_chunk(chunk)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv"])
def test_what_is_read_from_its_beginning_is_one_chunk(tmp_path: Path, name: str):
    path = put(tmp_path / name, as_jsonl(["a"] * 99) if "json" in name else as_csv(["a"] * 99))
    corpus = headscope.documents(path)
    assert corpus.plan_chunks(ChunkSize(2, 10)) == [Chunk(0, 0, 1)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_lines_in_encodings_without_line_bytes_are_one_chunk(tmp_path: Path, encoding: str):
    path = put(tmp_path / "a.txt", "\n".join("abcdefg" * 30).encode(encoding))
    corpus = headscope.documents(path, format="lines", encoding=encoding)
    assert get_texts(read(corpus, ChunkSize(2, 10))) == list("abcdefg" * 30)
    assert len(corpus.plan_chunks(ChunkSize(2, 10))) == 1


def test_texts_given_in_python_are_one_chunk():
    corpus = as_corpus(["a", "b", "c"])
    assert corpus.plan_chunks(ChunkSize(1, 1)) == [Chunk(0, 0, 1)]
    assert get_texts(read(corpus, ChunkSize(1, 1))) == ["a", "b", "c"]


# Row groups


@given(st.lists(st.lists(WORDS, max_size=6), max_size=12), SIZES)
@settings(max_examples=60)
def test_every_row_is_in_exactly_one_chunk(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[str]], size: ChunkSize
):
    path = write_parquet(tmp_path_factory.getbasetemp() / "a.parquet", groups)
    corpus = headscope.documents(path)
    items = read(corpus, size)
    assert get_texts(items) == [text for texts in groups for text in texts]
    assert [document.name for _, document in items] == [document.name for document in corpus]
    for chunk in corpus.plan_chunks(size)[:-1]:
        assert sum(1 for _ in corpus.read_chunk(chunk)) >= size.documents


def test_all_chunks_together_read_a_parquet_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    groups = [["".join(map(chr, random.integers(97, 123, 2000))) for _ in range(300)] for _ in range(8)]
    path, counts, open_file = write_parquet(tmp_path / "a.parquet", groups), list[int](), tables.open_file

    @contextmanager
    def open_counting(path: str, **options: Any) -> Iterator[Any]:
        with open_file(path, read_ahead=False) as stream:
            yield CountingFile(stream, counts)

    monkeypatch.setattr(tables, "open_file", open_counting)
    corpus = headscope.documents(path)
    planned = corpus.plan_chunks(ChunkSize(300, 1000))
    assert len(planned) == 8
    footer = sum(counts)
    assert [sum(1 for _ in corpus.read_chunk(chunk)) for chunk in planned] == [300] * 8
    assert sum(counts) <= 1.01 * path.stat().st_size + 9 * footer


def test_a_footer_that_cannot_be_read_is_an_error_of_its_chunk(tmp_path: Path):
    paths = write_objects(tmp_path, 3, 3)
    broken = put(tmp_path / "b.parquet", b"PAR1" * 1000)
    corpus = headscope.documents([paths[0], broken, paths[1]])
    first, second, third = corpus.plan_chunks(ChunkSize(9, 100))
    assert len(list(corpus.read_chunk(first))) == len(list(corpus.read_chunk(third))) == 3
    with pytest.raises(CorpusError, match=r"b\.parquet: not readable as Parquet"):
        list(corpus.read_chunk(second))


# Many files


def write_objects(folder: Path, *counts: int) -> list[str]:
    """Write files of objects of 14 bytes."""
    paths = [folder / f"{number}.jsonl" for number in range(len(counts))]
    for path, count in zip(paths, counts, strict=True):
        path.write_text('{"text": "a"}\n' * count)
    return [str(path) for path in paths]


def test_small_files_make_one_chunk_and_large_ones_their_own(tmp_path: Path):
    corpus = headscope.documents(write_objects(tmp_path, 1, 3, 1, 9, 0, 2, 2))
    planned = corpus.plan_chunks(ChunkSize(5, 70))
    assert planned == [
        Chunk(0, 0, 3),
        Chunk(1, 3, 4, 0, 70),
        Chunk(2, 3, 4, 70, None),
        Chunk(3, 4, 7),
    ]
    numbers = [[source for source, _ in corpus.read_chunk(chunk)] for chunk in planned]
    assert numbers == [[0, 1, 1, 1, 2], [3] * 5, [3] * 4, [5, 5, 6, 6]]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=25), SIZES)
@settings(max_examples=60)
def test_every_document_of_many_files_is_in_exactly_one_chunk(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[int, bool]], size: ChunkSize
):
    folder = tmp_path_factory.mktemp("many")
    for number, (count, single) in enumerate(contents):
        text = "".join(f"{number} {k}\n" for k in range(count))
        rows = "".join(json.dumps({"text": line}) + "\n" for line in text.splitlines())
        put(folder / (f"{number:02}.txt" if single else f"{number:02}.jsonl"), text if single else rows)
    corpus = headscope.documents(folder)
    planned = corpus.plan_chunks(size)
    assert [chunk.number for chunk in planned] == list(range(len(planned)))
    assert get_texts(read(corpus, size)) == [document.text for document in corpus]
    for chunk in planned:
        documents = sum(1 if single else 0 for _, single in contents[chunk.first : chunk.after])
        assert documents <= size.documents


def test_many_small_files_make_one_chunk(tmp_path: Path):
    for k in range(100):
        put(tmp_path / f"{k:03}.txt", f"text {k}")
    corpus = headscope.documents(tmp_path)
    assert [(chunk.first, chunk.after) for chunk in corpus.plan_chunks(ChunkSize(40, 10**6))] == [
        (0, 40), (40, 80), (80, 100),
    ]  # fmt: skip


def test_of_very_many_single_files_one_account_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunks, "MAX_TRACKED_FILES", 3)
    for k in range(4):
        put(tmp_path / f"{k}.txt", f"text {k}")
    assert {source for source, _ in read(headscope.documents(tmp_path), LARGE)} == {0}
    (tmp_path / "3.txt").unlink()
    assert {source for source, _ in read(headscope.documents(tmp_path), LARGE)} == {0, 1, 2}


# Files that change


CHANGES: dict[str, Callable[[Path], None]] = {
    "grows": lambda path: path.write_bytes(path.read_bytes() + b'{"text": "more"}\n'),
    "shrinks": lambda path: path.write_bytes(path.read_bytes()[:-14]),
    "is written again": lambda path: path.write_bytes(path.read_bytes()),
    "is replaced": lambda path: os.replace(put(path.with_suffix(".new"), path.read_bytes()), path),
    "vanishes": lambda path: path.unlink(),
}


@pytest.mark.parametrize("limit", [None, 2, 5])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, change: str, limit: int | None):
    (name,) = write_objects(tmp_path, 5)
    os.utime(name, ns=(0, 10**18))
    corpus = headscope.documents(name, limit=limit)
    (chunk,) = corpus.plan_chunks(LARGE)
    reading = corpus.read_chunk(chunk)
    next(reading)
    CHANGES[change](Path(name))
    with pytest.raises(CorpusError, match=r"0\.jsonl"):
        list(reading)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_since_it_was_listed_is_named(tmp_path: Path, change: str):
    first, second = write_objects(tmp_path, 5, 5)
    os.utime(second, ns=(0, 10**18))
    corpus = headscope.documents([first, second])
    planned = corpus.plan_chunks(ChunkSize(2, 28))
    CHANGES[change](Path(second))
    for chunk in planned:
        if chunk.first == 0:
            list(corpus.read_chunk(chunk))
        else:
            with pytest.raises(CorpusError, match=r"1\.jsonl"):
                list(corpus.read_chunk(chunk))


def test_errors_and_sources_can_be_sent_to_workers(tmp_path: Path):
    error = pickle.loads(pickle.dumps(BrokenDocumentError("not JSON", "a.jsonl:3: not a JSON object")))
    assert (error.reason, str(error)) == ("not JSON", "a.jsonl:3: not a JSON object")
    corpus = headscope.documents(write_objects(tmp_path, 5, 2))
    planned = corpus.plan_chunks(ChunkSize(2, 28))
    sent, chunks_sent = pickle.loads(pickle.dumps((corpus, planned)))
    assert [list(sent.read_chunk(chunk)) for chunk in chunks_sent] == [list(corpus.read_chunk(c)) for c in planned]

"""Test document sources (folders, globs, standard input, hub datasets, examples, Python) and counting documents."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.corpus.documents import Document, as_corpus, documents
from headscope.errors import CorpusError
from tests.helpers.document_formats import TABLES, TEXTS, as_jsonl, get_error, names_of, put, texts_of


def set_stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(raw))))  # type: ignore[type-var]


# Folders, globs, several sources


def test_folders_are_read_whole_sorted_and_without_hidden_files(tmp_path: Path):
    for name in ["b.txt", "a/z.txt", "a/b/deep.md", ".hidden.txt", ".git/x.txt", "a/.cache/y.txt", "c.bin", "Makefile"]:
        put(tmp_path / name, name)
    put(tmp_path / "a.jsonl.gz", as_jsonl(["line 1", "line 2"]))
    corpus = documents(tmp_path)
    assert texts_of(corpus) == ["line 1", "line 2", "a/b/deep.md", "a/z.txt", "b.txt"]
    assert corpus.name == str(tmp_path)


def test_a_folder_under_a_hidden_one_is_read(tmp_path: Path):
    put(tmp_path / ".data" / "a.txt", "a")
    assert texts_of(documents(tmp_path / ".data")) == ["a"]


def test_globs(tmp_path: Path):
    for name in ["b.txt", "a.txt", "in/c.txt", "in/deep/d.txt", "in/e.md", "in/.f.txt"]:
        put(tmp_path / name, name)
    assert texts_of(documents(f"{tmp_path}/*.txt")) == ["a.txt", "b.txt"]
    assert texts_of(documents(f"{tmp_path}/**/*.txt")) == ["a.txt", "b.txt", "in/c.txt", "in/deep/d.txt"]
    assert texts_of(documents(f"{tmp_path}/in/*")) == ["in/c.txt", "in/e.md"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path):
    assert texts_of(documents(put(tmp_path / "a[1]?.txt", "here"))) == ["here"]


def test_sources_in_the_order_given(tmp_path: Path):
    first, second = put(tmp_path / "2.txt", "two"), put(tmp_path / "1.jsonl", as_jsonl(["one"]))
    corpus = documents([first, str(second), "example:gerstenslager"])
    assert texts_of(corpus) == ["two", "one", headscope.examples()["gerstenslager"]]
    assert corpus.name == f"{first} {second} example:gerstenslager"
    assert corpus.notes == ()


def test_file_names_that_are_no_unicode(tmp_path: Path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        with open(raw, "w") as stream:
            stream.write("a")
    except OSError:
        pytest.skip("this file system takes no such name")
    for corpus in (documents(tmp_path), documents(os.fsdecode(raw))):
        (document,) = corpus
        assert document.text == "a"
        assert "\ufffd" in document.name
        f"{document.name} {corpus.name}".encode()


# Counting, limiting, reading again


@pytest.mark.parametrize("kind", [*TABLES, "txt"])
def test_reading_again_gives_the_same(tmp_path: Path, kind: str):
    for k in range(3):
        content = TABLES[kind](TEXTS) if kind in TABLES else f"text {k}"
        put(tmp_path / f"{k}.{kind}", content)
    corpus = documents(tmp_path)
    first = list(corpus)
    assert len(first) == (3 if kind == "txt" else 15)
    assert list(corpus) == first
    assert corpus.rereadable


def test_limit(tmp_path: Path):
    path = put(tmp_path / "a.jsonl", as_jsonl(TEXTS) + b"broken")
    assert texts_of(documents(path, limit=2)) == TEXTS[:2]
    assert texts_of(documents([path, path], limit=5)) == TEXTS
    assert len(texts_of(documents(put(tmp_path / "b.txt", "b"), limit=7))) == 1
    assert names_of(documents(limit=3)) == ["openings:1", "openings:2", "openings:3"]


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one(limit: int):
    with pytest.raises(CorpusError, match=f"limit is {limit}: ask for at least one"):
        documents(limit=limit)


def test_a_limit_beyond_what_can_be_counted(tmp_path: Path):
    path = put(tmp_path / "a.jsonl", as_jsonl(TEXTS))
    assert texts_of(documents(path, limit=10**30)) == TEXTS
    corpus = documents(limit=10**30)
    assert corpus.measure(64) == (64, 0.0)
    assert len(list(corpus.read_chunk(*corpus.plan_chunks(ChunkSize(8, 1000))))) == 64


def test_measure(tmp_path: Path):
    jsonl, text = put(tmp_path / "a.jsonl", as_jsonl(TEXTS)), put(tmp_path / "b.txt", "b")
    lengths = [len(line.encode()) for line in TEXTS]
    assert documents(jsonl).measure(5) == (5, sum(lengths) / 5)
    assert documents(jsonl).measure(4) == (None, sum(lengths) / 5)
    assert documents(jsonl).measure(1) == (None, sum(lengths[:2]) / 2)
    assert documents(jsonl, limit=3).measure(4) == (3, sum(lengths[:3]) / 3)
    assert documents([text, jsonl]).measure(10) == (6, (1 + sum(lengths)) / 6)
    assert documents(put(tmp_path / "c.jsonl", "")).measure(5) == (0, 0.0)
    # Where the number is known, nothing is looked at.
    assert documents([text, "example:gerstenslager"]).measure(2) == (2, 0.0)
    assert documents([text, "example:gerstenslager"], limit=1).measure(1) == (1, 0.0)
    assert documents([text, "example:gerstenslager"]).measure(1) == (None, 0.0)
    assert documents(text, format="lines").size is None
    assert documents().measure(64) == (64, 0.0)
    assert documents().measure(63) == (None, 0.0)


def test_known_sizes_are_not_read(tmp_path: Path):
    first, second = put(tmp_path / "a.txt", "a"), put(tmp_path / "b.txt", "b")
    corpus = documents([first, second])
    first.unlink()
    assert corpus.measure(5) == (2, 0.0)


def test_pipes_are_not_counted(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    corpus = documents(pipe, format="jsonl")
    assert not corpus.rereadable
    assert not corpus.is_readable_elsewhere
    assert corpus.measure(10) == (None, 0.0)
    (source,) = corpus.sources
    assert (source.path, source.stamp, source.is_splittable) == ("", None, False)


# Files that are given more than once


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("a", "b", "c"):
        put(tmp_path / "in" / f"{name}.txt", name)
    monkeypatch.chdir(tmp_path)
    corpus = documents(["in/b.txt", "in", tmp_path / "in" / "a.txt", "./in/../in/*.txt"])
    assert texts_of(corpus) == ["b", "a", "c"]
    assert corpus.notes == ("3 files are given more than once (the first: in/b.txt): each is read once",)
    assert corpus.size == 3
    corpus = documents(["in/b.txt", "in/b.txt", "in/b.txt"])
    assert texts_of(corpus) == ["b"]
    assert corpus.notes == ("in/b.txt is given more than once: it is read once",)
    assert documents("in").notes == ()


def test_streams_that_are_given_twice_are_read_once(monkeypatch: pytest.MonkeyPatch):
    set_stdin(monkeypatch, b"one")
    corpus = documents(["-", "example:gerstenslager", "-", "example:gerstenslager"])
    assert [document.name for document in corpus] == ["standard input", "example:gerstenslager"]
    assert len(corpus.notes) == 1


def test_links_to_files_are_read_once(tmp_path: Path):
    put(tmp_path / "texts" / "b.txt", "b")
    (tmp_path / "texts" / "a.txt").symlink_to("b.txt")
    (tmp_path / "texts" / "broken.txt").symlink_to("nowhere.txt")
    (tmp_path / "texts" / "itself.txt").symlink_to("itself.txt")
    put(tmp_path / "other" / "c.txt", "c")
    (tmp_path / "texts" / "d.txt").symlink_to(tmp_path / "other" / "c.txt")
    for source in (tmp_path / "texts", f"{tmp_path}/texts/*.txt", f"{tmp_path}/**/[abd].txt"):
        corpus = documents(source)
        assert [Path(name).name for name in names_of(corpus)] == ["a.txt", "d.txt"]
        assert corpus.notes == (f"{tmp_path}/texts/a.txt is given more than once: it is read once",)


def test_hard_links_and_file_urls_are_read_once(tmp_path: Path):
    put(tmp_path / "texts" / "a.txt", "a")
    os.link(tmp_path / "texts" / "a.txt", tmp_path / "texts" / "b.txt")
    url = (tmp_path / "texts" / "a.txt").as_uri()
    sources = [tmp_path / "texts", url, url.replace("/texts/", "/texts/../texts/"), tmp_path / "texts" / "b.txt"]
    corpus = documents(sources)
    assert texts_of(corpus) == ["a"]
    assert corpus.notes == (f"{tmp_path}/texts/a.txt is given more than once: it is read once",)


def test_results_in_a_folder_are_no_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`headscope study .` writes into a folder below the one that it reads."""
    put(tmp_path / "a.txt", "a")
    put(tmp_path / "study" / "findings.md", "twelve claims")
    put(tmp_path / "study" / "figures" / "a.csv", "1")
    (tmp_path / "study" / "study.nc").write_bytes(b"")
    for source, name in ((tmp_path, f"{tmp_path}/study/"), (tmp_path.as_uri(), f"{tmp_path.as_uri()}/study/")):
        corpus = documents(source)
        assert texts_of(corpus) == ["a"]
        assert corpus.notes == (f"{name} holds results of headscope, which are left out",)
    assert "twelve claims" in texts_of(documents(tmp_path / "study", format="lines"))  # who names it, means it


def test_links_in_a_loop(tmp_path: Path):
    root = tmp_path / "texts"
    put(root / "a.txt", "a")
    put(root / "in" / "b.txt", "b")
    for folder in (root, root / "in"):
        for number in range(3):  # so many ways to go round that no walk would end
            (folder / f"around{number}").symlink_to(root)
        (folder / "up").symlink_to(tmp_path)
        (folder / "everything").symlink_to("/")
    for source in (root, f"{root}/**/*.txt", f"{root}/**"):
        corpus = documents(source)
        assert names_of(corpus) == [f"{root}/a.txt", f"{root}/in/b.txt"]
        assert corpus.notes == ()


def test_links_to_folders_elsewhere_are_followed(tmp_path: Path):
    put(tmp_path / "disk" / "part" / "a.txt", "a")
    put(tmp_path / "texts" / "z.txt", "z")
    put(tmp_path / "texts" / "real" / "b.txt", "b")
    (tmp_path / "texts" / "linked").symlink_to(tmp_path / "disk")
    (tmp_path / "texts" / "again").symlink_to(tmp_path / "disk")
    (tmp_path / "texts" / "alias").symlink_to("real")  # which is read under its own name
    (tmp_path / "disk" / "back").symlink_to(tmp_path / "texts")
    for source in (tmp_path / "texts", f"{tmp_path}/texts/**/*.txt"):
        assert [Path(name).relative_to(tmp_path).as_posix() for name in names_of(documents(source))] == [
            "texts/again/part/a.txt",
            "texts/real/b.txt",
            "texts/z.txt",
        ]


# Devices and pipes


@pytest.mark.parametrize("skip_broken", [False, True])
def test_devices_are_refused_at_once(tmp_path: Path, skip_broken: bool):
    (tmp_path / "zeros.jsonl").symlink_to("/dev/zero")
    for source in ("/dev/zero", str(tmp_path / "zeros.jsonl"), "file:///dev/zero"):
        with pytest.raises(CorpusError, match=f"^{source}: a device, not a file with documents"):
            documents(source, format="lines", skip_broken=skip_broken)
    with pytest.raises(CorpusError, match="no file in this folder"):
        documents(tmp_path, skip_broken=skip_broken)


def test_what_a_process_has_open_is_read_as_a_pipe(tmp_path: Path):
    reading, writing = os.pipe()
    os.write(writing, as_jsonl(TEXTS))
    os.close(writing)
    try:
        corpus = documents(f"/dev/fd/{reading}", format="jsonl")
        assert not corpus.rereadable
        assert not corpus.is_readable_elsewhere
        assert texts_of(corpus) == TEXTS
    finally:
        os.close(reading)
    with open(put(tmp_path / "a.jsonl", as_jsonl(TEXTS))) as opened:  # as `<<<` gives in some shells
        corpus = documents(f"/dev/fd/{opened.fileno()}", format="jsonl")
        assert not corpus.rereadable
        assert not corpus.is_readable_elsewhere
        assert corpus.sources[0].stamp is None
        assert texts_of(corpus) == TEXTS


def test_standard_input_by_its_name():
    program = (
        "from headscope.corpus.documents import documents; "
        "corpus = documents('/dev/stdin', format='jsonl'); "
        "print(corpus.rereadable, corpus.is_readable_elsewhere, [document.text for document in corpus])"
    )
    for standard_input, expected in ((b'{"text": "a"}', "False False ['a']"), (None, "False False []")):
        ran = subprocess.run(
            [sys.executable, "-c", program],
            **({"stdin": subprocess.DEVNULL} if standard_input is None else {"input": standard_input}),
            capture_output=True,
            check=True,
        )
        assert ran.stdout.decode().strip() == expected


# Sources travel to other processes


def test_sources_pickle_small(tmp_path: Path):
    for number in range(1000):
        put(tmp_path / f"{number:04}.jsonl", f'{{"text": "{number}"}}\n')
    corpus = documents(tmp_path)
    pickled = pickle.dumps(corpus)
    assert len(pickled) < 300 * 1000
    assert texts_of(pickle.loads(pickled)) == [str(number) for number in range(1000)]
    for again in (documents(limit=3), as_corpus(["a", "b"])):
        assert list(pickle.loads(pickle.dumps(again))) == list(again)


# Standard input


def test_standard_input_as_text(monkeypatch: pytest.MonkeyPatch):
    set_stdin(monkeypatch, b"A text.\nOf two lines.\n")
    corpus = documents("-")
    assert corpus.measure(10) == (None, 0.0)
    assert list(corpus) == [Document("A text.\nOf two lines.\n", "standard input")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_as_jsonl(monkeypatch: pytest.MonkeyPatch, encoding: str):
    set_stdin(monkeypatch, as_jsonl(TEXTS, encoding=encoding))
    assert texts_of(documents("-", encoding=encoding)) == TEXTS


def test_standard_input_as_jsonl_after_a_mark_and_a_blank_line(monkeypatch: pytest.MonkeyPatch):
    set_stdin(monkeypatch, b"\xef\xbb\xbf \n" + as_jsonl(TEXTS))
    assert texts_of(documents("-")) == TEXTS


def test_standard_input_as_lines_or_said_otherwise(monkeypatch: pytest.MonkeyPatch):
    set_stdin(monkeypatch, b"one\ntwo\n")
    assert [(d.text, d.name) for d in documents("-", format="lines")] == [
        ("one", "standard input:1"),
        ("two", "standard input:2"),
    ]
    set_stdin(monkeypatch, b"{braces} in a text")
    assert texts_of(documents("-", format="text")) == ["{braces} in a text"]
    set_stdin(monkeypatch, b'"no object"')
    assert "standard input:1: expected a JSON object" in get_error(lambda: documents("-", format="jsonl"))


def test_standard_input_gone_wrong(monkeypatch: pytest.MonkeyPatch):
    set_stdin(monkeypatch, b"PAR1")
    message = get_error(lambda: documents("-", format="parquet"))
    assert "standard input is read as text, lines, jsonl or conllu" in message
    set_stdin(monkeypatch, as_jsonl(["good"]) + b"{\n")
    assert "standard input:2: not a JSON object" in get_error(lambda: documents("-"), good=1)
    set_stdin(monkeypatch, b"caf\xe9")
    assert "standard input: not utf-8 text (byte 0xe9 at position 3)" in get_error(lambda: documents("-"))
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in get_error(lambda: documents("-"))


# Hub datasets and examples


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    pytest.importorskip("datasets")
    put(tmp_path / "a.jsonl", as_jsonl(["one", "two"]))
    put(tmp_path / "b.jsonl", as_jsonl(["three"]))
    return f"hf:{tmp_path}"


def test_hub_dataset(dataset: str):
    corpus = documents(dataset)
    assert texts_of(corpus) == ["one", "two", "three"]
    assert texts_of(documents(f"{dataset}@train", limit=1)) == ["one"]
    assert names_of(corpus)[2] == f"{dataset}, row 3"
    # Counting would fetch them twice.
    assert corpus.measure(5) == (None, 0.0)


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ("{}@nosuch", "text", ["nosuch", "datasets could not read it", "train"]),
        ("{}", "body", ["no field 'body'", "id, text", "--field"]),
        ("{}", "id", ["row 1", "field 'id' holds int"]),
        ("{}/nowhere", "text", ["nowhere", "datasets could not read it"]),
        ("hf:", "text", ["names no dataset"]),
    ],
)
def test_hub_dataset_gone_wrong(dataset: str, source: str, field: str, words: list[str]):
    message = get_error(lambda: documents(source.format(dataset), field=field))
    assert all(word in message for word in words), message


def test_hub_dataset_without_datasets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = get_error(lambda: documents("hf:some/corpus"))
    assert message == "hf:some/corpus: reading hub datasets needs the extra: pip install 'headscope[datasets]'"


def test_examples():
    assert list(documents("example:airport-policing")) == [
        Document(headscope.examples()["airport-policing"], "example:airport-policing")
    ]
    message = get_error(lambda: documents("example:nosuch"))
    assert message == "example:nosuch: no such example; there are: airport-policing, gerstenslager"


# Texts given in Python


def test_iterables_of_anything():
    items = ["a", {"text": "b", "id": 1}, Document("c", "mine")]
    for texts in (items, tuple(items), iter(items), (text for text in items), dict(enumerate(items)).values()):
        assert list(as_corpus(texts)) == [Document("a", "text 1"), Document("b", "text 2"), Document("c", "mine")]


def test_what_can_be_counted():
    assert as_corpus(["a", "b"]).measure(2) == (2, 0.0)
    assert as_corpus(np.array(["a", "b"])).measure(2) == (2, 0.0)
    assert as_corpus(["a", "b"]).measure(1) == (None, 0.0)
    drawn: list[str] = []

    def yield_texts() -> Iterator[str]:
        drawn.append("a")
        yield "a"

    assert as_corpus(yield_texts()).measure(10) == (None, 0.0)
    assert drawn == []


def test_sources_and_corpora_pass_through(tmp_path: Path):
    corpus = documents(limit=2)
    assert as_corpus(corpus) is corpus
    assert texts_of(as_corpus(put(tmp_path / "a.txt", "a"))) == ["a"]
    assert as_corpus(None).measure(64) == (64, 0.0)
    assert texts_of(as_corpus([])) == []


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["good", 3], ["document 2 is int", "give strings"]),
        (["good", {"body": "x"}], ["document 2 is dict", "'text'"]),
        (["good", None], ["document 2 is NoneType"]),
    ],
)
def test_what_is_no_text(texts: list[Any], words: list[str]):
    message = get_error(lambda: as_corpus(texts), good=1)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("texts", [{"text": "a"}, 42, Document("a", "b")])
def test_what_is_no_list(texts: Any):
    with pytest.raises(CorpusError, match=f"documents are given as {type(texts).__name__}: give a list"):
        as_corpus(texts)


def test_names_of_files_are_no_texts():
    with pytest.raises(CorpusError, match=r"names of files \('a.txt', …\): open the files with headscope.documents"):
        as_corpus(["a.txt", "b.jsonl.gz"])
    assert as_corpus(["a.txt", "Two ravens met."]).size == 2
    assert [document.text for document in as_corpus([{"text": "a.txt"}])] == ["a.txt"]

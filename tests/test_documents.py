"""Documents: whatever texts are stored in, they come out whole and in order, or an error says where and why not."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus.documents import Corpus, Document, as_corpus, documents
from headscope.errors import CorpusError
from headscope.model.model import Model

TEXTS = ["Two ravens met.", 'She said "no",\nand left.', "", "Zwölf Boxkämpfer, 3.5 €", "\ttabs\tand, commas\r\nlast"]


def as_jsonl(texts: list[str], field: str = "text", encoding: str = "utf-8") -> bytes:
    rows = ({"id": k, field: text} for k, text in enumerate(texts))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def as_csv(texts: list[str], field: str = "text", delimiter: str = ",", encoding: str = "utf-8") -> bytes:
    table = io.StringIO(newline="")
    csv.writer(table, delimiter=delimiter).writerows([["id", field], *([k, text] for k, text in enumerate(texts))])
    return table.getvalue().encode(encoding)


def as_parquet(texts: list[str], field: str = "text") -> bytes:
    columns = {"id": pa.array(range(len(texts)), pa.int64()), field: pa.array(texts, pa.string())}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=2)
    return buffer.getvalue()


TABLES: dict[str, Callable[..., bytes]] = {
    "jsonl": as_jsonl,
    "ndjson": as_jsonl,
    "csv": as_csv,
    "tsv": lambda texts, field="text": as_csv(texts, field, "\t"),
    "parquet": as_parquet,
}


def texts_of(corpus: Corpus) -> list[str]:
    return [document.text for document in corpus]


def names_of(corpus: Corpus) -> list[str]:
    return [document.name for document in corpus]


def put(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix.lower() == ".gz" else raw)
    return path


def give_stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(raw))))  # type: ignore[type-var]


def error_of(corpus: Callable[[], Corpus], good: int = 0) -> str:
    """The message of the CorpusError that comes after so many good documents."""
    read = 0
    with pytest.raises(CorpusError) as caught:  # noqa: PT012
        for _ in corpus():
            read += 1
    assert read == good
    return str(caught.value)


# Files, each format


@pytest.mark.parametrize("ending", ["", ".gz", ".GZ"])
@pytest.mark.parametrize("kind", TABLES)
def test_tables_read_back(tmp_path: Path, kind: str, ending: str):
    path = put(tmp_path / f"texts.{kind}{ending}", TABLES[kind](TEXTS))
    corpus = documents(path)
    assert texts_of(corpus) == TEXTS
    assert all(name.startswith(f"{path}:") for name in names_of(corpus))
    assert len(set(names_of(corpus))) == len(TEXTS)


@pytest.mark.parametrize("kind", TABLES)
def test_another_field(tmp_path: Path, kind: str):
    path = put(tmp_path / f"texts.{kind}", TABLES[kind](TEXTS, field="body"))
    assert texts_of(documents(path, field="body")) == TEXTS


@pytest.mark.parametrize("ending", [".txt", ".text", ".md", ".txt.gz", ".log", ""])
def test_a_text_file_is_one_document(tmp_path: Path, ending: str):
    path = put(tmp_path / f"book{ending}", "First line.\r\n\nLast line.\n")
    assert list(documents(path)) == [Document("First line.\r\n\nLast line.\n", str(path))]


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_lines_are_documents(tmp_path: Path, ending: str):
    path = put(tmp_path / f"lines{ending}", "one \n\nthree\x85\u2028still\r\n\ufefffour")
    corpus = documents(path, format="lines")
    assert texts_of(corpus) == ["one ", "", "three\x85\u2028still", "\ufefffour"]
    assert names_of(corpus)[3] == f"{path}:4"


def test_names_say_the_line(tmp_path: Path):
    jsonl = put(tmp_path / "a.jsonl", '{"text": "a"}\n\n   \n{"text": "b"}')
    assert [(d.text, d.name) for d in documents(jsonl)] == [("a", f"{jsonl}:1"), ("b", f"{jsonl}:4")]
    table = put(tmp_path / "a.csv", 'text\na\n"b\nc"\nd\n')
    assert names_of(documents(table)) == [f"{table}:2", f"{table}:4", f"{table}:5"]


def test_csv_with_huge_cells(tmp_path: Path):
    huge = 'word "quoted", and\n' * 20_000
    path = put(tmp_path / "huge.csv", as_csv(["before", huge, "after"]))
    assert texts_of(documents(path)) == ["before", huge, "after"]


def test_csv_with_carriage_returns_alone(tmp_path: Path):
    path = put(tmp_path / "old.csv", 'id,text\r1,"a\rb"\r2,c\r')
    assert texts_of(documents(path)) == ["a\rb", "c"]


def test_csv_ragged_rows_and_empty_tables(tmp_path: Path):
    assert texts_of(documents(put(tmp_path / "a.csv", "id,text\n1\n2,b,more\n"))) == ["", "b"]
    assert texts_of(documents(put(tmp_path / "b.csv", ""))) == []
    assert texts_of(documents(put(tmp_path / "c.csv", "id,text\n"))) == []


@pytest.mark.parametrize("name", ["x.TSV", "x.tsv.gz", "X.Tsv.GZ"])
def test_tsv_in_any_case(tmp_path: Path, name: str):
    assert texts_of(documents(put(tmp_path / name, "id\ttext\n1\ta, b\n"))) == ["a, b"]


def test_an_earlier_ending_says_nothing(tmp_path: Path):
    assert texts_of(documents(put(tmp_path / "x.tsv.csv", "id,text\n1,a\tb\n"))) == ["a\tb"]


def test_missing_values_are_empty_texts(tmp_path: Path):
    assert texts_of(documents(put(tmp_path / "a.jsonl", '{"text": null}\n{"text": "b"}\n'))) == ["", "b"]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array([None, "b"])}), buffer)
    assert texts_of(documents(put(tmp_path / "a.parquet", buffer.getvalue()))) == ["", "b"]


def test_parquet_columns_whose_names_begin_alike(tmp_path: Path):
    table = pa.table({"text.more": ["wrong"], "text": ["right"], "a.b": ["dotted"]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert texts_of(documents(tmp_path / "a.parquet")) == ["right"]
    assert texts_of(documents(tmp_path / "a.parquet", field="a.b")) == ["dotted"]


def test_parquet_in_many_batches(tmp_path: Path):
    texts = [f"text {k}" for k in range(3000)]
    kinds = pa.table({"text": pa.array(texts).dictionary_encode(), "long": pa.array(texts, pa.large_string())})
    pq.write_table(kinds, tmp_path / "a.parquet")
    assert texts_of(documents(tmp_path / "a.parquet")) == texts
    assert texts_of(documents(tmp_path / "a.parquet", field="long")) == texts


# Encodings


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "lines"])
@pytest.mark.parametrize(
    "encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp037"]
)
def test_encodings(tmp_path: Path, kind: str, encoding: str):
    # "Ċ" is 0x010A, a byte of which looks like a line end.
    texts = ["Zwölf", "Ċċ" if encoding.lower().startswith("utf") else "é", "öff"]
    written = {"jsonl": as_jsonl, "csv": as_csv}.get(kind, lambda t, encoding: "\n".join(t).encode(encoding))
    path = put(tmp_path / f"a.{kind}", written(texts, encoding=encoding))
    corpus = documents(path, encoding=encoding, format=kind if kind == "lines" else "auto")
    assert texts_of(corpus) == (["\n".join(texts)] if kind == "txt" else texts)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, kind: str):
    content = {"txt": "a", "jsonl": '{"text": "a"}', "csv": "text\na\n"}[kind]
    path = put(tmp_path / f"a.{kind}", content.encode("utf-8-sig"))
    assert texts_of(documents(path)) == ["a"]


@pytest.mark.parametrize("encoding", ["nosuch", "", "hex", "rot13", "undefined", "a\0b"])
def test_unknown_encoding(encoding: str):
    with pytest.raises(CorpusError, match=r"unknown encoding .*; for instance utf-8"):
        documents(encoding=encoding)


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
    two, one = put(tmp_path / "2.txt", "two"), put(tmp_path / "1.jsonl", as_jsonl(["one"]))
    corpus = documents([two, str(one), "example:gerstenslager", two])
    assert texts_of(corpus) == ["two", "one", headscope.examples()["gerstenslager"], "two"]
    assert corpus.name == f"{two} {one} example:gerstenslager {two}"


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


def test_count(tmp_path: Path):
    jsonl, text = put(tmp_path / "a.jsonl", as_jsonl(TEXTS)), put(tmp_path / "b.txt", "b")
    assert documents(jsonl).count(5) == 5
    assert documents(jsonl).count(4) is None
    assert documents(jsonl, limit=3).count(4) == 3
    assert documents([text, text, "example:gerstenslager"]).count(3) == 3
    assert documents([text, text], limit=1).count(1) == 1
    assert documents([text, text]).count(1) is None
    assert documents([text, jsonl]).count(10) == 6
    assert documents(text, format="lines").size is None
    assert documents().count(64) == 64
    assert documents().count(63) is None


def test_known_sizes_are_not_read(tmp_path: Path):
    path = put(tmp_path / "a.txt", "a")
    corpus = documents([path, path])
    path.unlink()
    assert corpus.count(5) == 2


def test_pipes_are_not_counted(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    corpus = documents(pipe, format="jsonl")
    assert not corpus.rereadable
    assert corpus.count(10) is None


# Standard input


def test_standard_input_as_text(monkeypatch: pytest.MonkeyPatch):
    give_stdin(monkeypatch, b"A text.\nOf two lines.\n")
    corpus = documents("-")
    assert corpus.count(10) is None
    assert list(corpus) == [Document("A text.\nOf two lines.\n", "standard input")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_standard_input_as_jsonl(monkeypatch: pytest.MonkeyPatch, encoding: str):
    give_stdin(monkeypatch, as_jsonl(TEXTS, encoding=encoding))
    assert texts_of(documents("-", encoding=encoding)) == TEXTS


def test_standard_input_as_jsonl_after_a_mark_and_a_blank_line(monkeypatch: pytest.MonkeyPatch):
    give_stdin(monkeypatch, b"\xef\xbb\xbf \n" + as_jsonl(TEXTS))
    assert texts_of(documents("-")) == TEXTS


def test_standard_input_as_lines_or_said_otherwise(monkeypatch: pytest.MonkeyPatch):
    give_stdin(monkeypatch, b"one\ntwo\n")
    assert [(d.text, d.name) for d in documents("-", format="lines")] == [
        ("one", "standard input:1"),
        ("two", "standard input:2"),
    ]
    give_stdin(monkeypatch, b"{braces} in a text")
    assert texts_of(documents("-", format="text")) == ["{braces} in a text"]
    give_stdin(monkeypatch, b'"no object"')
    assert "standard input:1: expected a JSON object" in error_of(lambda: documents("-", format="jsonl"))


def test_standard_input_gone_wrong(monkeypatch: pytest.MonkeyPatch):
    give_stdin(monkeypatch, b"PAR1")
    assert "standard input is read as text, lines or jsonl" in error_of(lambda: documents("-", format="parquet"))
    give_stdin(monkeypatch, as_jsonl(["good"]) + b"{\n")
    assert "standard input:2: not a JSON object" in error_of(lambda: documents("-"), good=1)
    give_stdin(monkeypatch, b"caf\xe9")
    assert "standard input: not utf-8 text (byte 0xe9 at position 3)" in error_of(lambda: documents("-"))
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in error_of(lambda: documents("-"))


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
    # Counting would fetch them twice; a limit says enough.
    assert corpus.count(5) is None
    assert not corpus.known_to_hold(5)
    assert documents(dataset, limit=5).known_to_hold(5)


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
    message = error_of(lambda: documents(source.format(dataset), field=field))
    assert all(word in message for word in words), message


def test_hub_dataset_without_datasets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = error_of(lambda: documents("hf:some/corpus"))
    assert message == "hf:some/corpus: reading hub datasets needs the extra: pip install 'headscope[datasets]'"


def test_examples():
    assert list(documents("example:airport-policing")) == [
        Document(headscope.examples()["airport-policing"], "example:airport-policing")
    ]
    message = error_of(lambda: documents("example:nosuch"))
    assert message == "example:nosuch: no such example; there are: airport-policing, gerstenslager"


# Texts given in Python


def test_iterables_of_anything():
    given = ["a", {"text": "b", "id": 1}, Document("c", "mine")]
    for texts in (given, tuple(given), iter(given), (text for text in given), dict(enumerate(given)).values()):
        assert list(as_corpus(texts)) == [Document("a", "text 1"), Document("b", "text 2"), Document("c", "mine")]


def test_what_can_be_counted():
    assert as_corpus(["a", "b"]).count(2) == 2
    assert as_corpus(np.array(["a", "b"])).count(2) == 2
    assert as_corpus(["a", "b"]).count(1) is None
    drawn: list[str] = []

    def texts() -> Iterator[str]:
        drawn.append("a")
        yield "a"

    assert as_corpus(texts()).count(10) is None
    assert drawn == []


def test_sources_and_corpora_pass_through(tmp_path: Path):
    corpus = documents(limit=2)
    assert as_corpus(corpus) is corpus
    assert texts_of(as_corpus(put(tmp_path / "a.txt", "a"))) == ["a"]
    assert as_corpus(None).count(64) == 64
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
    message = error_of(lambda: as_corpus(texts), good=1)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("texts", [{"text": "a"}, 42, Document("a", "b")])
def test_what_is_no_list(texts: Any):
    with pytest.raises(CorpusError, match=f"documents are given as {type(texts).__name__}: give a list"):
        as_corpus(texts)


# Bad input


def test_sources_that_are_not_there(tmp_path: Path):
    def message(source: Any) -> str:
        with pytest.raises(CorpusError) as caught:
            documents(source)
        return str(caught.value)

    assert f"{tmp_path}/nowhere.txt': no such file or folder" in message(tmp_path / "nowhere.txt")
    assert f"{tmp_path}/*.txt: no file matches" in message(f"{tmp_path}/*.txt")
    assert "''" in message("")
    assert "a list" in message("A text instead of a file. " * 100)
    assert len(message("A text instead of a file. " * 100)) < 400
    assert "list of sources is empty" in message([])
    put(tmp_path / "a.bin", "a")
    assert ".jsonl .csv" in message(tmp_path)
    with pytest.raises(CorpusError, match="unknown format 'xml'; there are: auto, text, lines, jsonl, csv, parquet"):
        documents(format="xml")


def test_a_file_that_goes_away(tmp_path: Path):
    first, second = put(tmp_path / "a.txt", "a"), put(tmp_path / "b.txt", "b")
    corpus = documents([first, second])
    second.unlink()
    assert error_of(lambda: corpus, good=1) == f"{second}: cannot be read: No such file or directory"


TRUNCATED = gzip.compress(as_jsonl([f"{k} {k * 7919 % 1009}" for k in range(5000)]))[:-400]
DEEP = b'{"text": ' + b"[" * 100_000
NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xe9a"))
BAD: dict[str, tuple[str, bytes, dict[str, Any], int, list[str]]] = {
    # what: file name, content, options, good documents before it, words of the message
    "binary": ("a.txt", b"\x7fELF\0\0\1", {}, 0, ["a.txt: holds NUL", "--encoding utf-16"]),
    "binary lines": ("a.txt", b"ok\n\0\n", {"format": "lines"}, 1, ["a.txt:2: holds NUL"]),
    "binary csv": ("a.csv", b"text\nok\n\0\n", {}, 1, ["a.csv:3: holds NUL"]),
    "latin-1 text": ("a.txt", b"caf\xe9", {}, 0, ["not utf-8", "byte 0xe9 at position 3", "--encoding", "latin-1"]),
    "latin-1 after a mark": ("a.txt", b"\xef\xbb\xbfcaf\xe9", {}, 0, ["position 6"]),
    "latin-1 lines": ("a.txt", b"ok\ncaf\xe9\n", {"format": "lines"}, 1, ["a.txt:2: not utf-8", "0xe9 at position 3"]),
    "latin-1 jsonl": ("a.jsonl", as_jsonl(["ok"]) + b'{"text": "\xe9"}', {}, 1, [":2: not utf-8", "position 10"]),
    "latin-1 csv": ("a.csv", b"text\n" + b"ok\n" * 5000 + b"\xe9\n", {}, 5000, ["a.csv:5002: not utf-8", "position 0"]),
    "latin-1 header": ("a.csv", b"\xe9,text\nok\n", {}, 0, ["a.csv:1: not utf-8"]),
    "cut-off character": ("a.txt", b"ok\nab\xe2\x82", {"format": "lines"}, 1, ["a.txt:2:", "0xe2 at position 2"]),
    "odd utf-16": ("a.jsonl", as_jsonl(["a"], encoding="utf-16") + b"\n", {"encoding": "utf-16"}, 1, [":2: not utf"]),
    "no mark": ("a.txt", as_jsonl(["x"], encoding="utf-16-be"), {"encoding": "utf-16", "format": "lines"}, 0, [":1:"]),
    "odd utf-16 text": ("a.txt", b"abc", {"encoding": "utf-16"}, 0, ["not utf-16 text"]),
    "broken json": ("a.jsonl", as_jsonl(["a", "b"]) + b'{"text": \n', {}, 2, [":3: not a JSON object", "one object"]),
    "json array": ("a.jsonl", as_jsonl(["a"]) + b'["x"]\n', {}, 1, [":2: expected a JSON object", "'text'", "list"]),
    "json string": ("a.jsonl", b'"text"\n', {}, 0, ["a.jsonl:1: expected a JSON object", "found str"]),
    "two objects": ("a.jsonl", b'{"text": "a"} {"text": "b"}', {}, 0, ["a.jsonl:1: not a JSON object"]),
    "deep json": ("a.jsonl", as_jsonl(["a"]) + DEEP, {}, 1, ["a.jsonl:2: not a JSON object"]),
    "long number": ("a.jsonl", b'{"n": ' + b"9" * 5000 + b"}", {}, 0, ["a.jsonl:1: not a JSON object"]),
    "jsonl field": ("a.jsonl", as_jsonl(["a"]) + b'{"id": 1, "b": 2}', {}, 1, [":2: no field 'text'", "id, b. Choose"]),
    "csv field": ("a.csv", as_csv(["a"]), {"field": "body"}, 0, ["a.csv:1: no field 'body'", "id, text.", "--field"]),
    "csv field, no rows": ("a.csv", b"id,text\n", {"field": "body"}, 0, ["a.csv:1: no field 'body'"]),
    "parquet field": ("a.parquet", as_parquet(["a"]), {"field": "body"}, 0, ["no field 'body'", "id, text. "]),
    "number": ("a.jsonl", as_jsonl(["a"]) + b'{"text": 3.5}', {}, 1, [":2: field 'text' holds float", "--field"]),
    "parquet number": ("a.parquet", as_parquet(["a"]), {"field": "id"}, 0, ["a.parquet, row 1: field 'id' holds int"]),
    "open quote": ("a.csv", b'text\nok\n"never closed\nmore\nand more\n', {}, 1, [":3: not readable as CSV", "quote"]),
    "quote inside": ("a.csv", b'text\nok\n"say \\"hi\\""\n', {}, 1, ["a.csv:3: not readable as CSV", "doubled"]),
    "not parquet": ("a.parquet", b"PAR1 no", {}, 0, ["a.parquet: not readable as Parquet"]),
    "empty parquet": ("a.parquet", b"", {}, 0, ["a.parquet: not readable as Parquet"]),
    "half a parquet": ("a.parquet", as_parquet(TEXTS)[:200], {}, 0, ["a.parquet: not readable as Parquet"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_files(tmp_path: Path, what: str):
    name, content, options, good, words = BAD[what]
    path = put(tmp_path / name, content)
    message = error_of(lambda: documents(path, **options), good)
    assert message.startswith(str(path))
    assert all(word in message for word in words), message
    # The same file compressed, and after a good one.
    packed = put(tmp_path / f"{name}.gz", content)
    assert error_of(lambda: documents(["example:gerstenslager", packed], **options), good + 1).startswith(str(packed))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.csv.gz", "a.parquet.gz"])
def test_bad_gzip(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(b"plain text")
    assert error_of(lambda: documents(path)).startswith(f"{path}: a damaged .gz file")
    kind = name.split(".")[1]
    raw = TABLES[kind](TEXTS) if kind in TABLES else b"text" * 100
    path.write_bytes(gzip.compress(raw)[:-6])
    with pytest.raises(CorpusError, match=r"a damaged \.gz file"):
        list(documents(path))
    damaged = bytearray(gzip.compress(np.random.default_rng(0).bytes(500)))
    damaged[11:40] = b"\xff" * 29
    path.write_bytes(damaged)
    with pytest.raises(CorpusError, match=r"a damaged \.gz file"):
        list(documents(path))


def test_truncated_gzip_after_good_documents(tmp_path: Path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(TRUNCATED)
    read = []
    with pytest.raises(CorpusError, match=r"a\.jsonl\.gz: a damaged \.gz file"):  # noqa: PT012
        for document in documents(path):
            read.append(document.text)
    assert len(read) > 1000
    assert read[:3] == ["0 0", "1 856", "2 703"]


def test_damaged_parquet_after_good_documents(tmp_path: Path):
    rng = np.random.default_rng(1)
    texts = ["".join(map(chr, rng.integers(97, 123, 200))) for _ in range(4096)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1024, compression="snappy")
    raw = bytearray((tmp_path / "a.parquet").read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 5000] = b"\xff" * 5000
    (tmp_path / "a.parquet").write_bytes(raw)
    read = []
    with pytest.raises(CorpusError, match=r"a\.parquet: not readable as Parquet"):  # noqa: PT012
        for document in documents(tmp_path / "a.parquet"):
            read.append(document.text)
    assert read == texts[: len(read)]
    assert len(read) >= 1024


def test_parquet_strings_that_are_no_utf8(tmp_path: Path):
    pq.write_table(pa.table({"text": NO_UTF8}), tmp_path / "a.parquet")
    assert "a.parquet: not readable as Parquet" in error_of(lambda: documents(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"text": [b"bytes"]}), tmp_path / "b.parquet")
    assert "field 'text' holds bytes" in error_of(lambda: documents(tmp_path / "b.parquet"))


# Halves of surrogate pairs


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path, minilm: Model):
    path = put(tmp_path / "a.jsonl", r'{"text": "cut \ud83d off. Whole: \ud83d\ude00."}')
    assert texts_of(documents(path)) == ["cut \ufffd off. Whole: \U0001f600."]
    assert texts_of(as_corpus(["cut \ud83d off"])) == ["cut \ufffd off"]
    study = headscope.study(minilm, documents(path), sentences="text", length=16)
    assert int(study.data["texts"]) == 1
    assert "cut \ufffd off" in study.data.attrs["excerpts"]
    study.save(tmp_path / "study.nc")


# Any texts at all

ANY_TEXTS = st.lists(st.text(st.characters(codec="utf-8")), max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet", "parquet.gz"])
def test_any_texts_read_back(folder: Path, ending: str):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(ANY_TEXTS)
    def reads_back(texts: list[str]) -> None:
        written = TABLES[ending.removesuffix(".gz")](texts)
        # JSON may hold the character NUL only escaped, as json.dumps writes it.
        assert texts_of(documents(put(folder / f"any.{ending}", written))) == texts

    reads_back()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "tsv.gz"])
def test_any_texts_without_nul_read_back(folder: Path, ending: str):
    characters = st.one_of(st.characters(codec="utf-8", exclude_characters="\0"), st.sampled_from('\r\n",\t\ufeff'))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.text(characters), max_size=8))
    def reads_back(texts: list[str]) -> None:
        written = TABLES[ending.removesuffix(".gz")](texts)
        assert texts_of(documents(put(folder / f"any.{ending}", written))) == texts

    reads_back()


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.txt.gz", "a.jsonl.gz", "a.csv.gz"])
def test_any_bytes_are_documents_or_a_corpus_error(folder: Path, name: str):
    pieces = st.sampled_from(
        [b'{"text": ', b'"a"', b"}", b"\n", b'"', b",", b"text\n", b"\xe9", b"\0", b"\x1f\x8b", b"PAR1"]
    )

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=12).map(b"".join)))
    def is_read_or_refused(raw: bytes) -> None:
        (folder / name).write_bytes(raw)
        message = str(folder / name)
        try:
            read = list(documents(folder / name))
        except CorpusError as error:
            read, message = [], str(error)
        assert message.startswith(str(folder / name))
        assert all(isinstance(document.text, str) for document in read)

    is_read_or_refused()

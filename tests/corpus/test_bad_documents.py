"""Test bad documents: after the good documents before them, an error says where and why they cannot be read."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.documents import documents
from headscope.errors import CorpusError
from tests.helpers.document_formats import TABLES, TEXTS, as_csv, as_jsonl, as_parquet, get_error, put, texts_of

# What cannot be asked for


@pytest.mark.parametrize("encoding", ["nosuch", "", "hex", "rot13", "undefined", "a\0b"])
def test_unknown_encoding(encoding: str):
    with pytest.raises(CorpusError, match=r"unknown encoding .*; for instance utf-8"):
        documents(encoding=encoding)


def test_sources_that_are_not_there(tmp_path: Path):
    def get_message(source: Any) -> str:
        with pytest.raises(CorpusError) as caught:
            documents(source)
        return str(caught.value)

    assert f"{tmp_path}/nowhere.txt': no such file or folder" in get_message(tmp_path / "nowhere.txt")
    assert f"{tmp_path}/*.txt: no file matches" in get_message(f"{tmp_path}/*.txt")
    assert "''" in get_message("")
    assert "a list" in get_message("A text instead of a file. " * 100)
    assert len(get_message("A text instead of a file. " * 100)) < 400
    assert "list of sources is empty" in get_message([])
    put(tmp_path / "a.bin", "a")
    assert ".jsonl .csv" in get_message(tmp_path)
    with pytest.raises(CorpusError, match="unknown format 'xml'; there are: auto, text, lines, jsonl, csv, parquet"):
        documents(format="xml")


def test_a_file_that_goes_away(tmp_path: Path):
    first, second = put(tmp_path / "a.txt", "a"), put(tmp_path / "b.txt", "b")
    corpus = documents([first, second])
    second.unlink()
    assert get_error(lambda: corpus, good=1) == f"{second}: cannot be read: No such file or directory"


def test_a_file_that_is_not_compressed(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(b"Two ravens met.")
    assert "If it is not compressed, name it without .gz" in get_error(lambda: documents(path))


# Files

TRUNCATED = gzip.compress(as_jsonl([f"{k} {k * 7919 % 1009}" for k in range(5000)]))[:-400]
DEEP = b'{"text": ' + b"[" * 100_000
NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xe9a"))
BAD: dict[str, tuple[str, bytes, dict[str, Any], int, list[str]]] = {
    # what: file name, content, options, good documents before it, words of the message
    "binary": ("a.txt", b"\x7fELF\0\0\1", {}, 0, ["a.txt: holds NUL", "--encoding utf-16"]),
    "binary lines": ("a.txt", b"ok\n\0\n", {"format": "lines"}, 1, ["a.txt:2: holds NUL"]),
    "binary csv": ("a.csv", b"text\nok\n\0\n", {}, 1, ["a.csv:3: holds NUL"]),
    "utf-16 text": ("a.txt", "Two ravens".encode("utf-16"), {}, 0, ["a.txt: not utf-8 text", "say --encoding utf-16"]),
    "gzip without .gz": ("a.txt", gzip.compress(b"Two ravens"), {}, 0, ["compressed with gzip", "ends in .gz"]),
    "netcdf": ("a.txt", b"\x89HDF\r\n", {}, 0, ["such as a saved study or reading"]),
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
    message = get_error(lambda: documents(path, **options), good)
    assert message.startswith(str(path))
    assert all(word in message for word in words), message
    # The same file compressed, and after a good one.
    packed = put(tmp_path / f"{name}.gz", content)
    assert get_error(lambda: documents(["example:gerstenslager", packed], **options), good + 1).startswith(str(packed))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz", "a.csv.gz", "a.parquet.gz"])
def test_bad_gzip(tmp_path: Path, name: str):
    path = tmp_path / name
    for content in (b"plain text", b""):
        path.write_bytes(content)
        assert get_error(lambda: documents(path)).startswith(f"{path}: a damaged .gz file")
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
    assert "a.parquet, row 1: not readable as Parquet" in get_error(lambda: documents(tmp_path / "a.parquet"))
    pq.write_table(pa.table({"text": [b"bytes"]}), tmp_path / "b.parquet")
    assert "field 'text' holds bytes" in get_error(lambda: documents(tmp_path / "b.parquet"))


# Quotes


def test_quotes_in_tsv_swallow_no_rows(tmp_path: Path):
    rows = ["first", '"opened', "between", 'closed"', '"Hello" she said', 'say "hi"', '"never closed', "x", "last"]
    lines = ["id\ttext", *(f"{k}\t{row}" for k, row in enumerate(rows))]
    path = put(tmp_path / "a.tsv", "\n".join(lines).encode())
    read = list(documents(path))
    assert [document.text for document in read] == rows
    assert [document.name for document in read] == [f"{path}:{k}" for k in range(2, 11)]


@pytest.mark.parametrize("quotes", [['"a', "b", 'c"'], ["plain", '"a', "b"], ['"a"b', "c", "d"], ['"', '"', '"']])
@pytest.mark.parametrize("id_column", [True, False])
def test_no_row_of_a_tsv_file_is_lost(tmp_path: Path, quotes: list[str], id_column: bool):
    lines = [f"{k}\t{row}" if id_column else row for k, row in enumerate(["text", *quotes, "more", "end"])]
    path = put(tmp_path / "a.tsv", "\n".join(lines).encode())
    read = texts_of(documents(path, field="text"))
    if id_column or '"a"b' in quotes or quotes[0] == "plain":
        assert read == [*quotes, "more", "end"]
    else:  # of a single column nothing shows that a balanced quote is none
        assert "".join(read).endswith("moreend")


def test_quoted_cells_of_tsv_may_have_line_breaks_and_tabs(tmp_path: Path):
    path = put(tmp_path / "a.tsv", b'id\ttext\n1\t"two\nlines"\n2\t"a\ttab"\n3\t"a ""quote"""\n4\tplain\n')
    assert texts_of(documents(path)) == ["two\nlines", "a\ttab", 'a "quote"', "plain"]


def test_rows_after_a_quote_that_is_not_closed_are_read(tmp_path: Path):
    lines = ["id,text", "1,ok", '2,"never closed', "3,more", '4,"again', '5,"fine"', '6,"bad" one', "7,last"]
    path = put(tmp_path / "a.csv", "\n".join(lines).encode())
    assert "a.csv:3: not readable as CSV from here" in get_error(lambda: documents(path), 1)
    read = list(documents(path, skip_broken=True))
    assert [document.text for document in read if not document.broken] == ["ok", "more", "fine", "last"]
    assert [document.name.rpartition(":")[2] for document in read if document.broken] == ["3", "5", "7"]


def test_many_quotes_take_linear_time(tmp_path: Path):
    content = "id\ttext\n" + "".join(f'{k}\t"open {k}\n' for k in range(20_000))
    for name, delimiter in (("a.tsv", "\t"), ("a.csv", ",")):
        path = put(tmp_path / name, content.replace("\t", delimiter).encode())
        read = list(documents(path, skip_broken=True))
        assert len(read) == 20_000
        assert sum(not document.broken for document in read) == (20_000 if name == "a.tsv" else 0)


# Any bytes at all


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.txt.gz", "a.jsonl.gz", "a.csv.gz"])
def test_any_bytes_are_documents_or_a_corpus_error(tmp_path: Path, name: str):
    pieces = st.sampled_from(
        [b'{"text": ', b'"a"', b"}", b"\n", b'"', b",", b"text\n", b"\xe9", b"\0", b"\x1f\x8b", b"PAR1"]
    )

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=12).map(b"".join)))
    def is_read_or_refused(raw: bytes) -> None:
        (tmp_path / name).write_bytes(raw)
        message = str(tmp_path / name)
        try:
            read = list(documents(tmp_path / name))
        except CorpusError as error:
            read, message = [], str(error)
        assert message.startswith(str(tmp_path / name))
        assert all(isinstance(document.text, str) for document in read)

    is_read_or_refused()


@pytest.mark.parametrize("name", ["a.json", "a.JSON.gz"])
def test_a_json_file_is_not_taken_for_plain_text(tmp_path: Path, name: str):
    path = put(tmp_path / name, as_jsonl(TEXTS))
    message = get_error(lambda: documents(path))
    assert f"{path}: a JSON file is read only as JSON Lines" in message
    assert "--format jsonl" in message
    assert texts_of(documents(path, format="jsonl")) == TEXTS

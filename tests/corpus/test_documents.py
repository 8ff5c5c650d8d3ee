"""Test reading documents: in every format, texts are returned complete and in order."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import documents as corpus_documents
from headscope.corpus.documents import Document, as_corpus, documents
from headscope.model.model import Model
from tests.helpers.document_formats import TABLES, TEXTS, as_csv, as_jsonl, names_of, put, texts_of

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


# What is read before a model is loaded


def test_the_opening_is_the_first_text_that_is_not_blank(tmp_path: Path):
    put(tmp_path / "a.txt", " ")
    put(tmp_path / "b.jsonl", '{"text": ""}\n{"text": "Rain."}\n{"text": "Snow."}\n')
    opening = documents(tmp_path).check_opening()
    assert opening is not None
    assert opening.text == "Rain."
    assert documents(tmp_path, limit=1).check_opening() is None  # which says nothing of the files after it
    assert documents().check_opening() == next(iter(documents()))


@pytest.mark.parametrize("files", [{"a.txt": ""}, {"a.txt": " \n", "b.jsonl": "\n", "c.csv": "text\n"}], ids=str)
def test_files_without_any_text(tmp_path: Path, files: dict[str, str]):
    for name, content in files.items():
        put(tmp_path / name, content)
    with pytest.raises(headscope.CorpusError, match="there is no text in it"):
        documents(tmp_path).check_opening()
    put(tmp_path / "d.txt", "Rain.")
    assert documents(tmp_path).check_opening() is not None


def test_every_one_of_a_few_files_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "a.jsonl", '{"text": "Rain."}')
    put(tmp_path / "b.jsonl", '{"body": "Rain."}')
    with pytest.raises(headscope.CorpusError, match=r"b\.jsonl:1: no field 'text'"):
        documents(tmp_path).check_opening()
    assert documents(tmp_path, limit=1).check_opening() is not None
    assert documents(tmp_path).check_opening(limit=1) is not None
    for name, value in (("MAX_OPENED", 1), ("MAX_OPENED_BYTES", 5)):
        with monkeypatch.context() as patch:
            patch.setattr(corpus_documents, name, value)
            assert documents(tmp_path).check_opening() is not None


def test_many_blank_documents_may_be_followed_by_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus_documents, "MAX_BLANK", 3)
    put(tmp_path / "a.jsonl", '{"text": ""}\n' * 3)
    with pytest.raises(headscope.CorpusError, match="there is no text in it"):
        documents(tmp_path).check_opening()
    put(tmp_path / "a.jsonl", '{"text": ""}\n' * 4)
    assert documents(tmp_path).check_opening() is None


def test_what_can_be_read_once_is_not_opened():
    assert documents("-").check_opening() is None
    assert as_corpus(iter([])).check_opening() is None


@pytest.mark.parametrize("sources", [None, "a.txt", "example:gerstenslager"])
def test_texts_without_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: str | None):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "a.txt", "Rain.")
    put(tmp_path / "b.jsonl", '{"body": "Snow."}')
    with pytest.raises(headscope.CorpusError, match="no fields"):
        documents(sources, field="body")
    assert texts_of(documents(["a.txt", "b.jsonl"], field="body")) == ["Rain.", "Snow."]
    assert documents("-", field="body").options.field == "body"


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
    def check_texts(texts: list[str]) -> None:
        written = TABLES[ending.removesuffix(".gz")](texts)
        # JSON may hold the character NUL only escaped, as json.dumps writes it.
        assert texts_of(documents(put(folder / f"any.{ending}", written))) == texts

    check_texts()


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "tsv.gz"])
def test_any_texts_without_nul_read_back(folder: Path, ending: str):
    characters = st.one_of(st.characters(codec="utf-8", exclude_characters="\0"), st.sampled_from('\r\n",\t\ufeff'))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(st.text(characters), max_size=8))
    def check_texts(texts: list[str]) -> None:
        written = TABLES[ending.removesuffix(".gz")](texts)
        assert texts_of(documents(put(folder / f"any.{ending}", written))) == texts

    check_texts()

"""CoNLL-U: text, words and relations; multiword tokens, empty nodes, missing documents, and every kind of damage."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headscope.corpus.chunks import ChunkSize
from headscope.corpus.document import Document
from headscope.corpus.documents import documents
from headscope.errors import CorpusError
from tests.helpers.document_formats import get_error, put, texts_of
from tests.helpers.treebank import SENTENCE, as_line, as_sentence, as_treebank


def read(tmp_path: Path, content: str, **options: object) -> list[Document]:
    return list(documents(put(tmp_path / "a.conllu", content), **options))  # type: ignore[arg-type]


def list_pairs(document: Document) -> list[tuple[str, str, str]]:
    text, rows = document.text, document.relations or ()
    return [(text[row.start_a : row.end_a], text[row.start_b : row.end_b], row.label) for row in rows]


PAIRS = [("the", "cat", "det"), ("cat", "sat", "nsubj"), ("and", "owl", "cc"), ("owl", "cat", "conj")]


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_words_are_related_to_their_heads_but_root_and_punctuation(tmp_path: Path, name: str):
    path = put(tmp_path / name, as_treebank([[SENTENCE]]))
    (document,) = documents(path)
    assert list_pairs(document) == PAIRS


def test_a_document_is_what_follows_newdoc(tmp_path: Path):
    first, second = read(tmp_path, as_treebank([[SENTENCE, SENTENCE], [SENTENCE]]))
    assert (first.text, first.name) == ("the cat and owl sat . the cat and owl sat .", f"{tmp_path}/a.conllu:1")
    assert list_pairs(first) == PAIRS * 2
    assert (second.text, second.name) == ("the cat and owl sat .", f"{tmp_path}/a.conllu:16")
    assert [second.text[start:end] for start, end in second.words or ()] == [word for word, _, _ in SENTENCE]


def test_sentences_without_newdoc_are_documents(tmp_path: Path):
    content = f"# global.columns = ID FORM\n\n# sent_id = 1\n{as_sentence(SENTENCE)}\n\n{as_sentence(SENTENCE)}"
    assert [document.name.rpartition(":")[2] for document in read(tmp_path, content)] == ["1", "13"]
    mixed = read(tmp_path, content + as_treebank([[SENTENCE, SENTENCE]]))
    assert [len(document.relations or ()) for document in mixed] == [4, 4, 8]
    assert read(tmp_path, "# a comment\n# newdoc\n" + as_sentence(SENTENCE))[0].name.endswith(":2")


def test_no_space_where_the_treebank_says_so(tmp_path: Path):
    lines = [as_line(1, "«", 2, "punct", "Gloss=x|SpaceAfter=No"), as_line(2, "Zwölf", 0, "root", "SpaceAfter=No")]
    lines += [as_line(3, "»", 2, "punct"), as_line(4, "10 000", 2, "nummod:gov")]
    (document,) = read(tmp_path, "\r\n".join(lines))  # neither newdoc nor an empty line at the end
    assert document.text == "«Zwölf» 10 000"
    assert list_pairs(document) == [("10 000", "Zwölf", "nummod")]


def test_words_of_a_multiword_token_have_its_span(tmp_path: Path):
    lines = [
        as_line(1, "vámonos"), as_line("2-3", "al"), as_line(2, "a", 4, "case"), as_line(3, "el", 4, "det"),
        as_line(4, "mar", 1, "obl"), as_line("5-6", "dámelo", misc="SpaceAfter=No"), as_line(5, "dame", 4, "x"),
        as_line(6, "lo", 5, "obj"), as_line(7, "!", 4, "punct"),
    ]  # fmt: skip
    (document,) = read(tmp_path, "\n".join(lines))
    assert document.text == "vámonos al mar dámelo!"
    assert list_pairs(document) == [
        *(("al", "mar", "case"), ("al", "mar", "det"), ("mar", "vámonos", "obl")),
        *(("dámelo", "mar", "x"), ("dámelo", "dámelo", "obj")),
    ]
    assert [document.text[a:b] for a, b in document.words or ()] == ["vámonos", "al", "mar", "dámelo", "!"]


def test_empty_nodes_and_enhanced_dependencies_are_left_out(tmp_path: Path):
    lines = [as_line(1, "owl", 0, "root"), as_line("1.1", "sat"), as_line("1.2", "x"), as_line(2, "cat", 1, "conj")]
    lines[3] = lines[3].replace("\t_\t_", "\t1.1:conj|1:dep\t_")
    (document,) = read(tmp_path, "\n".join(["# newdoc", *lines]))
    assert (document.text, list_pairs(document)) == ("owl cat", [("cat", "owl", "conj")])


def test_unannotated_words_have_no_relation(tmp_path: Path):
    (document,) = read(tmp_path, "\n".join([as_line(1, "owl"), as_line(2, "cat", 1, "_"), as_line(3, "sat", 1, ":x")]))
    assert (document.text, document.relations) == ("owl cat sat", ())


DAMAGE = {
    "owl": "1 columns, not 10 with a tab between them",
    as_line(2, "owl") + "\t_": "11 columns",
    as_line("x", "owl"): "the id 'x' is no number of a word",
    as_line(3, "owl"): "the id 3, and 2 was expected",
    as_line(1, "owl"): "the id 1, and 2 was expected",
    as_line(2, " "): "a word without a form",
    as_line(2, "owl", 9, "obj"): "its head is word 9 of a sentence of 2 words",
    as_line(2, "owl", 2, "obj"): "the head '2' is no number of another word",
    as_line(2, "owl", "-1", "obj"): "the head '-1' is no number of another word",
    as_line(2, "owl", 1, "o\x1bbj"): "the label 'o\\x1bbj' is not a text of 1 to 100 printable characters",
    as_line("2-1", "owl"): "the words 2-1 are no multiword token",
    as_line("2-4", "owl"): "a sentence of 1 words has a multiword token 2-4",
    as_line("2-4", "owl") + "\n" + as_line("2-3", "x"): "the words 2-3 are no multiword token",
    "\xff": "1 columns",
}


@pytest.mark.parametrize("line", DAMAGE)
def test_damage_is_named_with_its_line_or_skipped_with_its_document(tmp_path: Path, line: str):
    good = as_treebank([[SENTENCE]])
    content = f"{good}# newdoc\n{as_line(1, 'cat', 0, 'root')}\n{line}\n\n{as_sentence(SENTENCE)}{good}"
    path = put(tmp_path / "a.conllu", content)
    message = get_error(lambda: documents(path), good=1)
    assert DAMAGE[line] in message
    assert message.startswith(f"{path}:")
    assert 9 <= int(message.removeprefix(f"{path}:").partition(":")[0]) <= 12
    skipping = list(documents(path, skip_broken=True))
    assert [bool(document.broken) for document in skipping] == [False, True, False]
    assert skipping[1].broken in ("not CoNLL-U", "broken relations")


def test_broken_sentences_without_newdoc_are_skipped_one_by_one(tmp_path: Path):
    path = tmp_path / "a.conllu"
    path.write_bytes(as_sentence(SENTENCE).encode() + b"1\tcaf\xe9\n\n" + as_sentence(SENTENCE).encode())
    assert "not utf-8 text" in get_error(lambda: documents(path), good=1)
    assert [document.broken for document in documents(path, skip_broken=True)] == ["", "badly encoded", ""]


def test_a_file_is_one_chunk(tmp_path: Path):
    path = put(tmp_path / "a.conllu", as_treebank([[SENTENCE]] * 50))
    corpus = documents(path)
    (chunk,) = corpus.plan_chunks(ChunkSize(documents=4, bytes=300))
    assert len(list(corpus.read_chunk(chunk))) == 50


def test_relations_are_not_read_if_they_are_not_wanted(tmp_path: Path):
    (document,) = read(tmp_path, as_treebank([[SENTENCE]]), relations=False)
    assert (document.text, document.relations, document.words) == ("the cat and owl sat .", None, None)


def test_standard_input(monkeypatch: pytest.MonkeyPatch):
    stream = io.BufferedReader(io.BytesIO(as_treebank([[SENTENCE]] * 2).encode()))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    assert texts_of(documents("-", format="conllu")) == ["the cat and owl sat ."] * 2


def test_a_text_can_be_its_own_target(tmp_path: Path):
    (document,) = read(tmp_path, as_treebank([[SENTENCE]]), target="text")
    assert document.target == document.text
    with pytest.raises(CorpusError, match="target is 'de'"):
        read(tmp_path, as_treebank([[SENTENCE]]), target="de")

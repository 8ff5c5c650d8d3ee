"""Labelled relations of documents, and the tokens of a window that they relate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.corpus.document import Document, Relation
from headscope.corpus.documents import as_corpus, documents
from headscope.corpus.relations import label_documents, name_function
from headscope.corpus.windows import Window, WindowSpec
from headscope.errors import CorpusError, StudyError
from headscope.model.model import Model
from headscope.run.state import hash_document
from tests.helpers import tiny
from tests.helpers.document_formats import get_error, put
from tests.helpers.treebank import SENTENCE, as_line, as_sentence

TEXT = "the owl sat. a cat ran!"
ROWS: list[Any] = [[4, 7, 8, 11, "nsubj"], [15, 18, 19, 22, "nsubj"], [0, 3, 4, 7, "det"], [4, 7, 15, 18, "like"]]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


def cut(model: Model, document: Document, **options: Any) -> list[Window]:
    windows = model.windows(document, WindowSpec(**{"relations": None, **options}))
    assert isinstance(windows, list)
    return windows


def list_pairs(model: Model, window: Window) -> list[tuple[str, str, str]]:
    assert window.relations is not None
    names = model.tokens.names(window.ids.tolist())
    rows = zip(window.relations.first, window.relations.second, window.relations.labels, strict=True)
    return [(names[a], names[b], label) for a, b, label in rows]


# -- documents --------------------------------------------------------------------------------------------------------


def test_a_line_of_json_holds_relations(tmp_path: Path):
    rows = [{"text": TEXT, "relations": ROWS}, {"text": TEXT}, {"text": TEXT, "relations": None}]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in [*rows, {"text": "", "relations": []}]))
    first, *others = documents(path)
    assert first.relations == tuple(Relation(*row) for row in ROWS)
    assert [document.relations for document in others] == [None, None, ()]
    assert [document.relations for document in documents(path, relations=False)] == [None] * 4
    (given, unlabelled) = as_corpus(rows[:2])
    assert (given.relations, unlabelled.relations) == (first.relations, None)


DAMAGE: dict[str, Any] = {
    "hold str, not a list of rows": "text",
    "hold int, not a list of rows": 7,
    "hold dict, not a list of rows": {},
    "row 1 is not a list of five values: 3": [3],
    "row 2 is not a list of five values": [ROWS[0], [4, 7, 8, 11]],
    "row 1 holds positions that are not integers": [[4, 7, 8.0, 11, "a"]],
    "row 1 holds positions that are not integers: [True": [[True, 7, 8, 11, "a"]],
    "row 1: 7 to 7 is not a span of this text of 23 characters": [[7, 7, 8, 11, "a"]],
    "row 1: 8 to 24 is not a span of this text": [[4, 7, 8, 24, "a"]],
    "row 1: -1 to 7 is not a span of this text": [[-1, 7, 8, 11, "a"]],
    "row 1: the label 5 is not a text of 1 to 100 printable characters": [[4, 7, 8, 11, 5]],
    "row 1: the label ' ' is not": [[4, 7, 8, 11, " "]],
    "row 1: the label 'a\\nb' is not": [[4, 7, 8, 11, "a\nb"]],
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_broken_relations_are_named_or_skipped(tmp_path: Path, reason: str):
    rows = [{"text": TEXT}, {"text": TEXT, "relations": DAMAGE[reason]}]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    message = get_error(lambda: documents(path), good=1)
    assert message.startswith(f"{path}:2: its relations {reason}")
    assert "--relations none" in message
    assert [document.broken for document in documents(path, skip_broken=True)] == ["", "broken relations"]
    assert get_error(lambda: as_corpus(rows), good=1).startswith(f"text 2: its relations {reason}")
    assert [document.broken for document in as_corpus(rows, skip_broken=True)] == ["", "broken relations"]
    with pytest.raises(CorpusError, match="its relations"):
        Document(TEXT, "here", relations=DAMAGE[reason])


def test_blocks_are_those_of_the_text_and_resuming_looks_at_relations():
    plain, labelled = Document(TEXT, "a"), Document(TEXT, "a", relations=ROWS)  # type: ignore[arg-type]
    assert plain.digest == labelled.digest
    assert hash_document(plain) != hash_document(labelled)
    assert hash_document(plain) == hash_document(Document(TEXT, "a", relations=()))


# -- functions --------------------------------------------------------------------------------------------------------


def test_a_function_labels_texts():
    corpus = label_documents(as_corpus([TEXT, "", "the cat"]), lambda text: [(0, 3, 4, 7, text[4:7])])
    assert [document.relations for document in corpus] == [((0, 3, 4, 7, "owl"),), None, ((0, 3, 4, 7, "cat"),)]
    assert name_function(test_a_function_labels_texts).startswith("function tests.corpus.test_relations.test_a_func")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([(0, 3, 4, 99, "a")], "the function relations=: text 1: its relations row 1: 4 to 99 is not a span"),
        ([(0, 3)], "text 1: the function relations= failed: TypeError: "),
        (None, "text 1: the function relations= failed: TypeError: "),
    ],
)
def test_a_function_that_returns_no_relations(result: Any, reason: str):
    assert get_error(lambda: label_documents(as_corpus([TEXT]), lambda text: result)).startswith(reason)


def test_a_function_that_fails():
    message = get_error(lambda: label_documents(as_corpus([TEXT]), lambda text: [(0, text.index("z"))]))
    assert message == "text 1: the function relations= failed: ValueError: substring not found"


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_span_is_its_first_token(model: Model):
    (window,) = cut(model, Document(TEXT, "a", relations=ROWS))  # type: ignore[arg-type]
    assert list_pairs(model, window) == [
        *(("o", "s", "nsubj"), ("c", "r", "nsubj"), ("the", "o", "det"), ("o", "c", "like")),
    ]
    names = model.tokens.names(window.ids.tolist())
    assert window.relations is not None
    begins = [name for name, is_word in zip(names, window.relations.words, strict=True) if is_word]
    assert begins == ["the", "o", "s", ".", "a", "c", "r", "!"]


def test_a_span_may_begin_within_a_token_or_a_word(model: Model):
    rows = [(1, 3, 5, 7, "x"), (3, 5, 6, 11, "y"), (2, 3, 0, 1, "z")]
    (window,) = cut(model, Document(TEXT, "a", relations=rows))  # type: ignore[arg-type]
    # The space before a word is in no token; both spans of z have the same token.
    assert list_pairs(model, window) == [("the", "##w", "x"), ("o", "##l", "y")]
    assert window.relations is not None
    assert window.relations.words[window.relations.second].all()


@pytest.mark.parametrize("labels", [("det",), ("det", "like"), ("other",)])
def test_only_chosen_relations(model: Model, labels: tuple[str, ...]):
    (window,) = cut(model, Document(TEXT, "a", relations=ROWS), relations=labels)  # type: ignore[arg-type]
    assert window.relations is not None
    assert set(window.relations.labels) == set(labels) - {"other"}
    (window,) = cut(model, Document(TEXT, "a", relations=ROWS), relations=())  # type: ignore[arg-type]
    assert window.relations is None


def test_a_pair_counts_where_a_window_holds_both(model: Model):
    document = Document(TEXT, "a", relations=ROWS)  # type: ignore[arg-type]
    windows = cut(model, document, length=9, windows="all", min_tokens=1)
    assert [list_pairs(model, window) for window in windows] == [
        [("o", "s", "nsubj"), ("the", "o", "det")],
        [("c", "r", "nsubj")],
    ]
    # The second window begins within the word "sat": its last letters are a word there, and the span's token.
    windows = cut(model, Document("owl sat. cat", "a", relations=[(4, 7, 9, 12, "x")]), length=7, windows="all")  # type: ignore[list-item]
    assert list_pairs(model, windows[1]) == [("##t", "c", "x")]


def test_treebanks_know_their_words(model: Model, tmp_path: Path):
    lines = [as_line("1-2", "owlcat", misc="SpaceAfter=No"), as_line(1, "owl", 3, "a"), as_line(2, "cat", 1, "b")]
    lines += [as_line(3, "sat", 0, "root")]
    (document,) = documents(put(tmp_path / "a.conllu", "\n".join(lines)))
    (window,) = cut(model, document)
    assert list_pairs(model, window) == [("o", "##s", "a")]
    assert window.relations is not None
    assert window.relations.words.sum() == 2


def test_many_documents_have_the_relations_of_each(model: Model):
    labelled, plain = Document(TEXT, "a", relations=ROWS), Document(TEXT, "b")  # type: ignore[arg-type]
    spec = WindowSpec(relations=None)
    together = list(model.cut_documents([plain, labelled, plain, labelled], spec))
    assert [windows[0].relations is not None for windows in together] == [False, True, False, True]
    assert len({tuple(windows[0].ids) for windows in together}) == 1
    assert list_pairs(model, together[3][0]) == list_pairs(model, cut(model, labelled)[0])


def test_a_tokenizer_without_positions_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(model.tokens), "_make_encoding", _without_positions(type(model.tokens)._make_encoding))
    with pytest.raises(CorpusError, match="a: has labelled relations, and this model's tokenizer does not say where"):
        cut(model, Document(TEXT, "a", relations=ROWS))  # type: ignore[arg-type]
    assert cut(model, Document(TEXT, "a"))


def _without_positions(make_encoding: Any) -> Any:
    return lambda self, text, ids, spans, numbers: make_encoding(self, text, ids, None, None)


@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_what_a_decoder_reads_has_no_relations(stack: str):
    network = tiny.network("t5")
    loaded = headscope.load(network, tiny.tokenizer(), stack=stack)
    row = {"text": TEXT, "relations": ROWS, "to": "a cat"}
    with pytest.raises(StudyError, match="no labelled relations"):
        headscope.study(loaded, [row], target="to", length=24).relations()


def test_the_tokens_of_sentences_of_a_treebank(model: Model, tmp_path: Path):
    (document,) = documents(put(tmp_path / "a.conllu", as_sentence(SENTENCE)))
    (window,) = cut(model, document)
    assert list_pairs(model, window) == [("the", "c", "det"), ("c", "s", "nsubj"), ("a", "o", "cc"), ("o", "c", "conj")]

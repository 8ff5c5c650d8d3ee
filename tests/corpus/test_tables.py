"""Texts in a pandas DataFrame or Series, or in a Dataset of the package datasets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headscope
from headscope.corpus.documents import Document, as_corpus
from headscope.errors import CorpusError
from tests.helpers import tiny

TEXTS = ["the cat sat. the dog ran! who, me?", "a b c d e f g h. a b c d"]


class Dataset:
    """What is used of `datasets.Dataset`: that package is optional."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = columns
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True))

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset(**{name: self.columns[name] for name in names})


def make_datasets_dataset(**columns: list[Any]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


TABLES: dict[str, Callable[..., Any]] = {
    "DataFrame": lambda **columns: pd.DataFrame(columns),
    "Dataset": Dataset,
    "datasets": make_datasets_dataset,
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_columns_are_documents(make: Callable[..., Any]):
    corpus = as_corpus(make(id=[1, 2], text=TEXTS))
    expected = [Document(text, f"row {k}") for k, text in enumerate(TEXTS)]
    assert list(corpus) == list(corpus) == expected
    assert (corpus.name, corpus.size) == ("texts given in Python", 2)
    assert [document.text for document in as_corpus(make(text=["", ""], body=TEXTS), "body")] == TEXTS


@pytest.mark.parametrize("dtype", ["object", "string", "category"])
def test_a_series_is_documents(dtype: str):
    series = pd.Series(TEXTS, index=["x", "y"], dtype=dtype)
    assert list(as_corpus(series)) == [Document(TEXTS[0], "row x"), Document(TEXTS[1], "row y")]


def test_a_table_may_be_empty():
    assert list(as_corpus(pd.DataFrame({"text": []}))) == []


def test_columns_of_images():
    pictures = tiny.pictures(2)
    corpus = as_corpus(Dataset(image=pictures, label=[0, 1]), "image")
    assert corpus.name == "images given in Python"
    assert all(document.is_image for document in corpus)
    assert [document.content for document in corpus] == [document.content for document in as_corpus(pictures)]


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_a_missing_column_is_named(make: Callable[..., Any]):
    with pytest.raises(CorpusError, match=r"has no column 'text'; its columns are: id, body\. .*field="):
        as_corpus(make(id=[1], body=["a"]))


def test_columns_of_the_same_name():
    with pytest.raises(CorpusError, match="2 columns 'text'"):
        as_corpus(pd.DataFrame([["a", "b"]], columns=["text", "text"]))


@pytest.mark.parametrize(
    ("cell", "description"),
    [(None, "None"), (np.nan, r"nan \(float\)"), (pd.NA, r"<NA> \(NAType\)"), (7, r"7 \(int\)")],
)
def test_a_cell_that_is_no_text_is_named(cell: Any, description: str):
    frame = pd.DataFrame({"text": pd.Series(["a", cell], index=["x", "y"], dtype=object)})
    with pytest.raises(CorpusError, match=f"row 'y' of column 'text' of the DataFrame holds {description}"):
        as_corpus(frame)  # before anything is counted
    with pytest.raises(CorpusError, match=f"row 'y' of the Series holds {description}"):
        as_corpus(frame["text"])
    with pytest.raises(CorpusError, match=f"row 1 of column 'text' of the Dataset holds {description}"):
        list(as_corpus(Dataset(text=["a", cell])))


def test_several_datasets_are_refused():
    splits = type("DatasetDict", (dict,), {"column_names": {"train": ["text"], "test": ["text"]}})()
    with pytest.raises(CorpusError, match=r"a DatasetDict of several Datasets: give one of them \(train, test\)"):
        as_corpus(splits)


def test_the_field_of_mappings_and_files(tmp_path: Any):
    assert [document.text for document in as_corpus([{"body": "a"}], "body")] == ["a"]
    with pytest.raises(CorpusError, match="a string under 'body'"):
        list(as_corpus([{"text": "a"}], "body"))
    path = tmp_path / "a.jsonl"
    path.write_text('{"body": "a"}\n', "utf-8")
    assert [document.text for document in as_corpus(path, "body")] == ["a"]
    with pytest.raises(CorpusError, match="opened already"):
        as_corpus(headscope.documents(path), "body")


def test_every_function_takes_them():
    model, frame = tiny.model("bert"), pd.DataFrame({"body": TEXTS})
    study = headscope.study(model, frame, field="body", length=16, kernel="torch")
    expected = headscope.study(model, TEXTS, length=16, kernel="torch")
    assert study.manifest["corpus_hash"] == expected.manifest["corpus_hash"]
    assert study.manifest["field"] == "body"
    ablation = headscope.ablate(model, frame, field="body", heads="L0H0", length=16)
    assert ablation.manifest["corpus_hash"] == expected.manifest["corpus_hash"]
    for by in ("norm", "pairs"):
        pruned = headscope.prune(model, keep=6, by=by, documents=frame, field="body", length=16)
        assert pruned.manifest["ranking"]["texts"] == 2
    for sentences in (frame, frame["body"]):
        assert headscope.segment(model, sentences, field="body", level="fine", length=16).text == " ".join(TEXTS)
    with pytest.raises(CorpusError, match="row 1"):
        headscope.segment(model, pd.Series(["A text.", None]))


def test_pandas_is_not_imported():
    code = (
        "import sys; from headscope.corpus.documents import as_corpus; list(as_corpus(['a'])); "
        "sys.exit('pandas' in sys.modules or 'datasets' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

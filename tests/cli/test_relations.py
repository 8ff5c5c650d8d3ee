"""`headscope relations`, and relations.csv in a study's folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from headscope import output_folder
from headscope.studies.relations import MIN_PAIRS
from tests.helpers.interrupting import save_tiny_model
from tests.helpers.treebank import as_treebank, draw_documents

OPTIONS = ("--length", "24", "--quiet", "--kernel", "torch", "--model", "model")


@pytest.fixture
def study_folder(headscope_command, one_figure, tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "a.conllu").write_text(as_treebank(draw_documents(60)))
    assert headscope_command("study", "a.conllu", "--output", "out", *OPTIONS).code == 0
    return tmp_path / "out"


def test_heads_of_relations_are_listed(headscope_command, study_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = headscope_command("relations", str(study_folder))
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert {words[0] for words in lines if len(words) > 8} >= {"amod", "conj", "det", "nsubj"}
    assert len([words for words in lines if any(word.startswith(("L0H", "L1H")) for word in words[:3])]) == 4 * 3
    assert "corrected for all heads and relations" in result.out
    rows = list(csv.DictReader(io.StringIO((study_folder / "relations.csv").read_text())))
    result = headscope_command("relations", str(study_folder), "--label", "conj,det", "--top", "1", "--output", "b.csv")
    assert result.code == 0
    chosen = list(csv.DictReader(io.StringIO(Path("b.csv").read_text())))
    assert chosen == [row for row in rows if row["relation"] in ("conj", "det")]
    assert "nsubj" not in result.out
    content = json.loads(headscope_command("relations", str(study_folder), "--json", "--heads", "H1").out)
    assert {row["head_number"] for row in content["relations"]} == {1}
    assert content["manifest"]["text_format"] == "auto"
    message = headscope_command("relations", str(study_folder), "--label", "conjj")
    assert (message.code, "no relation 'conjj' in this study; there are: amod, conj" in message.err) == (1, True)
    assert int(rows[0]["pairs"]) >= MIN_PAIRS


def test_without_relations_it_says_what_to_do(headscope_command, study_folder: Path):
    result = headscope_command("study", "a.conllu", "--output", "out", "--relations", "none", *OPTIONS)
    assert (result.code, "relations (all there, none now)" in result.err) == (1, True)
    arguments = ("--output", "out", "--relations", "none", "--overwrite")
    assert headscope_command("study", "a.conllu", *arguments, *OPTIONS).code == 0
    assert not (study_folder / output_folder.RELATIONS).exists()
    result = headscope_command("relations", str(study_folder))
    assert (result.code, "this study has no labelled relations: study a treebank" in result.err) == (1, True)


def test_relations_that_are_not_there_are_said(headscope_command, one_figure, tmp_path: Path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "a.conllu").write_text(as_treebank(draw_documents(3)))
    result = headscope_command("study", "a.conllu", "--output", "out", "--relations", "conj,conjj,none", *OPTIONS)
    assert result.code == 0
    assert "the texts have no pairs of these relations: conjj, none" in result.err


def test_few_pairs_are_said(headscope_command, one_figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "120")
    save_tiny_model(tmp_path / "model")
    (tmp_path / "a.conllu").write_text(as_treebank(draw_documents(3)))
    assert headscope_command("study", "a.conllu", "--output", "out", *OPTIONS).code == 0
    result = headscope_command("relations", "out")
    assert "not tested, too few pairs (50 are needed): " in " ".join(result.out.split())


def test_a_broken_treebank_leaves_nothing(headscope_command, tmp_path: Path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "a.conllu").write_text("1\tcat\n")
    result = headscope_command("study", "a.conllu", "--output", "out", *OPTIONS)
    assert (result.code, "a.conllu:1: not CoNLL-U: 2 columns" in result.err) == (1, True)
    assert not (tmp_path / "out").exists()

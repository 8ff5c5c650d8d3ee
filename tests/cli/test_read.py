"""`headscope read`: what it prints and writes, and its exit codes, above all when something is wrong."""

from __future__ import annotations

import io
import json
import sys
import webbrowser
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import headscope
from headscope.model import loading
from headscope.model.model import Model

TEXT = "Two ravens met. The ravens left."

pytestmark = pytest.mark.usefixtures("loaded_once")


def test_a_text_becomes_a_page(headscope_command, tmp_path: Path):
    result = headscope_command("read", TEXT)
    assert (result.code, result.out) == (0, "reading.html\n")
    page = (tmp_path / "reading.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "6 layers × 12 heads · 10 tokens" in page


def test_the_pairs_of_a_head_are_printed(headscope_command, minilm: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = headscope_command("read", TEXT, "--head", "L1H6", "--theta", "0.4")
    expected = headscope.read(minilm, TEXT).pairs(layer=1, head=6, theta=0.4)
    assert f"L1H6 of minilm: {len(expected)} high pairs, θ = 0.4" in result.out
    cells = [line.split() for line in result.out.splitlines()]
    for pair in expected.itertuples():
        row = [pair.token_i, pair.token_j, str(pair.index_i), str(pair.index_j), f"{pair.value:.4g}"]
        assert [*row, f"{pair.relative:.3f}"] in cells


def test_a_head_as_json(headscope_command, minilm: Model):
    result = headscope_command("read", TEXT, "--head", "L1sum", "--json")
    output = json.loads(result.out)
    expected = headscope.read(minilm, TEXT).pairs(layer=1, head="sum")
    assert output["page"] == "reading.html"
    assert output["tokens"][2] == "ravens"
    assert [(pair["index_i"], pair["index_j"]) for pair in output["pairs"]] == list(
        zip(expected.index_i, expected.index_j, strict=True)
    )
    assert result.err == ""


def test_all_heads_as_json(headscope_command, minilm: Model):
    output = json.loads(headscope_command("read", TEXT, "--json").out)
    expected = headscope.read(minilm, TEXT).dominant()
    assert [row["pairs"] for row in output["heads"]] == expected["pairs"].tolist()
    assert [row["token"] for row in output["heads"]] == expected["token"].tolist()


def test_everything_else_it_writes(headscope_command, minilm: Model, tmp_path: Path):
    options = ("--save", "r.nc", "--pairs", "p.parquet", "--figures", "figs", "--formats", "svg", "--layers", "1,3-4")
    result = headscope_command("read", TEXT, *options)
    assert result.code == 0
    saved = headscope.open_reading(tmp_path / "r.nc")
    assert saved.layers == [0, 1, 2, 3, 4, 5]  # what is kept is whole; what is shown is chosen
    table = pd.read_parquet(tmp_path / "p.parquet")
    pd.testing.assert_frame_equal(table, headscope.read(minilm, TEXT).pairs(layer=[1, 3, 4]), check_dtype=False)
    assert sorted(path.name[:6] for path in (tmp_path / "figs").iterdir()) == ["fig-04", "fig-05", "fig-09", "fig-12"]
    assert "3 layers × 12 heads" in (tmp_path / "reading.html").read_text(encoding="utf-8")


def test_a_saved_reading_is_shown_again_without_a_model(headscope_command, monkeypatch: pytest.MonkeyPatch):
    headscope_command("read", TEXT, "--save", "r.nc")
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("no model is needed"))
    result = headscope_command("read", "r.nc", "--head", "L1H6", "--out", "again.html")
    assert result.code == 0
    assert "high pairs" in result.out


def test_thresholds_of_a_saved_reading(headscope_command, minilm: Model):
    headscope_command("read", TEXT, "--theta", "0.5", "--save", "r.nc")
    expected = {theta: len(headscope.read(minilm, TEXT).pairs(layer=1, head=6, theta=theta)) for theta in (0.5, 0.7)}
    assert len(set(expected.values())) == 2
    for options, theta in (((), 0.5), (("--theta", "0.7"), 0.7)):
        output = json.loads(headscope_command("read", "r.nc", "--head", "L1H6", "--json", *options).out)
        assert len(output["pairs"]) == expected[theta]


def test_figures_of_a_saved_reading(headscope_command, tmp_path: Path):
    headscope_command("read", TEXT, "--save", "r.nc")
    result = headscope_command("figures", "r.nc", "--only", "9", "--heads", "L1H6", "--formats", "svg")
    assert result.out.split() == ["figures/fig-09-pairs-in-text.svg"]
    assert ">ravens<" in (tmp_path / "figures" / "fig-09-pairs-in-text.svg").read_text(encoding="utf-8")
    wrong = headscope_command("figures", "r.nc", "--only", "7")
    assert wrong.code == 1
    assert "study" in wrong.err


def test_texts_from_files_and_standard_input(headscope_command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "story.txt").write_text(TEXT, encoding="utf-8")
    result = headscope_command("read", "story.txt", "--json")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(TEXT.encode()))))
    piped = headscope_command("read", "-", "--json")
    assert json.loads(result.out) == json.loads(piped.out) == json.loads(headscope_command("read", TEXT, "--json").out)


def test_without_a_text_the_papers_is_read(headscope_command):
    result = headscope_command("read")
    assert result.code == 0
    assert "reading example:airport-policing" in result.err


def test_a_cut_text_is_said_to_be_cut(headscope_command):
    result = headscope_command("read", TEXT, "--length", "6")
    assert "the first 6 of 10 tokens were read: --length 10 reads more" in result.err


def test_the_page_is_opened(headscope_command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)))
    result = headscope_command("read", TEXT, "--open")
    assert opened == [(tmp_path / "reading.html").as_uri()]
    assert "no browser could be opened" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("read", ""), "empty"),
        (("read", "x", "--head", "8"), "write L11H8"),
        (("read", TEXT, "--head", "L6H0"), "L6H0"),
        (("read", TEXT, "--layers", "9"), "layer 9: the model has layers 0 to 5"),
        (("read", TEXT, "--pairs", "p.xlsx"), ".csv or .parquet"),
        (("read", TEXT, "--theta", "1.5"), "from 0 to below 1"),
        (("read", TEXT, "--length", "4096"), "512"),
        (("read", TEXT, "--out", "nowhere/page.html"), "no folder nowhere"),
        (("read", TEXT, "--model", "no/such/folder"), "no/such/folder"),
        (("read", "example:nothing"), "airport-policing"),
    ],
)
def test_bad_input_is_explained(headscope_command, arguments: tuple[str, ...], words: str):
    result = headscope_command(*arguments)
    assert result.code == 1
    assert words in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("artt.txt", "artt.txt: there is no such file"),
        ("Artt.MD", "Artt.MD: there is no such file"),
        ("artt.jsonl.gz", "artt.jsonl.gz: there is no such file"),
        ("artt.pdf", "artt.pdf: there is no such file"),
        ("texts/artt", "texts/artt: there is no such file"),
        ("texts\\artt", "texts\\artt: there is no such file"),
        ("folder", "folder: a folder; name one file in it"),
        ("memory://artt.txt", "no such file"),
        ("*.txt", "*.txt: there is no such file"),
    ],
)
def test_a_file_that_is_missing_is_not_read_as_text(
    headscope_command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("known before a model is loaded"))
    result = headscope_command("read", text)
    assert (result.code, result.out) == (1, "")
    assert words in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("arguments", [("artt.txt", "--text"), ("and/or", "--text"), ("See artt.txt",), ("Wait...",)])
def test_words_that_look_like_a_file_can_be_read(headscope_command, arguments: tuple[str, ...]):
    result = headscope_command("read", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["tokens_in_text"] > 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("read", TEXT, "--theta", "30"), "theta is 30.0: it is a share of the maximum"),
        (("read", TEXT, "--tau", "-0.3"), "tau is -0.3: it is a share of the maximum"),
        (("read", TEXT, "--length", "0"), "length is 0: a window needs at least 3 tokens"),
        (("read", TEXT, "--save", "nowhere/r.nc"), "there is no folder nowhere"),
        (("read", TEXT, "--pairs", "nowhere/p.csv"), "there is no folder nowhere"),
        (("ablate", "--length", "-5"), "length is -5: a window needs at least 3 tokens"),
        (("ablate", "--batch-size", "-1"), "batch size is -1"),
        (("prune", "minilm", "--keep", "50%", "--length", "-3"), "length is -3"),
        (("study", "results"), "results: holds a study, not texts"),
    ],
)
def test_what_is_known_before_a_model_is_loaded(
    headscope_command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "study.nc").write_bytes(b"")
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("known before a model is loaded"))
    result = headscope_command(*arguments)
    assert (result.code, result.out) == (1, "")
    assert words in result.err


def test_a_file_that_is_no_page_is_not_written_over(headscope_command, tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    result = headscope_command("read", TEXT, "--out", "thesis.txt")
    assert result.code == 1
    assert (tmp_path / "thesis.txt").read_text(encoding="utf-8") == "years of work"
    assert headscope_command("read", TEXT).code == headscope_command("read", TEXT).code == 0  # our own page is replaced


def test_a_damaged_saved_reading_is_explained(headscope_command, tmp_path: Path):
    (tmp_path / "r.nc").write_bytes(b"CDF\x01 nothing of the kind")
    result = headscope_command("read", "r.nc")
    assert result.code == 1
    assert "not readable as netCDF" in result.err

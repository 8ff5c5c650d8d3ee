"""`headscope ablate`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headscope.pruning import ablation
from headscope.pruning.ablation import open_ablation
from headscope.terminal_ablate import show_ablation
from tests import predicting, tiny

TEXTS = "the cat sat. the dog ran!\na b c d e f g\nwho, me? the one.\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama")
    predicting.network("llama").save_pretrained(made)
    tiny.tokenizer().save_pretrained(made)
    return made


@pytest.fixture
def ablate(headscope_command: Any, folder: Path, tmp_path: Path) -> Any:
    (tmp_path / "texts.txt").write_text(TEXTS)

    def run(*arguments: str) -> Any:
        given = ["texts.txt", "--format", "lines", "--length", "16", "--model", str(folder), *arguments]
        return headscope_command("ablate", *given)

    return run


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_has_the_most_needed_first(ablate: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = ablate()
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines() if line.strip()[:1].isdigit() and " L" in line]
    assert [line[0] for line in lines] == [str(k) for k in range(1, 9)]
    changes = [float(line[2]) for line in lines]
    assert changes == sorted(changes, reverse=True)
    assert "3 texts, next-token loss" in " ".join(ran.out.split())
    assert "8 heads: without " in ran.out
    assert max(map(len, ran.out.splitlines())) <= columns


def test_json_files_and_the_same_numbers_in_all(ablate: Any, tmp_path: Path) -> None:
    ran = ablate("--out", "heads", "--csv", "more.csv", "--json", "--heads", "L1H0-2", "--by", "mean")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert [head["name"] for head in found["heads"]] == ["L1H0", "L1H1", "L1H2"]
    kept = open_ablation(tmp_path / "heads")
    assert [head["change"] for head in found["heads"]] == pytest.approx(kept.table()["change"].tolist())
    assert found["objective"]["name"] == "next-token loss"
    assert found["objective"]["value"] == pytest.approx(float(kept.data["objective"]))
    assert found["manifest"]["command"].startswith("headscope ablate texts.txt")
    assert (found["manifest"]["by"], found["manifest"]["limit"]) == ("mean", 64)
    for name in ("heads/ablation.csv", "more.csv"):
        rows = list(csv.DictReader(io.StringIO((tmp_path / name).read_text(encoding="utf-8"))))
        assert [row["name"] for row in rows] == ["L1H0", "L1H1", "L1H2"]
        assert float(rows[0]["change"]) == kept.table()["change"][0]
    again = ablate("--out", "heads")
    assert again.code == 1
    assert "ablation.nc is there already: choose another folder with --out, or say --overwrite" in again.err.replace(
        "\n", " "
    )
    assert ablate("--out", "heads", "--overwrite", "--heads", "L0H0", "--json").code == 0
    assert open_ablation(tmp_path / "heads").table()["name"].tolist() == ["L0H0"]


def test_one_text_has_no_error(ablate: Any) -> None:
    ran = ablate("--limit", "1", "--json", "--heads", "L0H0")
    assert json.loads(ran.out)["heads"][0]["error"] is None
    assert json.loads(ran.out)["objective"]["error"] is None
    assert "–" in ablate("--limit", "1", "--heads", "L0H0").out


def test_an_embedding_has_other_words(headscope_command: Any, loaded_once: None) -> None:
    ran = headscope_command("ablate", "--limit", "2", "--length", "12", "--heads", "L0H0-11,L5H0-11")
    assert ran.code == 0
    words = " ".join(ran.out.split())
    assert "how far a text's embedding moves (1 − cosine) when this head alone writes nothing" in words
    assert "24 heads: the embedding moves by 0.0" in words
    assert "4 heads between" in words
    assert ran.out.count("L5H") + ran.out.count("L0H") == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--heads", "L9H0"], "there is no layer 9"),
        (["--heads", "first"], "'first' is no head: write them like L0H1,L3H4-7"),
        (["--by", "max"], "by is 'max': choose one of zero, mean"),
        (["--limit", "0"], "limit is 0"),
        (["--length", "4000"], "length is 4000"),
        (["--windows", "some"], "windows is 'some'"),
        (["--batch-size", "0"], "batch size is 0"),
        (["--stack", "cross"], "no stack 'cross'"),
        (["--dtype", "int8"], "unknown numeric type"),
        (["--csv", "nowhere/heads.csv"], "nowhere/heads.csv"),
        (["--out", "texts.txt"], "cannot write there"),
        (["missing.txt"], "no such file"),
    ],
)
def test_errors_say_what_to_do(ablate: Any, arguments: list[str], said: str) -> None:
    ran = ablate(*arguments)
    assert ran.code == 1
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_what_was_finished_is_kept(ablate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ablation._Sums.add

    def then_stop(self: Any, *given: Any) -> None:
        if self.places:
            raise KeyboardInterrupt
        add(self, *given)

    monkeypatch.setattr(ablation._Sums, "add", then_stop)
    ran = ablate("--out", "heads", "--batch-size", "1")
    assert (ran.code, ran.out) == (130, "")
    assert "The 1 texts finished until then are in heads, marked incomplete" in " ".join(ran.err.split())
    assert open_ablation(tmp_path / "heads").manifest["complete"] == 0
    monkeypatch.setattr(ablation._Sums, "add", lambda self, *given: then_stop(self, *given) if self.places else stop())
    early = ablate("--out", "other", "--batch-size", "1")
    assert (early.code, "no text was finished" in early.err) == (130, True)


def stop() -> None:
    raise KeyboardInterrupt


def test_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    found = ablation.ablate(tiny.model("bert"), ["a b c d", "e f g"], heads="L0H0", length=8)
    found.data.attrs["model"] = "[red]bert[/red]\x1b[31m"
    show_ablation(found)
    assert "[red]bert[/red]\ufffd[31m" in capsys.readouterr().out

"""`headscope ablate`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from headscope.cli.display.pruning import show_ablation
from headscope.pruning import ablation
from headscope.pruning.ablation_result import open_ablation
from tests.helpers import language_models, tiny

TEXTS = "the cat sat. the dog ran!\na b c d e f g\nwho, me? the one.\n"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    language_models.make_network("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def run_ablate(headscope_command: Any, model_folder: Path, tmp_path: Path) -> Any:
    (tmp_path / "texts.txt").write_text(TEXTS)

    def run(*arguments: str) -> Any:
        command = ["texts.txt", "--format", "lines", "--length", "16", "--model", str(model_folder), *arguments]
        return headscope_command("ablate", *command)

    return run


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_has_the_most_needed_first(run_ablate: Any, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run_ablate()
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines() if line.strip()[:1].isdigit() and " L" in line]
    assert [line[0] for line in lines] == [str(k) for k in range(1, 9)]
    changes = [float(line[2]) for line in lines]
    assert changes == sorted(changes, reverse=True)
    assert "3 texts, next-token loss" in " ".join(result.out.split())
    assert "8 heads: without " in result.out
    assert max(map(len, result.out.splitlines())) <= columns


def test_a_file_of_one_text_per_line_gets_a_note(headscope_command: Any, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("The cat sat on the mat, and the dog ran around the tree.\n" * 12)
    command = ("ablate", "lines.txt", "--model", str(model_folder), "--length", "16", "--heads", "L0H0", "--json")
    result = headscope_command(*command)
    assert "lines.txt: every line looks like a text of its own" in result.err
    assert json.loads(result.out)["manifest"]["texts"] == 1
    result = headscope_command(*command, "--format", "lines")
    assert (json.loads(result.out)["manifest"]["texts"], result.err) == (12, "")


def test_json_files_and_the_same_numbers_in_all(run_ablate: Any, tmp_path: Path) -> None:
    result = run_ablate("--out", "heads", "--csv", "more.csv", "--json", "--heads", "L1H0-2", "--ablation-type", "mean")
    assert result.code == 0
    output = json.loads(result.out)
    assert [head["head"] for head in output["heads"]] == ["L1H0", "L1H1", "L1H2"]
    stored = open_ablation(tmp_path / "heads")
    assert [head["change"] for head in output["heads"]] == pytest.approx(stored.table()["change"].tolist())
    assert output["objective"]["name"] == "next-token loss"
    assert output["objective"]["value"] == pytest.approx(float(stored.data["objective"]))
    assert output["manifest"]["command"].startswith("headscope ablate texts.txt")
    assert (output["manifest"]["ablation_type"], output["manifest"]["limit"]) == ("mean", 64)
    for name in ("heads/ablation.csv", "more.csv"):
        rows = list(csv.DictReader(io.StringIO((tmp_path / name).read_text(encoding="utf-8"))))
        assert [row["head"] for row in rows] == ["L1H0", "L1H1", "L1H2"]
        assert float(rows[0]["change"]) == stored.table()["change"][0]
    again = run_ablate("--out", "heads")
    assert again.code == 1
    assert "ablation.nc is there already: choose another folder with --output, or say --overwrite" in again.err.replace(
        "\n", " "
    )
    assert run_ablate("--out", "heads", "--overwrite", "--heads", "L0H0", "--json").code == 0
    assert open_ablation(tmp_path / "heads").table()["head"].tolist() == ["L0H0"]


def test_one_text_has_no_error(run_ablate: Any) -> None:
    result = run_ablate("--limit", "1", "--json", "--heads", "L0H0")
    assert json.loads(result.out)["heads"][0]["error"] is None
    assert json.loads(result.out)["objective"]["error"] is None
    assert "–" in run_ablate("--limit", "1", "--heads", "L0H0").out


def test_an_embedding_has_other_words(headscope_command: Any, loaded_once: None) -> None:
    result = headscope_command("ablate", "--limit", "2", "--length", "12", "--heads", "L0H0-11,L5H0-11")
    assert result.code == 0
    words = " ".join(result.out.split())
    assert "how far a text's embedding moves (1 − cosine) when this head alone writes nothing" in words
    assert "24 heads: the embedding moves by 0.0" in words
    assert "4 heads between" in words
    assert result.out.count("L5H") + result.out.count("L0H") == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "L9H0"], "heads 'L9H0': layer 9: the model's decoder has layers 0 to 1"),
        (["--heads", "first"], "heads 'first': not a head; write heads like L3H7"),
        (["--limit", "0"], "limit is 0"),
        (["--length", "4000"], "length is 4000"),
        (["--batch-size", "0"], "batch size is 0"),
        (["--stack", "cross"], "no stack 'cross'"),
        (["--csv", "nowhere/heads.csv"], "nowhere/heads.csv"),
        (["--out", "texts.txt"], "cannot write there"),
        (["missing.txt"], "no such file"),
    ],
)
def test_errors_say_what_to_do(run_ablate: Any, arguments: list[str], message: str) -> None:
    result = run_ablate(*arguments)
    assert result.code == 1
    assert message in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert result.out == ""


def test_what_was_finished_is_kept(run_ablate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ablation._TextResults.add

    def add_or_stop(self: Any, *arguments: Any) -> None:
        if self.places:
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(ablation._TextResults, "add", add_or_stop)
    result = run_ablate("--out", "heads", "--batch-size", "1")
    assert (result.code, result.out) == (130, "")
    assert "The 1 texts finished until then are in heads, marked incomplete" in " ".join(result.err.split())
    assert open_ablation(tmp_path / "heads").manifest["complete"] == 0
    monkeypatch.setattr(
        ablation._TextResults,
        "add",
        lambda self, *arguments: add_or_stop(self, *arguments) if self.places else interrupt(),
    )
    early = run_ablate("--out", "other", "--batch-size", "1")
    assert (early.code, "no text was finished" in early.err) == (130, True)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_names_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    result = ablation.ablate(tiny.model("bert"), ["a b c d", "e f g"], heads="L0H0", length=8)
    result.data.attrs["model"] = "[red]bert[/red]\x1b[31m"
    show_ablation(result)
    assert "[red]bert[/red]\ufffd[31m" in capsys.readouterr().out

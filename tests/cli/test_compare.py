"""`headscope compare`: output at several widths, files, and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.cli.display.comparison import show_comparison
from headscope.comparison.claims import VERDICT_LEGEND
from headscope.studies.result import Study
from tests.helpers.comparison_studies import change_head, make_model_study
from tests.helpers.hostile import ALL, make_study


def make_small_study(number: int, **options: Any) -> Study:
    """Return a study of few blocks: its output is the same, and computed faster."""
    return make_model_study(number, **{"texts": 60, "blocks": 12} | options)


@pytest.fixture
def save_studies(tmp_path: Path) -> Any:
    """Return a function that saves studies under names and returns their paths."""

    def save(**studies: Study) -> list[str]:
        return [str(study.save(tmp_path / f"{name}.nc")) for name, study in studies.items()]

    return save


@pytest.fixture(scope="module")
def before_study() -> Study:
    return make_small_study(0)


def test_everything_is_written_and_shown(
    headscope_command: Any, save_studies: Any, before_study: Study, tmp_path: Path
) -> None:
    paths = save_studies(
        before=before_study,
        after=change_head(before_study, 1, 2, share=0.3),
        small=make_small_study(2, layers=4, heads=2),
    )
    result = headscope_command("compare", *paths, "--names", "before,after,small", "--formats", "svg", "--quiet")
    assert result.code == 0, result.err
    for words in ("before", "after", "small", "The paper's claims", "repeat rate", "Heads by type", "1 of 12", "L1H2"):
        assert words in result.out
    assert "of 12 heads changed type" in result.out
    assert "Paired" in result.out
    assert result.out.splitlines()[-1] == "compare/comparison.html"
    assert {path.name for path in (tmp_path / "compare").iterdir()} == {
        "comparison.html", "comparison.json", "differences.csv", "figures",
    }  # fmt: skip
    assert {path.suffix for path in (tmp_path / "compare" / "figures").iterdir()} == {".svg"}


@pytest.fixture(scope="module")
def five_models() -> headscope.Comparison:
    return headscope.compare([make_small_study(k, layers=2 + 9 * k, heads=2) for k in range(5)])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal(
    five_models: headscope.Comparison, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_comparison(five_models)
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= width
    for k in range(5):
        assert f"model-{k}" in output
    sign_counts = [line.count(sign) for line in output.splitlines() for sign in "✗✓–?·" if line[:4].strip().isdigit()]
    assert sum(sign_counts) == 5 * 18
    assert ("±" in re.split("Consistent for|No verdict", output)[0]) == (width == 140)


def test_json(headscope_command: Any, save_studies: Any, before_study: Study) -> None:
    paths = save_studies(one=before_study, other=make_small_study(1, corpus=1))
    result = headscope_command(
        "compare", *paths, "--json", "--alpha", "0.01", "--baseline", "model-1", "--formats", "svg", "--by-head"
    )
    assert result.code == 0
    content = json.loads(result.out)
    assert content["alpha"] == 0.01
    assert content["pairs"][0]["baseline"] == "model-1"
    assert not content["pairs"][0]["paired"]
    assert "warning: Different texts" in result.err
    assert json.loads(Path("compare/comparison.json").read_text("utf-8")) == content


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with studies, and a file that is not a study."""
    folder = tmp_path_factory.mktemp("studies")
    for name, study in {
        "one": make_small_study(0),
        "other": make_small_study(1),
        "long": make_small_study(1, length=32),
    }.items():
        study.save(folder / f"{name}.nc")
    (folder / "broken.nc").write_text("no netCDF")
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "at least two studies, and none was given"),
        (("one.nc",), "at least two studies, and one was given"),
        (("one.nc", "one.nc"), "one and the same study"),
        (("one.nc", "nowhere/"), "nowhere: no study there"),
        (("one.nc", "broken.nc"), "not readable as netCDF"),
        (("one.nc", "other.nc", "--names", "a"), "1 names for 2 studies"),
        (("one.nc", "other.nc", "--baseline", "x"), "no study is called 'x'"),
        (("one.nc", "other.nc", "--alpha", "2"), "alpha is 2.0"),
        (("one.nc", "long.nc"), "tokens in a window: 16 (model-0), 32 (model-1)"),
    ],
)
def test_errors_end_in_one_message(
    headscope_command: Any, study_folder: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = headscope_command(
        "compare", *(str(study_folder / argument) if "." in argument[1:] else argument for argument in arguments)
    )
    assert result.code == 1
    assert words in result.err.replace("\n", " ")
    assert result.out == ""
    assert not (tmp_path / "compare").exists()


def test_a_command_not_understood(headscope_command: Any) -> None:
    assert headscope_command("compare", "a", "b", "--nonsense").code == 2


def test_force_warns_everywhere(headscope_command: Any, save_studies: Any, before_study: Study, tmp_path: Path) -> None:
    paths = save_studies(one=before_study, other=make_small_study(1, theta=0.5))
    result = headscope_command("compare", *paths, "--force", "--formats", "svg")
    assert result.code == 0
    words = "Compared by force"
    assert "warning: " + words in result.out
    folder = tmp_path / "compare"
    assert words in (folder / "comparison.html").read_text("utf-8")
    assert words in json.loads((folder / "comparison.json").read_text("utf-8"))["warnings"][0]
    for figure in (folder / "figures").iterdir():
        assert words in figure.read_text("utf-8"), figure


def test_hostile_names_move_no_cursor(headscope_command: Any, save_studies: Any) -> None:
    paths = save_studies(
        one=make_study(model=f"{ALL}\x1b[31m\r[bold]$x^2$", complete=1),
        other=make_study(model="_hidden", weight_hash="0" * 64, complete=1),
    )
    result = headscope_command("compare", *paths, "--formats", "svg")
    assert result.code == 0, result.err
    assert "\x1b" not in result.out
    assert "\r" not in result.out
    assert "\u202e" not in result.out
    assert "_hidden" in result.out


def test_long_names_and_the_legend_are_shown_in_full(
    before_study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table wider than the terminal is cut off at its edge: of names and legend, parts are lost."""
    monkeypatch.setenv("COLUMNS", "80")
    names = ["minilm bundled openings", "minilm example:airport-policing"]
    show_comparison(headscope.compare([before_study, change_head(before_study, 1, 2, share=0.3)], names=names))
    table = capsys.readouterr().out.split("The paper's claims")[1].split("Rates over depth")[0]
    words = "".join(table.split(" ───")[0].split())
    assert [part in words for part in ("minilmbundled", "example:airpor", "t-policing")] == [True] * 3
    assert " ".join(VERDICT_LEGEND.split()) in " ".join(table.split())

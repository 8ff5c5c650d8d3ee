"""`headscope compare`: what it prints at several widths, writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.studies.result import Study
from headscope.terminal_compare import show_comparison
from tests.compared import changed
from tests.compared import model_study as any_study
from tests.hostile import ALL, make_study


def model_study(number: int, **options: Any) -> Study:
    """A study of few blocks: what is printed of it is the same, and found sooner."""
    return any_study(number, **{"texts": 30, "blocks": 6} | options)


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Save studies under names; returns their places as the command line takes them."""

    def save(**studies: Study) -> list[str]:
        return [str(study.save(tmp_path / f"{name}.nc")) for name, study in studies.items()]

    return save


@pytest.fixture(scope="module")
def before() -> Study:
    return model_study(0)


def test_everything_is_written_and_shown(headscope_command: Any, saved: Any, before: Study, tmp_path: Path) -> None:
    places = saved(before=before, after=changed(before, 1, 2, share=0.3), small=model_study(2, layers=4, heads=2))
    ran = headscope_command("compare", *places, "--names", "before,after,small", "--formats", "svg", "--quiet")
    assert ran.code == 0, ran.err
    for words in ("before", "after", "small", "Hold for", "repeat rate", "Heads by character", "1 of 12", "L1H2"):
        assert words in ran.out
    assert "of 12 heads changed character" in ran.out
    assert "Paired" in ran.out
    assert ran.out.splitlines()[-1] == "compare/comparison.html"
    assert {path.name for path in (tmp_path / "compare").iterdir()} == {
        "comparison.html", "comparison.json", "differences.csv", "figures",
    }  # fmt: skip
    assert {path.suffix for path in (tmp_path / "compare" / "figures").iterdir()} == {".svg"}


@pytest.fixture(scope="module")
def five() -> headscope.Comparison:
    return headscope.compare([model_study(k, layers=2 + 9 * k, heads=2) for k in range(5)])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal(
    five: headscope.Comparison, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_comparison(five)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for k in range(5):
        assert f"model-{k}" in shown
    signs = [line.count(sign) for line in shown.splitlines() for sign in "✗✓–" if line[:4].strip().isdigit()]
    assert sum(signs) == 5 * 12
    assert ("±" in shown.split("Hold for")[0]) == (width == 140)


def test_json(headscope_command: Any, saved: Any, before: Study) -> None:
    places = saved(one=before, other=model_study(1, corpus=1))
    ran = headscope_command(
        "compare", *places, "--json", "--alpha", "0.01", "--baseline", "model-1", "--formats", "svg"
    )
    assert ran.code == 0
    held = json.loads(ran.out)
    assert held["alpha"] == 0.01
    assert held["pairs"][0]["one"] == "model-1"
    assert not held["pairs"][0]["paired"]
    assert "warning: Other texts" in ran.err
    assert json.loads(Path("compare/comparison.json").read_text("utf-8")) == held


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies to choose from, and a file that is none."""
    made = tmp_path_factory.mktemp("studies")
    for name, study in {"one": model_study(0), "other": model_study(1), "long": model_study(1, length=32)}.items():
        study.save(made / f"{name}.nc")
    (made / "broken.nc").write_text("no netCDF")
    return made


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
        (("one.nc", "other.nc", "--formats", "gif"), "cannot be written as gif"),
        (("one.nc", "long.nc"), "tokens in a window: 16 (model-0), 32 (model-1)"),
    ],
)
def test_errors_end_in_one_message(
    headscope_command: Any, folder: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = headscope_command("compare", *(str(folder / each) if "." in each[1:] else each for each in arguments))
    assert ran.code == 1
    assert words in ran.err.replace("\n", " ")
    assert ran.out == ""
    assert not (tmp_path / "compare").exists()


def test_a_command_not_understood(headscope_command: Any) -> None:
    assert headscope_command("compare", "a", "b", "--nonsense").code == 2


def test_force_warns_everywhere(headscope_command: Any, saved: Any, before: Study, tmp_path: Path) -> None:
    places = saved(one=before, other=model_study(1, theta=0.5))
    ran = headscope_command("compare", *places, "--force", "--formats", "svg")
    assert ran.code == 0
    words = "Compared by force"
    assert "warning: " + words in ran.out
    folder = tmp_path / "compare"
    assert words in (folder / "comparison.html").read_text("utf-8")
    assert words in json.loads((folder / "comparison.json").read_text("utf-8"))["warnings"][0]
    for figure in (folder / "figures").iterdir():
        assert words in figure.read_text("utf-8"), figure


def test_hostile_names_move_no_cursor(headscope_command: Any, saved: Any) -> None:
    places = saved(
        one=make_study(model=f"{ALL}\x1b[31m\r[bold]$x^2$", complete=1),
        other=make_study(model="_hidden", weight_hash="0" * 64, complete=1),
    )
    ran = headscope_command("compare", *places, "--formats", "svg")
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    assert "\r" not in ran.out
    assert "\u202e" not in ran.out
    assert "_hidden" in ran.out

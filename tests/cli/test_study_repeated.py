"""The command of a finished study, run again: it returns at once, unless anything changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from headscope import output_folder
from headscope.model import loading
from headscope.studies.result import open_study
from tests.helpers import tiny
from tests.helpers.interrupting import files, save_tiny_model

pytestmark = pytest.mark.usefixtures("one_figure")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def finished_command(headscope_command, model_folder: Path, tmp_path: Path) -> list[str]:
    """Run the command of a study, and return it."""
    (texts,) = files(tmp_path / "in", [20])
    shutil.copytree(model_folder, tmp_path / "model")
    command = ["study", str(texts), "--model", "model", "--length", "24", "--device", "cpu", "--quiet", "--out", "out"]
    result = headscope_command(*command)
    assert result.code == 0, result.err
    return command


def make_refusal(message: str) -> Any:
    def fail(*arguments: object, **options: object) -> None:
        pytest.fail(message)

    return fail


def test_a_finished_study_is_shown_without_its_model(
    headscope_command, monkeypatch: pytest.MonkeyPatch, finished_command: list[str], tmp_path: Path
):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    monkeypatch.setattr(loading, "load", make_refusal("loaded"))
    monkeypatch.setattr(output_folder, "write_study", make_refusal("written"))
    result = headscope_command(*finished_command)
    assert result.code == 0, result.err
    assert "nothing is counted again" in result.err
    assert "the paper's claim" in result.out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


@pytest.mark.parametrize("missing", ["report.html", "heads.csv", "figures"])
def test_missing_files_are_written_again_without_the_model(
    headscope_command, monkeypatch: pytest.MonkeyPatch, finished_command: list[str], tmp_path: Path, missing: str
):
    path = tmp_path / "out" / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.setattr(loading, "load", make_refusal("loaded"))
    assert headscope_command(*finished_command).code == 0
    assert path.exists()


def test_figures_of_the_study_before_are_not_taken_for_those_of_this_one(
    headscope_command, monkeypatch: pytest.MonkeyPatch, finished_command: list[str], tmp_path: Path
):
    def stop(study: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(output_folder, "draw_all", stop)
        assert headscope_command(*finished_command, "--theta", "0.5", "--overwrite").code == 130
    assert not (tmp_path / "out" / "report.html").exists()
    assert headscope_command(*finished_command, "--theta", "0.5").code == 0
    assert "0.5" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--theta", "0.5"], "theta (0.3 there, 0.5 now)"),
        (["--length", "20"], "length (24 there, 20 now)"),
        (["--windows", "all"], "windows (first there, all now)"),
        (["--sample", "0.5"], "sample (1.0 there, 0.5 now)"),
        (["--no-maps"], "maps (1 there, 0 now)"),
        (["--limit", "7"], "limit (none there, 7 now)"),
        (["--share", "1/1"], "share (all there, 1/1 now)"),
        (["--encoding", "utf-8-sig"], "encoding (utf-8 there, utf-8-sig now)"),
        (["--format", "jsonl"], "text_format (auto there, jsonl now)"),
        (["--dtype", "bfloat16"], "dtype (float32 there, bfloat16 now)"),
        (["--kernel", "reference"], "kernel (numba there, reference now)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_another_option_is_another_study(
    headscope_command, finished_command: list[str], options: list[str], message: str
):
    result = headscope_command(*finished_command, *options)
    assert result.code == 1
    assert f"out holds another study, which differs in {message}" in result.err


def test_without_an_option_that_was_given_it_is_another_study(headscope_command, finished_command: list[str]):
    assert headscope_command(*finished_command, "--sample", "0.5", "--overwrite").code == 0
    assert "sample (0.5 there, 1.0 now)" in headscope_command(*finished_command).err


def test_another_field_is_another_study(headscope_command, finished_command: list[str], tmp_path: Path):
    Path(finished_command[1]).write_text(
        '{"text": "the cat sat on the owl.", "title": "the owl sat on the cat."}\n' * 5
    )
    assert headscope_command(*finished_command, "--overwrite").code == 0
    result = headscope_command(*finished_command, "--field", "title")
    assert result.code == 1
    assert "field (text there, title now)" in result.err


def test_changed_texts_are_another_study(headscope_command, finished_command: list[str]):
    with open(finished_command[1], "a", encoding="utf-8") as file:
        file.write('{"text": "the owl sat on the cat."}\n')
    result = headscope_command(*finished_command)
    assert result.code == 1
    assert "out holds this study of earlier versions of its files" in result.err


def test_texts_changed_without_another_size_are_another_study(headscope_command, finished_command: list[str]):
    path = Path(finished_command[1])
    text = path.read_text("utf-8")
    path.write_text(text.replace("cat", "owl", 1), "utf-8")
    os.utime(path, ns=(1, 1))
    result = headscope_command(*finished_command)
    assert result.code == 1
    assert "earlier versions" in result.err


def test_changed_weights_are_another_study(headscope_command, finished_command: list[str], tmp_path: Path):
    tiny.network("bert", seed=1).save_pretrained(tmp_path / "model")
    result = headscope_command(*finished_command)
    assert result.code == 1
    assert "out holds another study, which differs in weight_hash" in result.err


def test_an_incomplete_study_is_counted_on(headscope_command, finished_command: list[str], tmp_path: Path):
    path = tmp_path / "out" / "study.nc"
    study = open_study(path)
    study.data.attrs["complete"] = 0
    study.save(path)
    result = headscope_command(*finished_command)
    assert result.code == 0, result.err
    assert "nothing is counted again" not in result.err
    assert open_study(path).manifest["complete"] == 1

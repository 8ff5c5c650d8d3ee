"""Where a command writes: a full disk or closed pipe behind stdout, and files that belong to the user."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import headscope
from headscope import output_folder
from headscope.errors import StudyError
from headscope.figures import style as figure_files
from tests.helpers.comparison_studies import make_model_study
from tests.helpers.interrupting import files, save_tiny_model

FULL = Path("/dev/full")
MAIN_WITHOUT_FIGURES = (
    "from headscope import output_folder; output_folder.write_figures = lambda *arguments: []; "
    "from headscope.cli import main; main()"
)
MAIN = "from headscope.__main__ import main; main()"
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.fixture(scope="module")
def saved_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = make_model_study(0, texts=60, layers=4, heads=3, blocks=12, model="synthetic")
    return study.save(tmp_path_factory.mktemp("saved") / "study.nc")


COMMANDS = [["models"], ["models", "--json"], ["--version"], ["--help"], ["findings", "STUDY"],
            ["findings", "STUDY", "--json"], ["heads", "STUDY"]]  # fmt: skip


@needs_full
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_stdout_is_one_line(saved_study: Path, command: list[str]):
    arguments = [str(saved_study) if part == "STUDY" else part for part in command]
    with FULL.open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert result.returncode == 1, result.stderr
    assert result.stderr == "headscope: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_closed_pipe_is_quiet(saved_study: Path, command: list[str]):
    arguments = [str(saved_study) if part == "STUDY" else part for part in command]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-c", MAIN, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(writer)
    assert result.returncode == 1, result.stderr
    assert result.stderr == ""


@needs_full
def test_a_study_is_kept_where_its_findings_cannot_be_shown(tmp_path: Path):
    folder, (texts,) = save_tiny_model(tmp_path / "model"), files(tmp_path / "in", [8])
    command = ["study", str(texts), "--model", str(folder), "--length", "24", "--quiet", "--out", "out"]
    with FULL.open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", MAIN_WITHOUT_FIGURES, *command],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith("headscope: standard output cannot be written: No space left on device\n")
    assert headscope.open_study(tmp_path / "out").manifest["complete"] == 1
    assert not (tmp_path / "out" / "checkpoint").exists()


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    folder, (texts,) = save_tiny_model(tmp_path / "model"), files(tmp_path / "in", [8])
    return ["study", str(texts), "--model", str(folder), "--length", "24", "--quiet"]


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["", "--overwrite"])
@pytest.mark.parametrize(
    "name", ["report.html", "heads.csv", "findings.json", "findings.md", "figures/fig-07-distances.pdf", "figures"]
)
def test_the_users_own_files_are_not_replaced(
    headscope_command, command: list[str], tmp_path: Path, name: str, options: list[str]
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = list_files(tmp_path)
    result = headscope_command(*command, "--out", ".", *options)
    assert result.code == 1
    assert f"{name} is there already, and headscope did not write it" in result.err
    assert list_files(tmp_path) == before
    result = headscope_command("merge", "a", "b", "--out", ".", *options)
    assert result.code == 1
    assert f"{name} is there already, and headscope did not write it" in result.err
    assert list_files(tmp_path) == before


@pytest.mark.usefixtures("one_figure")
def test_other_files_may_lie_beside_a_study(headscope_command, command: list[str], tmp_path: Path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_text("mine")
    (tmp_path / "notes.md").write_text("mine")
    before = list_files(tmp_path)
    result = headscope_command(*command, "--out", ".")
    assert result.code == 0, result.err
    assert before.items() <= list_files(tmp_path).items()


@pytest.mark.usefixtures("one_figure")
def test_a_study_of_ours_is_replaced_on_request(headscope_command, command: list[str], tmp_path: Path):
    assert headscope_command(*command, "--out", "out").code == 0
    assert headscope_command(*command, "--out", "out", "--theta", "0.5", "--overwrite").code == 0
    (tmp_path / "out" / "study.nc").unlink()  # files beside a report of headscope may be replaced
    assert headscope_command(*command, "--out", "out").code == 0
    (tmp_path / "out" / "report.html").write_text("mine")
    result = headscope_command(*command, "--out", "out", "--overwrite")
    assert result.code == 1
    assert "report.html is there already" in result.err


def test_a_folder_that_another_process_removes_is_no_error(tmp_path: Path):
    from headscope.errors import StudyError
    from headscope.file_io import create_folder

    with create_folder(tmp_path / "a" / "b", StudyError):
        (tmp_path / "a" / "b").rmdir()
    assert not (tmp_path / "a" / "b").exists()
    with create_folder(tmp_path / "c" / "d", StudyError):
        (tmp_path / "c" / "mine").write_text("mine")
    assert list((tmp_path / "c").iterdir()) == [tmp_path / "c" / "mine"]


@pytest.mark.parametrize(
    "command",
    [
        ["study", "x.txt", "--model", "./absent"],
        ["study", "special.txt"],
        ["study", "special.txt", "--checkpoint-dir", "new/deep"],
        ["study", "special.txt", "--checkpoint-dir", "another/deep"],
        ["ablate", "x.txt", "--model", "./absent"],
        ["merge", "one.nc", "one.nc"],
        ["merge", "one.nc", "absent"],
        ["compare", "one.nc", "absent"],
        ["prune", "./absent", "--keep", "1"],
        ["figures", "one.nc", "--only", "99"],
        ["figures", "one.nc", "--only", "7,9"],
        ["figures", "one.nc", "--only", "7", "--layers", "99"],
        ["figures", "x.txt"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("loaded_once")
def test_a_command_that_fails_leaves_no_folder(
    headscope_command, saved_study: Path, tmp_path: Path, command: list[str]
):
    (tmp_path / "one.nc").write_bytes(saved_study.read_bytes())
    (tmp_path / "x.txt").write_text("Rain fell.")
    (tmp_path / "special.txt").write_text("[CLS] [SEP]")
    result = headscope_command(*command, "--output", "new/folder")
    assert result.code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.nc", "special.txt", "x.txt"]


@pytest.mark.parametrize(
    "command",
    [
        ["read", "x.txt", "--head", "L99H0", "--output", "page.html", "--save", "r.nc", "--figures", "new/figures"],
        ["read", "x.txt", "--layers", "99", "--output", "page.html", "--pairs", "p.csv", "--figures", "new"],
        ["segment", "x.txt", "--count", "99", "--output", "page.html"],
        ["heads", "one.nc", "--type", "nonsense", "--csv", "heads.csv"],
        ["report", "x.txt"],
        ["report", "one.nc", "--output", "new/page.html"],
        ["findings", "one.nc", "--json", "--markdown"],
        ["inspect", "minilm", "--model", "minilm"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("loaded_once")
def test_a_command_that_fails_leaves_no_file(headscope_command, saved_study: Path, tmp_path: Path, command: list[str]):
    (tmp_path / "one.nc").write_bytes(saved_study.read_bytes())
    (tmp_path / "x.txt").write_text("Rain fell. Snow fell too.")
    result = headscope_command(*command)
    assert result.code in (1, 2), result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.nc", "x.txt"]


def test_my_page_is_not_replaced_by_a_report(headscope_command, saved_study: Path, tmp_path: Path):
    for path in (tmp_path / "mine.html", tmp_path / "study" / "report.html"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        (path.parent / "study.nc").write_bytes(saved_study.read_bytes())
        output = ["--output", "mine.html"] if path.name == "mine.html" else []
        result = headscope_command("report", str(path.parent), *output)
        assert result.code == 1
        assert f"{path.name} is there already, and is no page of headscope" in result.err
        assert path.read_text() == "mine"


def test_a_study_that_is_not_there_is_named_once(headscope_command, saved_study: Path, tmp_path: Path):
    (tmp_path / "one.nc").write_bytes(saved_study.read_bytes())
    assert headscope_command("merge", "one.nc", "absent").err == "headscope: absent: no study there\n"


def test_a_full_disk_leaves_no_folder(
    headscope_command, saved_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def refuse(*arguments: object) -> None:
        raise StudyError("full")

    (tmp_path / "one.nc").write_bytes(saved_study.read_bytes())
    make_model_study(1, texts=60, layers=4, heads=3, blocks=12, model="other").save(tmp_path / "other.nc")
    monkeypatch.setattr(figure_files, "_render_figure", fail)
    monkeypatch.setattr(output_folder, "write_atomically", refuse)
    assert "No space left" in headscope_command("figures", "one.nc", "--only", "7", "--output", "new/folder").err
    assert "full" in headscope_command("compare", "one.nc", "other.nc", "--output", "new/folder").err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.nc", "other.nc"]


@pytest.mark.usefixtures("one_figure")
def test_without_numba_compiling_the_vectorized_kernel_counts(
    headscope_command, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)  # as NUMBA_DISABLE_JIT=1 does
    result = headscope_command(*command, "--out", "out", "--device", "cpu", "--kernel", "numba")
    assert result.code == 1
    assert "the kernel numba cannot do this: its compiler is turned off (NUMBA_DISABLE_JIT)" in result.err
    assert not (tmp_path / "out").exists()
    result = headscope_command(*command, "--out", "out", "--device", "cpu")
    assert result.code == 0, result.err
    manifest = headscope.open_study(tmp_path / "out").manifest
    assert manifest["kernel"] == "torch"
    assert manifest["kernel_note"] == "not numba: its compiler is turned off (NUMBA_DISABLE_JIT)"


@pytest.mark.usefixtures("one_figure")
def test_all_files_of_a_study_are_checked(tmp_path: Path):
    study = make_model_study(0, texts=60, layers=4, heads=3, blocks=12, model="synthetic")
    (tmp_path / "out").mkdir()
    output_folder.write_study(study, tmp_path / "out")
    for number, name in enumerate(list_files(tmp_path / "out").keys() - {"study.nc"}):
        path = tmp_path / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        with pytest.raises(headscope.StudyError, match="headscope did not write it"):
            output_folder.check_folder(tmp_path / str(number))

"""The command line: what it prints and writes, and its exit codes, above all when something is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headscope
from headscope.cli import COMMANDS, PANELS
from headscope.cli.display import console
from headscope.cli.display.console import StepLog, StudyLog
from headscope.run.run import Progress
from tests.helpers.comparison_studies import make_model_study


@pytest.fixture(scope="module")
def saved_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a study that is made without a model; its few blocks make results faster."""
    study = make_model_study(0, texts=60, layers=4, heads=3, blocks=12, model="synthetic")
    return study.save(tmp_path_factory.mktemp("saved") / "study.nc")


@pytest.fixture
def study_folder(saved_study: Path, tmp_path: Path) -> Path:
    """Copy this study into a folder of its own, which the test may change."""
    (tmp_path / "study").mkdir()
    return Path(shutil.copy(saved_study, tmp_path / "study")).parent


def test_study_writes_the_whole_folder(headscope_command, corpus: Path, tmp_path: Path):
    result = headscope_command("study", str(corpus), "--out", "out", "--batch-size", "3")
    assert result.code == 0, result.err
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"study.nc", "findings.md", "findings.json", "heads.csv", "report.html"} <= names
    figures = {Path(name).stem for name in names if name.startswith("figures/")}
    assert len(figures) == 14
    assert all({f"figures/{stem}.{kind}" for kind in ("png", "svg", "pdf")} <= names for stem in figures)
    assert not any(Path(name).name.startswith(".") for name in names)
    assert "the paper's claim" in result.out
    assert "too few texts" in result.out
    assert "Report: out/report.html" in result.err
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    study = headscope.open_study(tmp_path / "out")
    assert study.texts == 4
    assert study.manifest["command"].startswith("headscope study")


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_the_same_command_again_makes_the_same_study_in_the_same_place(headscope_command, corpus: Path):
    for _ in range(2):
        assert headscope_command("study", str(corpus), "--out", "out").code == 0


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_json_goes_to_stdout_alone(headscope_command, corpus: Path):
    result = headscope_command("study", str(corpus), "--out", "out", "--json", "--limit", "2")
    assert result.code == 0, result.err
    read = json.loads(result.out)
    assert len(read["findings"]) == 18
    assert read["manifest"]["documents_read"] == 2
    assert result.err == ""


def test_without_a_terminal_progress_is_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]):
    log = StudyLog(clock=iter([100.0, 101.0, 129.0, 131.0, 160.0, 165.0, 200.0]).__next__)
    for texts in (10, 20, 1062, 2000, 3065):
        log(Progress(texts, 2 * texts, 10_000, texts_before=1000, documents_before=2000))
    assert capsys.readouterr().err.splitlines() == [
        "studying: 1,062 texts, 2,124 of 10,000 documents, 2.0 texts/s",
        "studying: 3,065 texts, 6,130 of 10,000 documents, 31.8 texts/s",
    ]
    log(Progress(4000, 4000, None, unit="images"))
    assert capsys.readouterr().err == "studying: 4,000 images, 4,000 documents, 40.0 images/s\n"


def test_steps_are_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]):
    times = iter([0, 29.9, 30, 59, 60])
    log = StepLog(lambda: next(times))
    for done in (1, 2, 3):
        log("ranking", done, 4)
    log("reading", 1_200, 0)
    assert capsys.readouterr().err.splitlines() == ["ranking: 2 of 4", "reading: 1,200"]


def test_a_status_is_repeated_without_a_terminal(monkeypatch: pytest.MonkeyPatch):
    printed, notes = threading.Event(), []

    def print_note(message: object) -> None:
        notes.append(message)
        printed.set()

    monkeypatch.setattr(console, "print_note", print_note)
    monkeypatch.setattr(console, "STATUS_INTERVAL", 0.001)
    with console.show_status("comparing", quiet=True):
        pass
    assert notes == []
    with console.show_status("comparing", quiet=False):
        assert printed.wait(60)
    assert re.fullmatch(r"comparing: \d+ s so far", notes[0])
    count = len(notes)
    with console.show_status("comparing", quiet=True):
        pass
    assert len(notes) == count


@pytest.mark.usefixtures("one_figure", "loaded_once")
@pytest.mark.parametrize(("options", "lines"), [([], True), (["--quiet"], False), (["--json"], False)], ids=str)
def test_progress_without_a_terminal(
    headscope_command, corpus: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], lines: bool
):
    monkeypatch.setattr(console, "LOG_INTERVAL", 0)
    result = headscope_command("study", str(corpus), "--output", "out", *options)
    assert result.code == 0
    assert ("studying: 4 texts, 4 of 4 documents, " in result.err) == lines


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_another_study_in_the_folder_is_not_replaced(headscope_command, corpus: Path, tmp_path: Path):
    assert headscope_command("study", str(corpus), "--out", "out", "--limit", "1").code == 0
    before = (tmp_path / "out" / "study.nc").read_bytes()
    result = headscope_command("study", str(corpus), "--out", "out", "--theta", "0.5", "--limit", "1")
    assert result.code == 1
    assert "holds another study" in result.err
    assert "theta (0.3 there, 0.5 now)" in result.err
    assert "--overwrite" in result.err
    # Fewer or more documents of the same corpus are another study too.
    assert "limit (1 there, none now)" in headscope_command("study", str(corpus), "--out", "out").err
    assert (tmp_path / "out" / "study.nc").read_bytes() == before
    assert (
        headscope_command("study", str(corpus), "--out", "out", "--theta", "0.5", "--limit", "1", "--overwrite").code
        == 0
    )
    assert headscope.open_study("out").manifest["theta"] == 0.5


def test_a_strange_file_in_the_folder_is_not_replaced(headscope_command, corpus: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.nc").write_text("mine")
    result = headscope_command("study", str(corpus), "--out", "out")
    assert result.code == 1
    assert "not readable as netCDF" in result.err
    assert (tmp_path / "out" / "study.nc").read_text() == "mine"


def test_a_broken_line_of_a_small_corpus_is_found_before_any_work(headscope_command, corpus: Path, tmp_path: Path):
    with corpus.open("a", encoding="utf-8") as file:
        file.write('\n{"text": "broken')
    result = headscope_command("study", str(corpus), "--out", "out")
    assert result.code == 1
    assert "corpus.jsonl:5: not a JSON object" in result.err
    assert not (tmp_path / "out" / "study.nc").exists()


BAD = {
    "missing file": (["study", "absent.txt"], ["absent.txt", "no such file"]),
    "empty glob": (["study", "*.nothing"], ["no file matches"]),
    "binary file": (["study", "binary.txt"], ["binary.txt", "binary", "--encoding"]),
    "wrong encoding": (["study", "latin.txt"], ["latin.txt", "0xe9", "--encoding"]),
    "missing field": (["study", "corpus.jsonl", "--field", "body"], ["corpus.jsonl:1", "'body'", "title, text"]),
    "missing model": (["study", "corpus.jsonl", "--model", "./absent-model"], ["absent-model", "no such folder"]),
    "model without weights": (["study", "corpus.jsonl", "--model", "hollow"], ["hollow", "no weights", "safetensors"]),
    "pickled weights": (
        ["study", "corpus.jsonl", "--model", "pickled"],
        ["pickled", "pytorch_model.bin", "--allow-pickle"],
    ),
    "window too long": (["study", "corpus.jsonl", "--length", "600"], ["512", "--length"]),
    "only special tokens": (["study", "special.txt"], ["no text to study", "only special tokens"]),
    "unwritable output": (["study", "corpus.jsonl", "--out", "corpus.jsonl/out"], ["cannot write", "--out"]),
    "unknown device": (["study", "corpus.jsonl", "--device", "abacus"], ["abacus"]),
    "no study": (["findings", "absent"], ["absent", "no study there"]),
    "no study for figures": (["figures", "absent"], ["no study there"]),
    "no study for a report": (["report", "absent"], ["no study there"]),
    "unknown example": (["study", "example:absent"], ["airport-policing, gerstenslager"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_clear_error(headscope_command, corpus: Path, tmp_path: Path, case: str):
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2\3" * 10)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "special.txt").write_text("[CLS] [SEP]")
    for name in ("hollow", "pickled"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    arguments, fragments = BAD[case]
    result = headscope_command(*arguments)
    assert result.code == 1, (result.out, result.err)
    for fragment in fragments:
        assert fragment in result.err, result.err
    assert "Traceback" not in result.err
    assert result.out == ""
    assert not list(tmp_path.rglob("*.nc"))


def test_an_error_cannot_command_the_terminal(headscope_command):
    result = headscope_command("study", "\x1b[31mred\x1b]0;title\x07.txt")
    assert result.code == 1
    assert "\x07" not in result.err
    assert "\x1b]0" not in result.err
    assert "red" in result.err


def test_every_command_has_the_same_short_options(headscope_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name in COMMANDS:
        short, long = (headscope_command(name, option) for option in ("-h", "--help"))
        assert short.code == 0
        assert short.out == long.out
        if name in ("study", "merge", "read", "segment", "figures", "report", "compare", "ablate", "prune", "export"):
            assert re.search(r"--output +-o ", short.out), name
        assert not re.search(r"--out\b", short.out), name
    assert headscope_command("-h").out == headscope_command("--help").out


@pytest.mark.parametrize("command", ["study", "read", "segment", "ablate", "prune", "export"])
@pytest.mark.parametrize("width", ["80", "120"])
def test_help_of_long_commands_has_panels(headscope_command, monkeypatch: pytest.MonkeyPatch, command: str, width: str):
    monkeypatch.setenv("COLUMNS", width)
    text = headscope_command(command, "--help").out
    assert re.findall(r"^╭─ (\w+) ", text, re.M) == ["Arguments", *PANELS]
    assert not re.search(r"--[\w-]*…", text)  # no name of an option is cut


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("headscope stu", ["study"]),
        ("headscope study --checkpoint-d", ["--checkpoint-dir"]),
        ("headscope study --engine ", ["local", "ray"]),
    ],
)
def test_the_shell_completes(headscope_command, monkeypatch: pytest.MonkeyPatch, words: str, completed: list[str]):
    assert "--install-completion" in headscope_command("--help").out
    monkeypatch.setenv("_HEADSCOPE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert headscope_command().out.split() == completed


@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize("option", [["-o", "page.html"], ["--output=page.html"], ["--out", "page.html"]], ids=str)
def test_names_of_the_output_option(headscope_command, study_folder: Path, tmp_path: Path, option: list[str]):
    assert headscope_command("report", str(study_folder), *option).out == "page.html\n"
    assert (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "arguments", [["study", "--no-such-option"], ["nonsense"], ["study", "--length", "many"], ["findings"]]
)
def test_a_command_not_understood_exits_with_2(headscope_command, arguments: list[str]):
    result = headscope_command(*arguments)
    assert result.code == 2
    assert "Traceback" not in result.err


def test_findings_of_a_study(headscope_command, study_folder: Path):
    table = headscope_command("findings", str(study_folder))
    assert table.code == 0
    assert table.out.count("consistent") + table.out.count("undecided") + table.out.count("not measurable") >= 18
    read = json.loads(headscope_command("findings", str(study_folder), "--json").out)
    assert [finding["number"] for finding in read["findings"]] == list(range(1, 19))
    assert headscope_command("findings", str(study_folder), "--markdown").out.startswith("# Findings: synthetic")


def test_figures_of_a_study(headscope_command, study_folder: Path, tmp_path: Path):
    result = headscope_command(
        "figures", str(study_folder), "--only", "7,11b", "--layers", "0,2-3", "--formats", "svg", "--out", "pictures"
    )
    assert result.code == 0, result.err
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "fig-07-distances.svg",
        "fig-11b-distinct-dominants.svg",
    ]
    assert "L3H2" in (tmp_path / "pictures" / "fig-07-distances.svg").read_text(encoding="utf-8")
    written = json.loads(headscope_command("figures", str(study_folder / "study.nc"), "--only", "13", "--json").out)
    assert [Path(path).suffix for path in written] == [".png", ".svg", ".pdf"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "99"], "99"),
        (["--layers", "9"], "layer 9: the study has layers 0 to 3"),
        (["--layers", "a-b"], "like 0,5,10-11"),
        (["--heads", "2,8"], "heads '2': not a head; write heads like L3H7"),
        (["--heads", "L0H1,L2"], "name the same ones in every layer"),
        (["--out", "study/study.nc/below"], "cannot write there"),
    ],
)
def test_figures_that_cannot_be_drawn(headscope_command, study_folder: Path, options: list[str], message: str):
    result = headscope_command("figures", str(study_folder), *options)
    assert result.code == 1
    assert message in result.err


@pytest.mark.usefixtures("one_figure")
def test_report_of_a_study(headscope_command, study_folder: Path, tmp_path: Path):
    assert headscope_command("report", str(study_folder)).code == 0
    assert (study_folder / "report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert headscope_command("report", str(study_folder), "--out", "page.html").out.strip() == "page.html"
    assert (tmp_path / "page.html").exists()
    assert headscope_command("report", str(study_folder), "--out", "no/such/folder.html").code == 1


def test_models(headscope_command):
    result = headscope_command("models")
    assert result.code == 0
    assert "minilm" in result.out
    assert "save_pretrained" in result.out
    listed = json.loads(headscope_command("models", "--json").out)
    assert listed[0]["name"] == "minilm"
    assert listed[0]["ready"] is True


def test_help_has_examples(headscope_command):
    result = headscope_command("study", "--help")
    assert result.code == 0
    assert "headscope study articles.jsonl --model google-bert/bert-base-uncased" in " ".join(result.out.split())
    assert headscope_command("--version").out.strip() == f"headscope {headscope.__version__}"
    assert all(name in headscope_command("--help").out for name in ("study", "findings", "figures", "report", "models"))


def test_help_is_quick():
    """`--help` must not wait for torch: it is what people call first."""
    code = "import sys; import headscope.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0


def test_what_was_made_is_shown_without_torch(study_folder: Path):
    """It takes seconds to import, and only a model needs it."""
    commands = [["findings", "study"], ["heads", "study"], ["models"], ["report", "study"]]
    commands.append(["figures", "study", "--only", "7", "--formats", "svg"])
    code = f"""
import sys
from headscope.cli import main
for command in {commands}:
    sys.argv = ["headscope", *command]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (command, ended.code)
    assert not {{"torch", "transformers"}} & set(sys.modules), command
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=study_folder.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

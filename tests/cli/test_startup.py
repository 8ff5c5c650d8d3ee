"""How a command starts: signals during startup, and wrong options before anything slow is imported."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from headscope.cli import COMMANDS
from headscope.corpus.formats import FORMATS
from headscope.corpus.windows import SentenceMode, WindowMode
from headscope.figures import FORMATS as FIGURE_FORMATS
from headscope.model.architecture import STACKS
from headscope.model.interventions import AblationType
from headscope.model.loading import DTYPES
from headscope.page.quantization import PRECISIONS
from headscope.pruning.rankings import RULES
from headscope.pruning.removal import How
from headscope.run.engines import ENGINES
from headscope.segmentation.result import Level
from headscope.settings import AUTO, KERNELS
from tests.helpers.interrupting import files, save_tiny_model

SIGNAL_ON_IMPORT = """
import os, sys
from headscope.__main__ import main
module, number = sys.argv[1], int(sys.argv[2])
class SignalOnImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, SignalOnImport)
sys.argv = ["headscope", *sys.argv[3:]]
main()
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("typer", signal.SIGINT),
        ("headscope.cli.study", signal.SIGTERM),
        ("headscope.settings", signal.SIGINT),
        ("torch", signal.SIGTERM),
        ("transformers.models.bert.modeling_bert", signal.SIGINT),
    ],
)
def test_a_signal_during_an_import_ends_the_command_with_one_line(
    model_folder: Path, tmp_path: Path, module: str, number
):
    (texts,) = files(tmp_path / "in", [5])
    command = ["study", str(texts), "--model", str(model_folder), "--length", "24", "--out", "out"]
    result = subprocess.run(
        [sys.executable, "-c", SIGNAL_ON_IMPORT, module, str(int(number)), *command],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 128 + number, result.stderr
    assert result.stderr.endswith(f"headscope: {'terminated' if number == signal.SIGTERM else 'interrupted'}\n")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "out").exists()


WRONG = {
    "theta": (["study", "--theta", "2"], "theta is 2.0"),
    "theta that is no number": (["study", "--theta", "nan"], "theta is nan"),
    "sample": (["study", "--sample", "nan"], "sample is nan"),
    "address without ray": (["study", "--address", "auto"], "say --engine ray"),
    "workers": (["study", "--engine", "ray", "--workers", "0"], "workers is 0"),
    "more workers than there are": (["study", "--engine", "ray", "--workers", str(10**30)], "from 1 to 100,000"),
    "share 0": (["study", "--share", "0/4"], "share is '0/4': write NUMBER/TOTAL"),
    "share 5 of 4": (["study", "--share", "5/4"], "share is '5/4': write NUMBER/TOTAL"),
    "share in words": (["study", "--share", "abc"], "share is 'abc': write NUMBER/TOTAL"),
    "share with a limit": (["study", "--share", "1/4", "--limit", "9"], "leave --limit out, or --share"),
    "no head": (["ablate", "--heads", "L0H1,first"], "heads 'first': not a head; write heads like L3H7"),
    "no head to prune": (["prune", "--heads", "3,4"], "heads '3': not a head; write heads like L3H7"),
    "no layer": (["figures", "bert", "--layers", "first"], "layers 'first': not a layer; write layers like 0,5,10-11"),
    "missing file": (["study", "absent.jsonl"], "'absent.jsonl': no such file"),
    "endless device": (["study", "/dev/zero", "--skip-broken"], "/dev/zero: a device"),
    "length": (["study", "--length", str(10**30)], "at most 1,048,576"),
    "batch size": (["study", "--batch-size", str(10**30)], "from 1 to 1,048,576"),
    "no batch size": (["study", "--batch-size", "0"], "from 1 to 1,048,576"),
    "interval": (["study", "--checkpoint-interval", "nan"], "nan seconds between checkpoints"),
    "negative interval": (["study", "--checkpoint-interval", "-inf"], "-inf seconds between checkpoints"),
    "model": (["study", "--model", "./absent"], "absent: no such folder"),
    "output": (["study", "--out", "mine.txt/out"], "cannot write there"),
}


def test_wrong_options_are_reported_before_torch_is_imported(tmp_path: Path):
    """All in one process: the necessary imports take a second."""
    (tmp_path / "mine.txt").write_text("mine")
    code = f"""
import contextlib, io, sys
from headscope.cli import main
for name, (command, expected) in {WRONG}.items():
    sys.argv = ["headscope", *command]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 1, (name, ended.code, errors.getvalue())
        else:
            raise AssertionError(name)
    assert expected in errors.getvalue(), (name, errors.getvalue())
    assert "Traceback" not in errors.getvalue(), name
    assert "torch" not in sys.modules, name
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


CHOICES = {
    "format": ("auto", *FORMATS),
    "windows": get_args(WindowMode),
    "sentences": get_args(SentenceMode),
    "stack": STACKS,
    "dtype": tuple(DTYPES),
    "kernel": (AUTO, *KERNELS),
    "engine": ENGINES,
    "level": get_args(Level),
    "precision": ("auto", *PRECISIONS),
    "how": get_args(How),
    "formats": FIGURE_FORMATS,
    "by": RULES,
    "ablation_type": get_args(AblationType),
}


def list_choices() -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the choices of all options of all commands."""
    return {
        (command, parameter.replace("_", "-")): CHOICES[parameter]
        for command, function in COMMANDS.items()
        for parameter in inspect.signature(function).parameters
        if parameter in CHOICES
    }


def test_help_shows_all_choices(headscope_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "300")
    for (command, option), choices in list_choices().items():
        lines = headscope_command(command, "-h").out.splitlines()
        line = next(line for line in lines if re.match(rf"\W*--{option} ", line))
        assert all(re.search(rf"\b{choice}\b", line) for choice in choices), (command, option, line)


def test_other_choices_are_refused_before_torch_is_imported(tmp_path: Path):
    code = f"""
import contextlib, io, sys
from headscope.cli import main
for (command, option), choices in {list_choices()}.items():
    sys.argv = ["headscope", command, "--" + option, "magic", *(["study"] if command == "figures" else [])]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as ended:
            assert ended.code == 2, (command, option, ended.code)
        else:
            raise AssertionError(sys.argv)
    assert ", ".join(map(repr, choices)) in errors.getvalue(), (command, option, errors.getvalue())
    assert "torch" not in sys.modules, (command, option)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "suggestion"),
    [
        (["stduy"], "Did you mean 'study'?"),
        (["segmnet", "text"], "Did you mean 'segment'?"),
        (["study", "--kernle", "auto"], "--kernel"),
        (["prune", "minilm", "--ouptut", "small"], "--output"),
    ],
    ids=" ".join,
)
def test_a_mistyped_name_gets_a_suggestion_before_torch_is_imported(
    tmp_path: Path, command: list[str], suggestion: str
):
    code = f"""
import sys
from headscope.cli import main
sys.argv = ["headscope", *{command}]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert suggestion in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("one_figure")
@pytest.mark.parametrize(
    "options",
    [
        ["--limit", str(10**30)],
        ["--checkpoint-interval", "inf"],
        ["--checkpoint-interval", "1e300"],
        ["--batch-size", str(2**20)],
        ["--min-tokens", "1"],
    ],
    ids=" ".join,
)
def test_extreme_options_work(headscope_command, model_folder: Path, tmp_path: Path, options: list[str]):
    (texts,) = files(tmp_path / "in", [5])
    result = headscope_command(
        "study", str(texts), "--model", str(model_folder), "--length", "24", "--out", "out", *options
    )
    assert result.code == 0, result.err

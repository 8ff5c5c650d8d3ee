"""How a command starts: signals during startup, and wrong options before anything slow is imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    "engine": (["study", "--engine", "magic"], "there are: local, ray"),
    "address without ray": (["study", "--address", "auto"], "say --engine ray"),
    "workers": (["study", "--engine", "ray", "--workers", "0"], "workers is 0"),
    "more workers than there are": (["study", "--engine", "ray", "--workers", str(10**30)], "from 1 to 100,000"),
    "share 0": (["study", "--share", "0/4"], "share is '0/4': write NUMBER/TOTAL"),
    "share 5 of 4": (["study", "--share", "5/4"], "share is '5/4': write NUMBER/TOTAL"),
    "share in words": (["study", "--share", "abc"], "share is 'abc': write NUMBER/TOTAL"),
    "share with a limit": (["study", "--share", "1/4", "--limit", "9"], "leave --limit out, or --share"),
    "missing file": (["study", "absent.jsonl"], "'absent.jsonl': no such file"),
    "endless device": (["study", "/dev/zero", "--skip-broken"], "/dev/zero: a device"),
    "length": (["study", "--length", str(10**30)], "at most 1,048,576"),
    "batch size": (["study", "--batch-size", str(10**30)], "from 1 to 1,048,576"),
    "no batch size": (["study", "--batch-size", "0"], "from 1 to 1,048,576"),
    "interval": (["study", "--checkpoint-interval", "nan"], "nan seconds between checkpoints"),
    "negative interval": (["study", "--checkpoint-interval", "-inf"], "-inf seconds between checkpoints"),
    "kernel": (["study", "--kernel", "magic"], "vectorized, reference"),
    "dtype": (["study", "--dtype", "int4"], "float32, bfloat16, float16"),
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

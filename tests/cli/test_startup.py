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
from PIL import Image

from headscope.cli import COMMANDS, options
from headscope.corpus.formats import FORMATS
from headscope.corpus.windows import SentenceMode, WindowMode
from headscope.figures import DRAWINGS, READING_DRAWINGS
from headscope.figures import FORMATS as FIGURE_FORMATS
from headscope.model.architecture import STACKS
from headscope.model.interventions import AblationType
from headscope.model.loading import DTYPES
from headscope.page.explorer import PRECISIONS
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


MODEL_OF: dict[str, list[str]] = {
    "study": [], "read": [], "segment": [], "ablate": []
}  # fmt: skip
"""commands that read texts, and what they need besides"""
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
    "checkpoints": (["study", "--checkpoint-dir", "mine.txt/x"], "cannot write there: Not a directory. Choose another "
                    "folder with --checkpoint-dir"),
    "longer than the model": (["study", "--length", "600"], "has positions for 512 tokens"),
    "field of the bundled texts": (["study", "--field", "body"], "the bundled texts have no fields"),
    **{
        f"{mistake} of {command}": ([command, source, *model], message)
        for command, model in MODEL_OF.items()
        for mistake, (source, message) in {
            "empty file": ("empty.txt", "empty.txt: there is no text in it"),
            "blank file": ("blank.txt", "blank.txt: there is no text in it"),
            "table without rows": ("empty.jsonl", "empty.jsonl: there is no text in it"),
            "broken file": ("broken.jsonl", "broken.jsonl:1: not a JSON object"),
            "image": ("image.png", "image.png: an image"),
            "missing file": ("absent.txt", "absent.txt"),
        }.items()
    },
    **{
        f"{mistake} of {command}": ([command, source, "--field", "body", *model], message)
        for command, model in MODEL_OF.items()
        for mistake, (source, message) in {
            "wrong field of JSONL": ("rows.jsonl", "rows.jsonl:1: no field 'body'; the fields there are: title, text"),
            "wrong field of CSV": ("rows.csv", "rows.csv:1: no field 'body'; the fields there are: title, text"),
            "field of a plain text": ("mine.txt", "mine.txt: has no fields, and field is 'body'"),
        }.items()
    },
    **{
        f"text for images of {command}": ([command, "mine.txt", *model, "--model", "vision"], "vision reads images")
        for command, model in MODEL_OF.items()
    },
    **{
        f"missing model of {command}": ([command, "--model", "./absent"], "absent: no such folder")
        for command in ("study", "read", "segment", "inspect", "paper", "ablate")
    },
    "count": (["segment", "mine.txt", "--count", "0"], "count is 0"),
    "granularity": (["segment", "mine.txt", "--granularity", "0"], "granularity is 0.0"),
    "window of segments": (["segment", "mine.txt", "--length", "1"], "length is 1"),
    "field of a literal text": (["segment", "A b. C d.", "--field", "body"], "field is 'body', and only files"),
    "page in no folder": (["segment", "mine.txt", "--output", "no/x.html"], "there is no folder no: create it"),
    "page that is a folder": (["read", "mine.txt", "--output", "vision"], "vision: a folder"),
    "page that is mine": (["read", "mine.txt", "--output", "mine.txt"], "is no page of headscope"),
    "figures in a file": (["read", "mine.txt", "--figures", "mine.txt"], "Choose another folder with --figures"),
    "reading in no folder": (["read", "mine.txt", "--save", "no/r.nc"], "there is no folder no: create it"),
    "table in no folder": (["read", "mine.txt", "--pairs", "no/p.csv"], "there is no folder no: create it"),
    "table of another kind": (["read", "mine.txt", "--pairs", "p.xlsx"], ".csv or .parquet"),
    "window of a reading": (["read", "mine.txt", "--length", "600"], "has positions for 512 tokens"),
    "figure": (["figures", "absent", "--only", "7,99"], "no figure '99'; there are: 2, 3, 6a"),
    "figures in a file of figures": (["figures", "absent", "--output", "mine.txt"], "cannot write there"),
    "report in no folder": (["report", "absent", "--output", "no/r.html"], "there is no folder no: create it"),
    "report over my file": (["report", "absent", "--output", "mine.txt"], "is no page of headscope"),
    "table of heads in no folder": (["heads", "absent", "--csv", "no/h.csv"], "there is no folder no: create it"),
    "table of ablation in no folder": (["ablate", "--csv", "no/h.csv"], "there is no folder no: create it"),
    "export in no folder": (["export", "--output", "no/h.parquet"], "there is no folder no: create it"),
    "export over another file": (["export", "--output", "mine.txt"], "mine.txt is there already"),
    "export of a wrong head": (["export", "--heads", "L0X1"], "heads 'L0X1': not a head"),
    "matches in no folder": (["match", "minilm", "minilm", "--csv", "no/h.csv"], "there is no folder no: create it"),
    "match with no model": (["match", "minilm", "./absent"], "absent"),
    "ablation in a file": (["ablate", "--output", "mine.txt"], "cannot write there"),
}  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Write texts, tables and an image, some of them unusable, and what tells that a model reads images."""
    texts = {"mine.txt": "mine", "empty.txt": "", "blank.txt": " \n ", "empty.jsonl": "", "broken.jsonl": "{"}
    tables = {"rows.jsonl": '{"title": "a", "text": "Rain fell."}', "rows.csv": "title,text\na,Rain fell.\n"}
    for name, content in {**texts, **tables}.items():
        (folder / name).write_text(content)
    Image.new("RGB", (8, 8)).save(folder / "image.png")
    (folder / "vision").mkdir()
    files = {"config.json": "{}", "preprocessor_config.json": '{"image_processor_type": "x"}', "model.safetensors": ""}
    for name, content in files.items():
        (folder / "vision" / name).write_text(content)


def test_wrong_options_are_reported_before_torch_is_imported(tmp_path: Path):
    """All in one process: the necessary imports take a second."""
    write_inputs(tmp_path)
    before = sorted(tmp_path.rglob("*"))
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
    assert not {{"torch", "transformers", "matplotlib"}} & set(sys.modules), name
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_figures_are_those_that_can_be_drawn():
    assert tuple(DRAWINGS) == options.STUDY_FIGURES
    assert tuple(READING_DRAWINGS) == options.READING_FIGURES


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

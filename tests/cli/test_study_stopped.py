"""A study on the command line that is stopped early: what is counted is kept, and marked incomplete."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import headscope
from tests.helpers.command_line import TEXT
from tests.helpers.interrupting import save_tiny_model

pytestmark = pytest.mark.usefixtures("one_figure", "small_chunks")
"""a section, the unit of counting, ends at eight texts; the tokenizer gets 16 at first"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def command(model_folder: Path) -> list[str]:
    """Return the command of a study of standard input, which is read only once and not measured beforehand."""
    return ["study", "-", "--model", str(model_folder), "--length", "24", "--out", "out"]


def make_lines(count: int) -> bytes:
    return "".join(json.dumps({"text": f"{TEXT} {k}"}) + "\n" for k in range(count)).encode()


def set_stdin(monkeypatch: pytest.MonkeyPatch, stream: io.BytesIO) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(stream)))  # type: ignore[arg-type]


def test_a_broken_line_keeps_the_sections_before_it(
    headscope_command, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_stdin(monkeypatch, io.BytesIO(make_lines(20) + b'{"text": "broken\n' + make_lines(1)))
    result = headscope_command(*command)
    assert result.code == 1
    assert "standard input:21: not a JSON object" in result.err
    assert "Traceback" not in result.err
    study = headscope.open_study(tmp_path / "out")
    assert (study.texts, study.manifest["complete"]) == (16, 0)
    assert "16 texts finished" in result.err
    assert "standard input:21" in study.manifest["stopped_by"]
    assert "incomplete" in (tmp_path / "out" / "findings.md").read_text(encoding="utf-8")


def test_a_finished_study_of_standard_input_is_not_replaced(
    headscope_command, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_stdin(monkeypatch, io.BytesIO(make_lines(24)))
    assert headscope_command(*command).code == 0
    set_stdin(monkeypatch, io.BytesIO(make_lines(20)))
    result = headscope_command(*command)
    assert result.code == 1
    assert "it cannot be known whether it is of the same texts" in result.err
    assert headscope.open_study(tmp_path / "out").texts == 24
    set_stdin(monkeypatch, io.BytesIO(make_lines(20)))
    assert headscope_command(*command, "--overwrite").code == 0
    assert headscope.open_study(tmp_path / "out").texts == 20


def test_ctrl_c_keeps_the_sections_before_it(
    headscope_command, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Interrupted(io.BytesIO):
        """Some documents, then someone presses Ctrl-C."""

        def read(self, size: int | None = -1) -> bytes:
            return self.raise_at_end(super().read(size))

        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer)
            self.raise_at_end(b"x" * count)
            return count

        @staticmethod
        def raise_at_end(content: bytes) -> bytes:
            if not content:
                raise KeyboardInterrupt
            return content

    set_stdin(monkeypatch, Interrupted(make_lines(20)))
    result = headscope_command(*command, "--batch-size", "1")
    assert result.code == 130
    assert "interrupted" in result.err
    assert "16 texts finished" in result.err
    assert headscope.open_study(tmp_path / "out").texts == 16


MAIN_WITHOUT_FIGURES = """
from headscope import output_folder
from headscope.corpus.chunks import ChunkSize
from headscope.run import local_engine, plan
from headscope.run.executor import BatchExecutor
plan.choose_chunk_size = lambda *more: ChunkSize(documents=4, bytes=300)
local_engine.FLUSH_SECONDS = 0.0
output_folder.write_figures = lambda *arguments: []
add = BatchExecutor.add
def add_batch(*arguments):
    add(*arguments)
    print("counted", flush=True)
BatchExecutor.add = add_batch
from headscope.__main__ import main
main()
"""
"""the whole command except for its figures, which take most of its time; it prints a line when a batch is counted"""


def test_a_real_interrupt_signal(model_folder: Path, tmp_path: Path):
    """A running command is stopped by SIGINT while it waits for more texts on its standard input."""
    options = ["--out", str(tmp_path / "out"), "--batch-size", "1", "--length", "24", "--model", str(model_folder)]
    command = [sys.executable, "-X", "faulthandler", "-c", MAIN_WITHOUT_FIGURES, "study", "-", *options]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdin is not None
    assert running.stdout is not None
    line = json.dumps({"text": TEXT * 8}).encode() + b"\n"
    # The pipe stays open meanwhile: an end of the input would be a finished study.
    out, err = b"", b""
    try:
        # A pipe holds 64 KiB: once far more than that is written, many texts have been read.
        running.stdin.write(line * (160_000 // len(line)))
        running.stdin.flush()
        for _ in range(9):  # the first eight are a section
            assert running.stdout.readline() == b"counted\n"
        running.send_signal(signal.SIGINT)
        try:
            running.wait(timeout=300)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGABRT)  # with faulthandler it says where every thread is
        out, err = running.stdout.read(), running.stderr.read()  # type: ignore[union-attr]
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130, (out, err)
    assert b"Traceback" not in err
    assert b"marked incomplete" in err
    study = headscope.open_study(tmp_path / "out")
    assert study.texts >= 8
    assert study.manifest["complete"] == 0

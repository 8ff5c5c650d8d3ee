"""A study on the command line that is stopped in the middle: what was finished stays, and is marked incomplete."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import headscope
from tests.commanding import TEXT
from tests.cutting import saved_model


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_a_broken_line_leaves_what_came_before(
    headscope_command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Standard input cannot be counted beforehand; nor are the lines beyond the first 2,000 of a file.
    lines = corpus.read_bytes() + b'\n{"text": "broken\n' + json.dumps({"text": TEXT}).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(lines))))  # type: ignore[arg-type]
    ran = headscope_command("study", "-", "--out", "out")
    assert ran.code == 1
    assert "standard input:5: not a JSON object" in ran.err
    assert "Traceback" not in ran.err
    study = headscope.open_study(tmp_path / "out")
    assert (study.texts, study.manifest["complete"]) == (4, 0)
    assert "4 texts finished" in ran.err
    assert "standard input:5" in study.manifest["stopped_by"]
    assert "incomplete" in (tmp_path / "out" / "findings.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_an_unfinished_run_does_not_replace_a_finished_one(
    headscope_command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def feed(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))  # type: ignore[arg-type]

    feed(corpus.read_bytes())
    assert headscope_command("study", "-", "--out", "out").code == 0
    feed(corpus.read_bytes().splitlines()[0] + b"\n{broken")
    ran = headscope_command("study", "-", "--out", "out")
    assert ran.code == 1
    assert "left as it is" in ran.err
    assert headscope.open_study(tmp_path / "out").texts == 4


@pytest.mark.usefixtures("one_figure", "loaded_once")
def test_control_c_leaves_what_was_finished(headscope_command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class Interrupted(io.BytesIO):
        """Three documents, then someone presses Ctrl-C."""

        def peek(self, size: int = 0) -> bytes:
            return self.getvalue()[:size]

        def read(self, size: int | None = -1) -> bytes:
            return self.found(super().read(size))

        def read1(self, size: int | None = -1) -> bytes:
            return self.found(super().read1(size))

        def __next__(self) -> bytes:
            return self.found(super().readline())

        @staticmethod
        def found(content: bytes) -> bytes:
            if not content:
                raise KeyboardInterrupt
            return content

    lines = "".join(json.dumps({"text": f"{TEXT} {k}"}) + "\n" for k in range(3))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Interrupted(lines.encode())))
    ran = headscope_command("study", "-", "--out", "out", "--batch-size", "1")
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert "3 texts finished" in ran.err
    assert headscope.open_study(tmp_path / "out").texts == 3


UNDRAWN = """
from headscope import cli, output
from headscope.studies.crew import Crew
output.write_figures = lambda *given: []
observe = Crew.observe
def observed(*given):
    observe(*given)
    print("studied", flush=True)
Crew.observe = observed
cli.main()
"""
"""the whole command, but for its pictures, which take most of its time; it says when a text was studied"""


def test_a_real_interrupt_signal(tmp_path: Path):
    """A running command is stopped by SIGINT while it waits for more texts on its standard input."""
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-c",
        UNDRAWN,
        "study",
        "-",
        "--out",
        str(tmp_path / "out"),
        "--batch-size",
        "1",
        "--length",
        "24",
        "--model",
        str(saved_model(tmp_path / "model")),
    ]
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
        for _ in range(3):
            assert running.stdout.readline() == b"studied\n"
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
    assert study.texts >= 2  # the third is counted after it was studied
    assert study.manifest["complete"] == 0

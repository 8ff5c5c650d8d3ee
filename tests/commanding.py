"""Running `headscope …` as people do, in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headscope import cli, output
from headscope.figures import draw


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing all eleven figures takes most of a small study's time; where they do not matter, one will do."""
    monkeypatch.setattr(output, "draw_all", lambda study: {"11b": draw(study, "11b")})


class Ran(SimpleNamespace):
    code: int
    out: str
    err: str


@pytest.fixture
def headscope_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `headscope …` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["headscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Ran(code=ended.value.code or 0, out=captured.out, err=captured.err)

    return run

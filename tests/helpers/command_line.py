"""Fixtures that run `headscope …` in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from headscope import cli, output_folder

TEXT = (
    "The Harlow lamp is a lantern made in Harlow. Harlow made lamps for ships, and the lamps burned oil. "
    'In 1890 a lamp from Harlow cost 3.5 shillings; Dr. Moss, who sold lamps, called it "the best lamp afloat". '
)
HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(2)>'


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Four short documents."""
    path = tmp_path / "corpus.jsonl"
    rows = [{"title": f"t{k}", "text": f"{HOSTILE} {TEXT} Lamp number {k} hung in the tower."} for k in range(4)]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace all figures by a blank one: drawing them takes most of the time of a small study."""
    monkeypatch.setattr(output_folder, "draw_all", lambda study: {"11b": Figure(figsize=(1, 1))})


class CommandResult(SimpleNamespace):
    code: int
    out: str
    err: str


@pytest.fixture
def headscope_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `headscope …` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["headscope", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return CommandResult(code=exit_info.value.code or 0, out=captured.out, err=captured.err)

    return run

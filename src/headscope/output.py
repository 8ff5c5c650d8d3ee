"""The folder of a study: `study.nc`, `findings.md` and `.json`, `figures/`, `report.html`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.errors import StudyError
from headscope.figures import DRAWINGS, FORMATS, draw_all, save, svg
from headscope.page.report import Plate, report
from headscope.studies.findings import Finding, as_json, as_markdown, findings
from headscope.studies.result import FILE, Study, open_study

REPORT = "report.html"


def prepare(folder: Path, *, expected: dict[str, Any], overwrite: bool) -> None:
    """Make sure, before anything is computed, that a study can be written there and would not replace another one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StudyError(
            f"{folder}: cannot write there: {error.strerror or error}. Choose another folder with --out"
        ) from None
    if overwrite or not (folder / FILE).exists():
        return
    try:
        there = open_study(folder).manifest
    except StudyError as error:
        raise StudyError(f"{error}. Choose another folder with --out, or replace it with --overwrite") from None
    differing = [
        f"{name} ({there.get(name)} there, {value} now)" for name, value in expected.items() if there.get(name) != value
    ]
    if differing:
        raise StudyError(
            f"{folder} holds another study, which differs in {'; '.join(differing)}. "
            "Choose another folder with --out, or replace it with --overwrite"
        )


def keeps_more(folder: Path, study: Study) -> bool:
    """Whether the folder already holds more texts of this study than an unfinished run has to offer."""
    try:
        return open_study(folder).texts > study.texts
    except StudyError:
        return False


def write(study: Study, folder: Path) -> list[Finding]:
    """Write everything, the sums first: whatever fails after them, the study itself is there."""
    study.save(folder / FILE)
    found = findings(study)
    write_text(folder / "findings.json", as_json(study, found))
    write_text(folder / "findings.md", as_markdown(study, found))
    plates = write_figures(study, folder / "figures")
    write_text(folder / REPORT, report(study, found, plates))
    return found


def write_figures(study: Study, folder: Path, formats: Sequence[str] = FORMATS) -> list[Plate]:
    """Every figure that can be drawn of this study, as files; returned as plates for a report."""
    plates = []
    for number, figure in draw_all(study).items():
        written = {path.suffix: path for path in save(figure, folder, DRAWINGS[number].stem, formats)}
        plates.append(_plate(number, written[".svg"].read_text(encoding="utf-8") if ".svg" in written else svg(figure)))
    return plates


def make_report(study: Study) -> str:
    """The report page of a study."""
    plates = [_plate(number, svg(figure)) for number, figure in draw_all(study).items()]
    return report(study, findings(study), plates)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        waiting.write_text(text, encoding="utf-8", errors="replace")
        os.replace(waiting, path)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        waiting.unlink(missing_ok=True)


def _plate(number: str, drawn: str) -> Plate:
    drawing = DRAWINGS[number]
    return Plate(number=number, title=drawing.title, caption=drawing.caption, svg=drawn)

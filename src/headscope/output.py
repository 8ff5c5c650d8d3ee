"""The folder of a study: `study.nc`, `findings.md` and `.json`, `heads.csv`, `figures/`, `report.html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headscope.errors import HeadscopeError, ReadingError, StudyError
from headscope.figures import DRAWINGS, FORMATS, Drawing, draw_all, drawings, save, svg
from headscope.page.report import Plate, report
from headscope.readings.files import is_reading, open_reading
from headscope.readings.reading import Reading
from headscope.studies import checkpoint
from headscope.studies.characters import characters
from headscope.studies.findings import Finding, as_json, as_markdown, findings
from headscope.studies.head_table import as_csv
from headscope.studies.result import FILE, Study, open_study
from headscope.studies.speaking import spoken
from headscope.writing import check_folder, write_whole

REPORT = "report.html"
CHECKPOINTS = checkpoint.FOLDER
HEADS = "heads.csv"
GENERATOR = b'<meta name="generator" content="headscope">'
"""what every page of ours says of itself, within its first bytes"""
PEEK = 2000


def check(folder: Path) -> None:
    """Make sure that a study can be written there."""
    check_folder(folder, StudyError)


def prepare(folder: Path, *, expected: dict[str, Any], overwrite: bool) -> None:
    """Make sure, before anything is computed, that a study would not replace another one."""
    check(folder)
    if overwrite:
        finish(folder)
        return
    if not (folder / FILE).exists():
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


def refuse_other(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds a study, finished or not."""
    if not overwrite and ((folder / FILE).exists() or unfinished(folder)):
        raise StudyError(
            f"{folder} holds a study already. Choose another folder with --out, or replace it with --overwrite"
        )
    finish(folder)


def merge(sources: Sequence[Path]) -> Study:
    """Studies as one, opened one after the other."""
    if len(sources) < 2:
        raise StudyError("merging takes two studies at least")
    made = open_study(sources[0])
    for source in sources[1:]:
        try:
            made = made.merge(open_study(source))
        except StudyError as error:
            raise StudyError(f"{source}: {error}") from None
    return made


def finish(folder: Path) -> None:
    """The study there is finished, or given up: its checkpoints go."""
    checkpoint.Checkpoints(folder / CHECKPOINTS, {}).clear()


def unfinished(folder: Path) -> bool:
    """Whether there is a study that can be continued."""
    return (folder / CHECKPOINTS / checkpoint.LAST).exists()


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
    write_text(folder / HEADS, as_csv(characters(study)))
    plates = write_figures(study, folder / "figures")
    write_text(folder / REPORT, report(study, found, plates))
    return found


def write_figures(source: Study | Reading, folder: Path, formats: Sequence[str] = FORMATS) -> list[Plate]:
    """Every figure that can be drawn of a study or a reading, as files; returned as plates for a report."""
    plates = []
    for number, figure in draw_all(source).items():
        drawing = drawings(source)[number]
        written = {path.suffix: path for path in save(figure, folder, drawing.stem, formats)}
        drawn = written[".svg"].read_text(encoding="utf-8") if ".svg" in written else svg(figure)
        plates.append(_plate(source, drawing, drawn))
    return plates


def make_report(study: Study) -> str:
    """The report page of a study."""
    plates = [_plate(study, DRAWINGS[number], svg(figure)) for number, figure in draw_all(study).items()]
    return report(study, findings(study), plates)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_whole(path, text.encode("utf-8", "replace"), StudyError)


def check_ours(path: Path, error: type[HeadscopeError]) -> None:
    """Refuse to write a page over a file that is none of ours."""
    try:
        if not path.exists():
            return
        with path.open("rb") as file:  # closed at once: Windows replaces no file that is open
            ours = GENERATOR in file.read(PEEK)
        if not ours:
            raise error(f"{path} is there and is no page of headscope: choose another name with --out")
    except OSError as reason:
        raise error(f"{path}: cannot write there: {reason.strerror or reason}") from None


def check_page(path: Path) -> None:
    """Refuse a place where a reading's page cannot be written, before anything is computed."""
    check_ours(path, ReadingError)
    if not path.parent.is_dir():
        raise ReadingError(f"{path}: there is no folder {path.parent}: make it, or choose another with --out")


def open_result(path: Path) -> Study | Reading:
    """A study or a reading, whichever was saved there."""
    return open_reading(path) if path.is_file() and is_reading(path) else open_study(path)


def _plate(source: Study | Reading, drawing: Drawing, drawn: str) -> Plate:
    title, caption = drawing.title, drawing.caption
    if isinstance(source, Study):
        title, caption = spoken(source, title), spoken(source, caption)
    return Plate(number=drawing.number, title=title, caption=caption, svg=drawn)

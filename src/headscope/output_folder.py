"""The folders that `study` and `compare` write.

The folder of a study: `study.nc`, `findings.md` and `.json`, `heads.csv`, `relations.csv` if there are labelled
relations, `figures/`, `report.html`.

Write the folder of a comparison: `comparison.json`, `comparison.html`, `differences.csv`, `figures/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headscope.comparison.result import Comparison, format_json
from headscope.errors import StudyError
from headscope.figures import DRAWINGS, FORMATS, Drawing, draw_all, list_drawings, render_svg, save
from headscope.figures.comparison import list_comparison_figures
from headscope.file_io import (
    check_page,
    check_writable,
    create_folder,
    format_csv,
    is_page,
    refuse_foreign,
    write_atomically,
)
from headscope.page.report import ReportFigure, render_report
from headscope.readings.files import is_reading, open_reading
from headscope.readings.reading import Reading
from headscope.run.checkpoint import FOLDER as CHECKPOINTS
from headscope.run.checkpoint import LAST, PREVIOUS, is_foreign, open_folder
from headscope.run.lock import Lock
from headscope.settings import describe_unverified, get_value, list_matching
from headscope.studies.findings import Findings, as_json, as_markdown, findings
from headscope.studies.head_table import as_csv
from headscope.studies.relations import has_relations
from headscope.studies.result import FILE, Study, open_study
from headscope.studies.sample_size import adapt_wording

REPORT = "report.html"
TABLES = FINDINGS_JSON, FINDINGS_PAGE, HEADS = "findings.json", "findings.md", "heads.csv"
RELATIONS = "relations.csv"
"""written if there are labelled relations"""
FIGURES = "figures"


def check_folder(folder: Path) -> None:
    """Refuse, before anything is computed, a folder where a study cannot be written or would replace other files."""
    check_writable(folder, StudyError)
    if (path := _find_foreign(folder)) is not None:
        raise StudyError(
            f"{path} is there already, and headscope did not write it: choose another folder with --output"
        )
    if folder.is_dir():
        with Lock(folder):  # raises if another process writes there
            pass


def _find_foreign(folder: Path) -> Path | None:
    """Return a file that a study would replace and that is not of a study; None if there is none.

    Pages are recognized by their tag, other files by the study or the report beside them.
    """
    page = folder / REPORT
    try:
        if page.exists() and not is_page(page):
            return page
    except OSError:  # a folder, or a file that cannot be read
        return page
    if (folder / FILE).exists() or page.exists():  # `find_finished` checks whether it is another study
        return None
    figures = [f"{FIGURES}/{drawing.stem}.{kind}" for drawing in DRAWINGS.values() for kind in FORMATS]
    names = [*TABLES, RELATIONS, *figures, *([] if (folder / FIGURES).is_dir() else [FIGURES])]
    return next((folder / name for name in names if (folder / name).exists()), None)


def open_previous(folder: Path) -> Study | None:
    """Open the study that is already in a folder; None if there is none."""
    if not (folder / FILE).exists():
        return None
    try:
        return open_study(folder)
    except StudyError as error:
        raise StudyError(f"{error}. Choose another folder with --output, or replace it with --overwrite") from None


def find_changes(study: Study, expected: Mapping[str, Any]) -> list[str]:
    """Describe which entries of a study's manifest make it the result of another command.

    Args:
        expected: Known entries of the manifest of the same command. Those that may differ are passed over.
    """
    manifest = study.manifest
    return [
        f"{name} ({get_value(manifest, name)} there, {expected[name]} now)"
        for name in list_matching("repeat")
        if name in expected and get_value(manifest, name, expected[name]) != expected[name]
    ]


def is_complete(study: Study, version: str) -> bool:
    """Return whether a study covers the whole corpus in this version of its files. False if the version is unknown."""
    manifest = study.manifest
    return bool(manifest["complete"] and version and manifest["corpus_version"] == version)


def find_finished(folder: Path, study: Study, expected: Mapping[str, Any], version: str) -> Study | None:
    """Refuse to replace another study.

    Args:
        study: The study in the folder.
        expected: Known entries of the manifest of a study that may replace it.
        version: Version of the corpus.

    Returns:
        The study, if it is complete and its files are known to be unchanged.
    """
    changes = find_changes(study, expected)
    if changes:
        raise StudyError(
            f"{folder} holds another study, which differs in {'; '.join(changes)}. "
            "Choose another folder with --output, or replace it with --overwrite"
        )
    manifest = study.manifest
    if manifest["complete"] and manifest["corpus_version"] != version:
        raise StudyError(
            f"{folder} holds this study of earlier versions of its files. Choose another folder with --output, or "
            "replace it with --overwrite"
        )
    if manifest["complete"] and not version and not has_checkpoint(str(folder / CHECKPOINTS)):
        raise StudyError(
            f"{folder} holds a complete study, and it cannot be known whether it is of the same texts. Choose another "
            "folder with --output, or replace it with --overwrite"
        )
    return study if is_complete(study, version) else None


def has_files(folder: Path) -> bool:
    """Return whether all files of the study in a folder are written. The report is removed first and written last."""
    written = all((folder / name).exists() for name in (*TABLES, REPORT))
    return written and any((folder / FIGURES).glob("*"))


def refuse_other(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds a study, finished or not."""
    if not overwrite and ((folder / FILE).exists() or has_checkpoint(str(folder / CHECKPOINTS))):
        raise StudyError(
            f"{folder} holds a study already. Choose another folder with --output, or replace it with --overwrite"
        )
    remove_checkpoints(str(folder / CHECKPOINTS))


def merge_studies(sources: Sequence[Path], *, allow_changed_files: bool = False) -> Study:
    """Open studies one after the other, and merge them."""
    if len(sources) < 2:
        raise StudyError("merging takes two studies at least")
    merged = open_study(sources[0])
    for source in sources[1:]:
        study = open_study(source)
        try:
            merged = merged.merge(study, allow_changed_files=allow_changed_files)
        except StudyError as error:
            raise StudyError(f"{source}: {error}") from None
    return merged


def remove_checkpoints(checkpoints: str) -> None:
    """Remove the checkpoints of a study that is complete or abandoned."""
    open_folder(checkpoints).clear()


def has_checkpoint(checkpoints: str) -> bool:
    """Return whether there is a study that can be resumed."""
    folder = open_folder(checkpoints)
    starts = [folder.read_start(name) for name in (LAST, PREVIOUS)]
    return any(start is not None and not is_foreign(start) for start in starts)


def has_more_texts(folder: Path, study: Study) -> bool:
    """Return whether the folder holds more texts of this study than an unfinished run."""
    try:
        return open_study(folder).texts > study.texts
    except StudyError:
        return False


def write_study(study: Study, folder: Path) -> Findings:
    """Write all files of a study. The sums are first: if anything fails after them, the study itself is written.

    An existing report is removed before: see `has_files`.
    """
    (folder / REPORT).unlink(missing_ok=True)
    study.save(folder / FILE)
    claims = findings(study)
    write_text(folder / FINDINGS_JSON, as_json(study, claims))
    write_text(folder / FINDINGS_PAGE, as_markdown(study, claims))
    write_text(folder / HEADS, as_csv(study.heads()))
    if has_relations(study):
        write_text(folder / RELATIONS, format_csv(study.relations()))
    else:
        (folder / RELATIONS).unlink(missing_ok=True)
    plates = write_figures(study, folder / FIGURES)
    write_text(folder / REPORT, render_report(study, claims, plates))
    return claims


def write_figures(source: Study | Reading, folder: Path, formats: Sequence[str] = FORMATS) -> list[ReportFigure]:
    """Write every figure that can be drawn of a study or a reading.

    Returns:
        The figures, for a report.
    """
    plates = []
    for number, figure in draw_all(source).items():
        drawing = list_drawings(source)[number]
        written = {path.suffix: path for path in save(figure, folder, drawing.stem, formats)}
        image = written[".svg"].read_text(encoding="utf-8") if ".svg" in written else render_svg(figure)
        plates.append(_make_plate(source, drawing, image))
    return plates


def make_report(study: Study) -> str:
    """Return the report page of a study."""
    plates = [_make_plate(study, DRAWINGS[number], render_svg(figure)) for number, figure in draw_all(study).items()]
    return render_report(study, findings(study), plates)


def write_report(study: Study, path: Path) -> Path:
    """Write the report page of a study, named `report.html` in a folder; do not replace a file not of headscope."""
    target = path / REPORT if path.is_dir() else path
    check_page(target, StudyError)
    write_text(target, make_report(study))
    return target


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    write_atomically(path, text.encode("utf-8", "replace"), StudyError)


def open_result(path: Path) -> Study | Reading:
    """Open a study or a reading, whichever was saved there."""
    return open_reading(path) if path.is_file() and is_reading(path) else open_study(path)


def _make_plate(source: Study | Reading, drawing: Drawing, image: str) -> ReportFigure:
    title, caption = drawing.title, drawing.caption
    if isinstance(source, Study):
        title, caption = adapt_wording(source, title), adapt_wording(source, caption)
    if mark := describe_unverified(source.data.attrs):
        caption = f"{caption} {mark.capitalize()}."
    return ReportFigure(number=drawing.number, title=title, caption=caption, svg=image)


COMPARISON_JSON, COMPARISON_PAGE = "comparison.json", "comparison.html"
DIFFERENCES_TABLE, COMPARISON_FIGURES = "differences.csv", "figures"


def check_comparison_folder(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a folder where a comparison cannot be written or would replace other files."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    if (folder / FILE).exists():
        raise StudyError(f"{folder} holds a study: choose another folder for the comparison with --output")
    check_writable(folder, StudyError)
    refuse_foreign(folder / COMPARISON_PAGE, StudyError)


def write_comparison(comparison: Comparison, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write all files, each completely or not at all.

    Returns:
        The files written.
    """
    check_comparison_folder(folder, formats)
    with create_folder(folder, StudyError):
        written = [write_atomically(folder / COMPARISON_JSON, _encode(format_json(comparison)), StudyError)]
        table = folder / DIFFERENCES_TABLE
        if comparison.pairs:
            content = format_csv(comparison.differences())
            written.append(write_atomically(table, _encode(content), StudyError))
        elif table.exists():  # left by an earlier comparison
            table.unlink()
        for drawing in list_comparison_figures(comparison):
            written += save(drawing.draw(), folder / COMPARISON_FIGURES, drawing.stem, formats)
        written.append(write_page(folder / COMPARISON_PAGE, comparison.to_html()))
    return written


def write_page(path: Path, html: str) -> Path:
    """Write a page, but do not replace a file that is not of headscope."""
    refuse_foreign(path, StudyError)
    return write_atomically(path, _encode(html), StudyError)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")

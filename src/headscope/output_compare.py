"""The folder of a comparison: `comparison.json`, `comparison.html`, `differences.csv`, `figures/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headscope.comparison.plain import as_json
from headscope.comparison.result import Comparison
from headscope.errors import StudyError
from headscope.figures.comparison import draw_comparison
from headscope.figures.files import FORMATS, save
from headscope.output import check_ours
from headscope.studies.result import FILE
from headscope.writing import write_whole

JSON, PAGE, TABLE, FIGURES = "comparison.json", "comparison.html", "differences.csv", "figures"


def prepare(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Make sure, before anything is computed, that a comparison can be written there and replaces nothing else."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    if (folder / FILE).exists():
        raise StudyError(f"{folder} holds a study: choose another folder for the comparison with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"{folder}: cannot write there: {error.strerror or error}. Choose another with --out"
        ) from None
    check_ours(folder / PAGE, StudyError)


def write(made: Comparison, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write everything, each file whole or not at all; returns what was written."""
    prepare(folder, formats)
    written = [write_whole(folder / JSON, _bytes(as_json(made)), StudyError)]
    table = folder / TABLE
    if made.pairs:
        content = made.differences().to_csv(index=False, lineterminator="\n")
        written.append(write_whole(table, _bytes(content), StudyError))
    elif table.exists():  # of a comparison that was here before
        table.unlink()
    for drawn in draw_comparison(made):
        written += save(drawn.figure, folder / FIGURES, drawn.stem, formats)
    written.append(write_page(folder / PAGE, made.page()))
    return written


def write_page(path: Path, html: str) -> Path:
    """Write a page, but never over a file that is none of ours."""
    check_ours(path, StudyError)
    return write_whole(path, _bytes(html), StudyError)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")

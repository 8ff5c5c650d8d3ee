"""Write the folder of a comparison: `comparison.json`, `comparison.html`, `differences.csv`, `figures/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headscope.atomic_io import check_writable, create_folder, format_csv, refuse_foreign, write_atomically
from headscope.comparison.result import Comparison
from headscope.comparison.serialization import as_json
from headscope.errors import StudyError
from headscope.figures.comparison import list_comparison_figures
from headscope.figures.files import FORMATS, save
from headscope.studies.result import FILE

JSON, PAGE, TABLE, FIGURES = "comparison.json", "comparison.html", "differences.csv", "figures"


def check_folder(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Refuse a folder where a comparison cannot be written or would replace other files."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    if (folder / FILE).exists():
        raise StudyError(f"{folder} holds a study: choose another folder for the comparison with --output")
    check_writable(folder, StudyError)
    refuse_foreign(folder / PAGE, StudyError)


def write_comparison(comparison: Comparison, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write all files, each completely or not at all.

    Returns:
        The files written.
    """
    check_folder(folder, formats)
    with create_folder(folder, StudyError):
        written = [write_atomically(folder / JSON, _encode(as_json(comparison)), StudyError)]
        table = folder / TABLE
        if comparison.pairs:
            content = format_csv(comparison.differences())
            written.append(write_atomically(table, _encode(content), StudyError))
        elif table.exists():  # left by an earlier comparison
            table.unlink()
        for drawing in list_comparison_figures(comparison):
            written += save(drawing.draw(), folder / FIGURES, drawing.stem, formats)
        written.append(write_page(folder / PAGE, comparison.to_html()))
    return written


def write_page(path: Path, html: str) -> Path:
    """Write a page, but do not replace a file that is not of headscope."""
    refuse_foreign(path, StudyError)
    return write_atomically(path, _encode(html), StudyError)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")

"""Write figures to files and as SVG text; the same study gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from headscope.atomic_io import create_folder
from headscope.errors import StudyError
from headscope.figures.style import styled

FORMATS = ("png", "svg", "pdf")
DPI = 300
"""dots per inch of PNG files, and of images inside SVG and PDF files"""
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""metadata by format: without dates, so that files do not depend on the time of drawing"""


def save(figure: Figure, folder: str | Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as `folder/name.png`, `.svg` and `.pdf`, and return the paths; create the folder if needed."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    paths = [Path(folder) / f"{name}.{kind}" for kind in formats]
    with create_folder(Path(folder), StudyError):
        for kind, path in zip(formats, paths, strict=True):
            try:
                path.write_bytes(_render_figure(figure, kind))
            except OSError as error:
                raise StudyError(f"{path}: cannot be written: {error.strerror or error}") from None
    return paths


def render_svg(figure: Figure) -> str:
    """Return a figure as one `<svg>` element to embed in a page; its text stays text."""
    text = _render_figure(figure, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def _render_figure(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    with styled():
        # Laying out the panels takes longer than drawing them and is the same for every format, so do it only once.
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # with "none" a layout engine stays, and matplotlib draws everything twice
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=METADATA[kind])
    return buffer.getvalue()

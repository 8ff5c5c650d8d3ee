"""Figures as files and as SVG text: the same study gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from headscope.errors import StudyError
from headscope.figures.style import styled

FORMATS = ("png", "svg", "pdf")
DPI = 300
"""dots per inch of PNG files, and of images within the others"""
UNDATED: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""what to leave out, so that a figure does not change with the day it is drawn on"""


def save(figure: Figure, folder: str | Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as `folder/name.png`, `.svg` and `.pdf`; the folder is made if it is not there."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise StudyError(f"figures cannot be written as {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    paths = [Path(folder) / f"{name}.{kind}" for kind in formats]
    for kind, path in zip(formats, paths, strict=True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_bytes(figure, kind))
        except OSError as error:
            raise StudyError(f"{path}: cannot be written: {error.strerror or error}") from None
    return paths


def svg(figure: Figure) -> str:
    """A figure as one `<svg>` element, ready to stand in a page; its words stay text."""
    text = _bytes(figure, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def _bytes(figure: Figure, kind: str) -> bytes:
    written = io.BytesIO()
    with styled():
        # Laying out the panels takes longer than drawing them, and is the same for every format: once will do.
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # "none" leaves one in place, and matplotlib then draws everything twice
        figure.savefig(written, format=kind, dpi=DPI, metadata=UNDATED[kind])
    return written.getvalue()

"""Notebook representations: the page of a result in an iframe, which stays when the notebook is saved and reopened.

The page is an attribute of the iframe (`srcdoc`), so nothing is fetched. The iframe is sandboxed, so texts on the page
can reach neither the notebook nor another frame, and several results do not disturb each other.
"""

from __future__ import annotations

from markupsafe import Markup

from headscope.page.explorer import render_explorer
from headscope.page.segmentation import format_count, render_segmentation_page
from headscope.readings.reading import Reading
from headscope.segmentation.result import Segmentation

HEIGHT = 900
"""pixels; the page scrolls inside the frame"""
MAX_PAGE_SIZE = 24_000_000
"""characters; a larger page would make the notebook slow to save"""


def render_reading_frame(reading: Reading) -> str:
    """Return the explorer as HTML for a notebook; for a very large reading, a note on how to open it."""
    title = Markup("<strong>Reading of <bdi>{}</bdi></strong>: {}").format(reading.manifest["model"], reading.size)
    note = Markup(
        'Its explorer is {} MB, too large for a notebook: write it with <code>reading.to_html("reading.html")</code>, '
        "or choose heads first, <code>reading.select(layers=…, heads=…)</code>."
    )
    return _render_frame("reading", title, render_explorer(reading), note)


def render_segmentation_frame(segmentation: Segmentation) -> str:
    """Return the page of a segmentation as HTML for a notebook; for a very long text, a note on how to open it."""
    title = Markup("<strong>Segmentation, {}</strong>: {} of {}").format(
        segmentation.level,
        format_count(len(segmentation), "segment"),
        format_count(len(segmentation.edges) - 1, segmentation.piece_name),
    )
    note = Markup(
        'Its page is {} MB, too large for a notebook: write it with <code>segmentation.to_html("segments.html")</code>.'
    )
    return _render_frame("segmentation", title, render_segmentation_page(segmentation), note)


def _render_frame(kind: str, title: Markup, page: str, note: Markup) -> str:
    """Return the page in an iframe under a title; if it is too large, the note, formatted with the size in MB."""
    if len(page) > MAX_PAGE_SIZE:
        return str(Markup("<div>{}. {}</div>").format(title, note.format(round(len(page) / 1e6))))
    return str(
        Markup(
            '<div style="margin:.2em 0">{}</div>'
            '<iframe title="headscope {}" sandbox="allow-scripts allow-downloads" style="width:100%;height:{}px;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px" srcdoc="{}"></iframe>'
        ).format(title, kind, HEIGHT, page)
    )

"""A result in a notebook: its page in a frame of its own, which stays when the notebook is saved and reopened.

The page is inside the frame's attribute, so nothing is fetched; the frame is sandboxed, so a text that is read can
reach neither the notebook nor another frame, and several results do not disturb each other.
"""

from __future__ import annotations

from markupsafe import Markup

from headscope.page.explorer import explorer
from headscope.page.segments import many, segments_page
from headscope.readings.reading import Reading
from headscope.segmentation.result import Segmentation

HEIGHT = 900
"""pixels; the frame scrolls"""
LARGEST = 24_000_000
"""bytes; a larger page would make a notebook that is slow to save"""


def reading_frame(reading: Reading) -> str:
    """The explorer as a piece of HTML for a notebook; of a very large reading, the words how to see it."""
    title = Markup("<strong>Reading of <bdi>{}</bdi></strong>: {}").format(reading.manifest["model"], reading.size)
    instead = Markup(
        'Its explorer is {} MB, too large for a notebook: write it with <code>reading.page("reading.html")</code>, '
        "or choose heads first, <code>reading.select(layers=…, heads=…)</code>."
    )
    return _framed("reading", title, explorer(reading), instead)


def segmentation_frame(segmentation: Segmentation) -> str:
    """The page of a segmentation as a piece of HTML for a notebook; of a very long text, the words how to see it."""
    title = Markup("<strong>Segmentation, {}</strong>: {} of {}").format(
        segmentation.level,
        many(len(segmentation), "segment"),
        many(len(segmentation.edges) - 1, segmentation.piece),
    )
    instead = Markup(
        'Its page is {} MB, too large for a notebook: write it with <code>segmentation.page("segments.html")</code>.'
    )
    return _framed("segmentation", title, segments_page(segmentation), instead)


def _framed(kind: str, title: Markup, page: str, instead: Markup) -> str:
    """The page in its frame under a title, or what to do instead, which is given its size in MB."""
    if len(page) > LARGEST:
        return str(Markup("<div>{}. {}</div>").format(title, instead.format(round(len(page) / 1e6))))
    return str(
        Markup(
            '<div style="margin:.2em 0">{}</div>'
            '<iframe title="headscope {}" sandbox="allow-scripts allow-downloads" style="width:100%;height:{}px;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px" srcdoc="{}"></iframe>'
        ).format(title, kind, HEIGHT, page)
    )

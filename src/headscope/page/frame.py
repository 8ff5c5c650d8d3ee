"""A reading in a notebook: its explorer in a frame of its own, which stays when the notebook is saved and reopened.

The page is inside the frame's attribute, so nothing is fetched; the frame is sandboxed, so a text that is read can
reach neither the notebook nor another frame, and several readings do not disturb each other.
"""

from __future__ import annotations

from markupsafe import Markup

from headscope.page.explorer import explorer
from headscope.readings.reading import Reading

HEIGHT = 900
"""pixels; the frame scrolls"""
LARGEST = 24_000_000
"""bytes; a larger page would make a notebook that is slow to save"""


def reading_frame(reading: Reading) -> str:
    """The explorer as a piece of HTML for a notebook; of a very large reading, the words how to see it."""
    about = reading.manifest
    title = Markup("<strong>Reading of <bdi>{}</bdi></strong>: {}").format(about["model"], reading.size)
    page = explorer(reading)
    if len(page) > LARGEST:
        return str(
            Markup(
                "<div>{}. Its explorer is {} MB, too large for a notebook: write it with "
                '<code>reading.page("reading.html")</code>, or choose heads first, '
                "<code>reading.select(layers=…, heads=…)</code>.</div>"
            ).format(title, round(len(page) / 1e6))
        )
    return str(
        Markup(
            '<div style="margin:.2em 0">{}</div>'
            '<iframe title="headscope reading" sandbox="allow-scripts allow-downloads" style="width:100%;height:{}px;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px" srcdoc="{}"></iframe>'
        ).format(title, HEIGHT, page)
    )

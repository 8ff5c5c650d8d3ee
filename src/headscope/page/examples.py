"""Notebook representation of an example: its text with the paired tokens marked, and its pairs."""

from __future__ import annotations

from markupsafe import Markup

from headscope.studies.examples import Example

MARK_STYLE = "background:rgba(229,160,60,.35);border-radius:3px;padding:0 .1em"


def render_example(example: Example) -> str:
    """Return an example as a fragment of HTML without script, style sheet or identifiers."""
    parts = [
        Markup('<span style="{}">{}</span>' if k in example.paired else "{1}").format(MARK_STYLE, text)
        for k, text in example.split_blanks()
    ]
    return str(
        Markup(
            '<div style="font-size:13px;line-height:1.5;max-width:72em;margin:.3em 0 .8em">'
            '<div style="opacity:.7">{}</div><div style="overflow-wrap:anywhere"><bdi>{}</bdi></div>'
            '<div style="opacity:.7;overflow-wrap:anywhere"><bdi>{}</bdi></div></div>'
        ).format(example.title, Markup("").join(parts), "; ".join(example.list_pair_names()))
    )

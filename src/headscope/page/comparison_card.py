"""What a comparison shows of itself in a notebook: one fragment of HTML without script, style sheet or identifiers."""

from __future__ import annotations

from markupsafe import Markup

from headscope.comparison.result import Comparison
from headscope.comparison.verdicts import SIGNS
from headscope.studies.findings import Verdict

MUTED = "opacity:.7"
COLOURS: dict[Verdict, str] = {
    "holds": "rgba(0,158,115,.25)",
    "does not hold": "rgba(213,94,0,.25)",
    "cannot be measured": "rgba(128,128,128,.15)",
}
CELL = "padding:.15em .7em;text-align:left;border-bottom:1px solid rgba(128,128,128,.3)"


def comparison_card(made: Comparison) -> str:
    """Warnings, and the findings of all models side by side."""
    names = Markup("").join(Markup('<th style="{}"><bdi>{}</bdi></th>').format(CELL, name) for name in made.names)
    rows = Markup("").join(_row(made, k) for k in range(len(made.found[made.names[0]])))
    warned = Markup("").join(
        Markup(
            '<div style="border-left:4px solid #c2562d;padding:.1em .7em;margin:0 0 .4em">'
            "<strong>Warning</strong>: <bdi>{}</bdi></div>"
        ).format(warning)
        for warning in made.warnings
    )
    told = Markup("").join(Markup('<div style="{}"><bdi>{}</bdi></div>').format(MUTED, each) for each in made.notes)
    return str(
        Markup(
            '<div style="font-size:13px;line-height:1.45;max-width:72em;padding:.6em .9em;overflow-x:auto;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px">'
            '<div style="font-size:1.15em"><span style="{muted}">Comparison of</span> <strong>{number} studies</strong>'
            "</div>{warned}{told}"
            '<table style="border-collapse:collapse;margin-top:.4em"><thead><tr><th style="{cell}">claim</th>{names}'
            "</tr></thead><tbody>{rows}</tbody></table></div>"
        ).format(muted=MUTED, number=len(made.names), warned=warned, told=told, cell=CELL, names=names, rows=rows)
    )


def _row(made: Comparison, place: int) -> Markup:
    of = [made.found[name][place] for name in made.names]
    cells = Markup("").join(
        Markup('<td style="{};white-space:nowrap;background:{}" title="{}">{} {}</td>').format(
            CELL,
            COLOURS[one.verdict],
            one.measured,
            SIGNS[one.verdict],
            one.number_text if one.value is not None else "",
        )
        for one in of
    )
    return Markup('<tr><th style="{};font-weight:400">{}. {}</th>{}</tr>').format(
        CELL, of[0].number, of[0].claim, cells
    )

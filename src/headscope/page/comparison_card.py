"""Notebook representation of a comparison: a fragment of HTML without script, style sheet or identifiers."""

from __future__ import annotations

from markupsafe import Markup

from headscope.comparison.claims import VERDICT_SIGNS
from headscope.comparison.result import Comparison
from headscope.studies.findings import Verdict

MUTED_STYLE = "opacity:.7"
VERDICT_COLORS: dict[Verdict, str] = {
    "consistent": "rgba(0,158,115,.25)",
    "not consistent": "rgba(0,114,178,.2)",
    "undecided": "rgba(230,159,0,.2)",
    "too few texts": "rgba(128,128,128,.15)",
    "not measurable": "rgba(128,128,128,.15)",
}
CELL_STYLE = "padding:.15em .7em;text-align:left;border-bottom:1px solid rgba(128,128,128,.3)"


def render_comparison_card(comparison: Comparison) -> str:
    """Return the warnings, and the findings of all models side by side, as HTML."""
    names = Markup("").join(
        Markup('<th style="{}"><bdi>{}</bdi></th>').format(CELL_STYLE, name) for name in comparison.names
    )
    rows = Markup("").join(
        _render_row(comparison, index) for index in range(len(comparison.findings_by_model[comparison.names[0]]))
    )
    warnings = Markup("").join(
        Markup(
            '<div style="border-left:4px solid #c2562d;padding:.1em .7em;margin:0 0 .4em">'
            "<strong>Warning</strong>: <bdi>{}</bdi></div>"
        ).format(warning)
        for warning in comparison.warnings
    )
    notes = Markup("").join(
        Markup('<div style="{}"><bdi>{}</bdi></div>').format(MUTED_STYLE, note) for note in comparison.notes
    )
    return str(
        Markup(
            '<div style="font-size:13px;line-height:1.45;max-width:72em;padding:.6em .9em;overflow-x:auto;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px">'
            '<div style="font-size:1.15em"><span style="{muted}">Comparison of</span> <strong>{number} studies</strong>'
            "</div>{warnings}{notes}"
            '<table style="border-collapse:collapse;margin-top:.4em"><thead><tr><th style="{cell}">claim</th>{names}'
            "</tr></thead><tbody>{rows}</tbody></table></div>"
        ).format(
            muted=MUTED_STYLE,
            number=len(comparison.names),
            warnings=warnings,
            notes=notes,
            cell=CELL_STYLE,
            names=names,
            rows=rows,
        )
    )


def _render_row(comparison: Comparison, index: int) -> Markup:
    findings = [comparison.findings_by_model[name][index] for name in comparison.names]
    cells = Markup("").join(
        Markup('<td style="{};white-space:nowrap;background:{}" title="{}">{} {}</td>').format(
            CELL_STYLE,
            VERDICT_COLORS[finding.verdict],
            finding.explanation,
            VERDICT_SIGNS[finding.verdict],
            finding.number_text if finding.value is not None else "",
        )
        for finding in findings
    )
    return Markup('<tr><th style="{};font-weight:400">{}. {}</th>{}</tr>').format(
        CELL_STYLE, findings[0].number, findings[0].title, cells
    )

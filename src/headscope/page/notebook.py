"""Notebook representations of results.

Notebook representation of a study: a fragment of HTML without script, style sheet or identifiers.

A notebook, light or dark, may contain many cards and may strip style sheets; so every style is inline, the font and its
colour are inherited, and lines have the colour of the text.

Notebook representation of a comparison: a fragment of HTML without script, style sheet or identifiers.

Notebook representations: the page of a result in an iframe, which stays when the notebook is saved and reopened.

The page is an attribute of the iframe (`srcdoc`), so nothing is fetched. The iframe is sandboxed, so texts on the page
can reach neither the notebook nor another frame, and several results do not disturb each other.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from headscope.comparison.claims import VERDICT_SIGNS
from headscope.comparison.result import Comparison
from headscope.page.explorer import render_explorer
from headscope.page.formatting import NOTHING
from headscope.page.heat_maps import Cell, HeatMap, build_head_type_maps, build_heat_maps
from headscope.page.segmentation import format_count, render_segmentation_page
from headscope.readings.reading import Reading
from headscope.segmentation.result import Segmentation
from headscope.studies.findings import Verdict
from headscope.studies.result import Study
from headscope.studies.sample_size import adapt_wording, describe_errors

MAX_ROOMY_HEADS = 16
"""heads in a layer up to which cells are large"""
ROOMY_CELL, TIGHT_CELL, GAP = 11, 6, 1
MUTED_STYLE = "opacity:.7"


def render_study_card(study: Study) -> str:
    """Return a study as a compact piece of HTML: its settings, its heads by type, its rates as small heat maps."""
    manifest = study.manifest
    facts = (
        ("corpus", manifest["corpus"]),
        (adapt_wording(study, "texts"), f"{study.texts:,}"),
        ("layers × heads", f"{len(study.layers)} × {len(study.head_numbers)}"),
        ("window", adapt_wording(study, f"{manifest['length']} tokens")),
        ("θ", f"{manifest['theta']:g}"),
        *((f"heads: {head_map.part.label}", head_map.summary) for head_map in build_head_type_maps(study)),
    )
    fact_list = Markup("").join(_render_fact(label, value) for label, value in facts)
    maps = Markup("").join(_render_heat_map(heat_map) for heat_map in build_heat_maps(study))
    return str(
        Markup(
            '<div style="font-size:13px;line-height:1.45;max-width:72em;padding:.6em .9em;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px">'
            '<div style="font-size:1.15em;overflow-wrap:anywhere">'
            '<span style="{muted}">Study of</span> <strong><bdi>{model}</bdi></strong></div>'
            '<div style="display:flex;flex-wrap:wrap;gap:0 1.4em;margin:.15em 0 .5em">{facts}</div>{notice}'
            '<div style="display:flex;flex-wrap:wrap;gap:.7em 1.3em">{maps}</div></div>'
        ).format(muted=MUTED_STYLE, model=manifest["model"], facts=fact_list, notice=_render_notice(study), maps=maps)
    )


def _render_fact(label: str, value: str) -> Markup:
    return Markup('<span style="overflow-wrap:anywhere"><span style="{}">{}</span> <bdi>{}</bdi></span>').format(
        MUTED_STYLE, label, value
    )


def _render_notice(study: Study) -> Markup:
    manifest = study.manifest
    notices = []
    if not manifest.get("complete", 1):
        notices.append(("Incomplete: ", f"it ended before its corpus did. {manifest.get('stopped_by', '')}"))
    if not manifest.get("verified", 1):
        notices.append(("Unverified capture: ", f"numbers could be wrong. {manifest.get('verified_note', '')}"))
    if errors := describe_errors(study):
        notices.append(("", errors))
    return Markup("").join(
        Markup(
            '<div style="border-left:4px solid #c2562d;padding:.1em .7em;margin:0 0 .6em"><strong>{}</strong>'
            "<bdi>{}</bdi></div>"
        ).format(*notice)
        for notice in notices
    )


def _render_heat_map(heat_map: HeatMap) -> Markup:
    rows = heat_map.rows
    columns = len(rows[0][1])
    cell_size = ROOMY_CELL if columns <= MAX_ROOMY_HEADS else TIGHT_CELL
    step = cell_size + GAP
    cells = Markup("").join(
        _render_cell(cell, heat_map.words.unit, x * step, y * step, cell_size)
        for y, (_, row) in enumerate(rows)
        for x, cell in enumerate(row)
    )
    chance = heat_map.shown(heat_map.mean_chance) if math.isfinite(heat_map.mean_chance) else "unknown"
    return Markup(
        '<div style="min-width:0"><div>{label}</div>'
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}, layers down, heads across" '
        'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'style="display:block;max-width:100%;height:auto;margin:.2em 0">{cells}</svg>'
        '<div style="font-size:.9em;{muted}">{range}<br>chance {chance}</div></div>'
    ).format(
        label=heat_map.words.label,
        width=columns * step - GAP,
        height=len(rows) * step - GAP,
        cells=cells,
        muted=MUTED_STYLE,
        range=_format_range(heat_map),
        chance=chance,
    )


def _render_cell(cell: Cell, unit: str, x: int, y: int, size: int) -> Markup:
    tooltip = Markup("<title>{}: {}</title>").format(cell.name, cell.describe(unit))
    if not cell.background:  # crossed out, in the colour of the text
        path = f"M{x} {y}h{size}v{size}h-{size}zl{size} {size}"
        return Markup(
            '<path d="{}" fill="none" pointer-events="all" stroke="currentColor" stroke-opacity=".45">{}</path>'
        ).format(path, tooltip)
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}">{}</rect>').format(
        x, y, size, size, cell.background, tooltip
    )


def _format_range(heat_map: HeatMap) -> str:
    finite = [float(value) for value in heat_map.values.ravel() if math.isfinite(value)]
    if not finite:
        return NOTHING
    low, high = heat_map.shown(min(finite)), heat_map.shown(max(finite))
    return low if low == high else f"{low.removesuffix(heat_map.words.unit).strip()}–{high}"


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

"""Notebook representation of a study: a fragment of HTML without script, style sheet or identifiers.

A notebook, light or dark, may contain many cards and may strip style sheets; so every style is inline, the font and its
colour are inherited, and lines have the colour of the text.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from headscope.page.formatting import NOTHING
from headscope.page.head_type_map import build_head_type_maps
from headscope.page.heat_maps import Cell, HeatMap, build_heat_maps
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_errors
from headscope.studies.wording import adapt_wording

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

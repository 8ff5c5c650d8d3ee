"""What a study shows of itself in a notebook: one fragment of HTML without script, style sheet or identifiers.

Notebooks hold many cards, light or dark, and may strip style sheets; so every style stands at its element, the font and
its colour are inherited, and lines take the colour of the text.
"""

from __future__ import annotations

import math

from markupsafe import Markup

from headscope.page.characters import character_map
from headscope.page.heads import Cell, HeatMap, heat_maps
from headscope.page.words import NOTHING
from headscope.studies.result import Study
from headscope.studies.speaking import spoken

FEW = 16
"""up to so many heads in a layer, cells are roomy"""
ROOMY, TIGHT, GAP = 11, 6, 1
MUTED = "opacity:.7"


def study_card(study: Study) -> str:
    """A study as a compact piece of HTML: what was studied, what its heads are, its rates as small heat maps."""
    about = study.manifest
    facts = (
        ("corpus", about["corpus"]),
        (spoken(study, "texts"), f"{study.texts:,}"),
        ("layers × heads", f"{len(study.layers)} × {len(study.heads)}"),
        ("window", spoken(study, f"{about['length']} tokens")),
        ("θ", f"{about['theta']:g}"),
        ("heads", character_map(study).summary),
    )
    listed = Markup("").join(_fact(label, value) for label, value in facts)
    maps = Markup("").join(_small_map(heat_map) for heat_map in heat_maps(study))
    return str(
        Markup(
            '<div style="font-size:13px;line-height:1.45;max-width:72em;padding:.6em .9em;'
            'border:1px solid rgba(128,128,128,.45);border-radius:6px">'
            '<div style="font-size:1.15em;overflow-wrap:anywhere">'
            '<span style="{muted}">Study of</span> <strong><bdi>{model}</bdi></strong></div>'
            '<div style="display:flex;flex-wrap:wrap;gap:0 1.4em;margin:.15em 0 .5em">{facts}</div>{notice}'
            '<div style="display:flex;flex-wrap:wrap;gap:.7em 1.3em">{maps}</div></div>'
        ).format(muted=MUTED, model=about["model"], facts=listed, notice=_notice(study), maps=maps)
    )


def _fact(label: str, value: str) -> Markup:
    return Markup('<span style="overflow-wrap:anywhere"><span style="{}">{}</span> <bdi>{}</bdi></span>').format(
        MUTED, label, value
    )


def _notice(study: Study) -> Markup:
    about = study.manifest
    if about.get("complete", 1):
        return Markup("")
    return Markup(
        '<div style="border-left:4px solid #c2562d;padding:.1em .7em;margin:0 0 .6em"><strong>Incomplete</strong>: '
        "it ended before its corpus did. <bdi>{}</bdi></div>"
    ).format(about.get("stopped_by", ""))


def _small_map(heat_map: HeatMap) -> Markup:
    rows = heat_map.rows
    columns = len(rows[0][1])
    cell = ROOMY if columns <= FEW else TIGHT
    step = cell + GAP
    cells = Markup("").join(
        _drawn(each, heat_map.words.unit, x * step, y * step, cell)
        for y, (_, row) in enumerate(rows)
        for x, each in enumerate(row)
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
        muted=MUTED,
        range=_range(heat_map),
        chance=chance,
    )


def _drawn(cell: Cell, unit: str, x: int, y: int, size: int) -> Markup:
    tip = Markup("<title>{}: {}</title>").format(cell.name, cell.about(unit))
    if not cell.background:  # crossed out, in the colour of the text
        path = f"M{x} {y}h{size}v{size}h-{size}zl{size} {size}"
        return Markup(
            '<path d="{}" fill="none" pointer-events="all" stroke="currentColor" stroke-opacity=".45">{}</path>'
        ).format(path, tip)
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}">{}</rect>').format(
        x, y, size, size, cell.background, tip
    )


def _range(heat_map: HeatMap) -> str:
    known = [float(value) for value in heat_map.values.ravel() if math.isfinite(value)]
    if not known:
        return NOTHING
    low, high = heat_map.shown(min(known)), heat_map.shown(max(known))
    return low if low == high else f"{low.removesuffix(heat_map.words.unit).strip()}–{high}"

"""Render a segmentation as one self-contained HTML page: the text in its segments, and what they are based on.

The text is not trusted: it is escaped. It is in the page once, and every copy or file that the page offers is made from
there. Only a null character, which HTML cannot contain, is shown and saved as U+FFFD.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from headscope.array_types import Floats
from headscope.page.comparison_charts import format_gradient, pick_diverging_color
from headscope.page.formatting import format_fixed, format_scalar, group_manifest
from headscope.page.templates import (
    build_policy,
    embed_json,
    make_environment,
    make_slug,
    read_assets,
    replace_surrogates,
)
from headscope.segmentation.result import HeadWeight, Segment, Segmentation

COLOR_CLASSES = 5
"""colours of segments, used in turn"""
MAX_SPANS = 3_000
"""pieces up to which each is an element with its own title; beyond, each segment is one run of text"""
MAX_BARS = 800
"""bars of the chart; if there are more gaps, each bar shows the highest of several gaps"""
WIDTH, HEIGHT = 1000.0, 100.0
"""of the chart's view box, which is stretched to the width of the page"""
MAX_LISTED_HEADS = 12
"""heads in the table"""
MAX_SETTINGS = 6
"""entries of the manifest shown beside the title"""
MAX_FIRST_WORDS = 60
"""characters of the beginning of a text"""
MAX_CODE = 32_767
"""similarities have codes from −MAX_CODE to MAX_CODE; −MAX_CODE − 1 stands for none"""
COLOR_STEPS = 129
REACH_PERCENTILE = 99
"""percentile of similarities at which the colour scale ends, so that a few large ones leave the others visible"""
MAX_GRID_SIZE = 300
"""largest number of layers or heads of the map of weights that is taken from the manifest"""


@dataclass(frozen=True)
class Chart:
    """Strengths of all gaps as SVG paths, in the units of the view box."""

    bars: str
    chosen: str
    marks: str
    """a dot on top of the bar of each boundary"""
    zero: float
    cost: float
    """y coordinate of a strength of 1, the cost of a boundary"""
    ticks: tuple[tuple[float, str], ...]
    """position from the top in percent, and the number"""
    numbers: tuple[tuple[float, str], ...]
    """position from the left in percent, and the number of the piece"""


@dataclass(frozen=True)
class Grid:
    """Weights over layers and heads."""

    layers: int
    heads: int
    votes: tuple[tuple[HeadWeight, float], ...]
    """each with its weight relative to the largest"""


def render_segmentation_page(segmentation: Segmentation) -> str:
    """Return the page: strengths of boundaries, the text in coloured segments, the map of similarities, the heads."""
    script = read_assets("base.js", "segments.js")
    manifest = {
        name: value for name, value in segmentation.manifest.items() if not _is_empty(value) and name != "level"
    }
    groups = group_manifest(manifest)
    template = make_environment()
    template.filters.update(
        fixed=format_fixed, plain=format_scalar, count=lambda number: format_fixed(number, 0), many=format_count
    )
    strongest = max(
        (segment.strength or 0.0 for segment in segmentation.segments if _is_positive(segment.strength)), default=1.0
    )
    heaviest = max((vote.weight for vote in segmentation.heads), default=1.0) or 1.0
    page = template.from_string(read_assets("segments.html")).render(
        made=segmentation,
        about={"model": str(manifest.get("model", "unknown model"))},
        pieces=len(segmentation.edges) - 1,
        parts=[
            {
                "segment": segment,
                "hue": segment.number % COLOR_CLASSES,
                "words": get_first_words(segment.text),
                "bar": _compute_percentage(segment.strength, strongest),
                "said": _render_segment(segmentation, segment),
            }
            for segment in segmentation.segments
        ],
        chart=_build_chart(segmentation),
        map=_build_map(segmentation),
        gradient=format_gradient(),
        heads=[(vote, _compute_percentage(vote.weight, heaviest)) for vote in segmentation.heads[:MAX_LISTED_HEADS]],
        grid=_build_grid(segmentation, heaviest),
        settings=_select_settings(groups),
        groups=groups,
        hues=COLOR_CLASSES,
        made_by=version("headscope"),
        policy=build_policy(script),
        script=Markup(script),
        style=Markup(read_assets("base.css", "report.css", "segments.css")),
        data=embed_json(_collect_data(segmentation)),
    )
    return replace_surrogates(page.lstrip())


def format_count(number: int, word: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1.

    >>> format_count(1, "sentence"), format_count(1200, "block")
    ('1 sentence', '1,200 blocks')
    """
    return f"{format_fixed(number, 0)} {word}{'' if number == 1 else 's'}"


def get_first_words(text: str) -> str:
    """Return the beginning of a text on one line.

    >>> get_first_words("  One\\n two. ")
    'One two.'
    """
    joined = " ".join(text[: 8 * MAX_FIRST_WORDS].split())
    return joined if len(joined) <= MAX_FIRST_WORDS else joined[:MAX_FIRST_WORDS].rsplit(" ", 1)[0] + " …"


# -- the text ----------------------------------------------------------------------------------------------------------


def _render_segment(segmentation: Segmentation, segment: Segment) -> Markup:
    """Return the exact text of a segment. White space at its end is included, but hidden."""
    visible = segment.text.rstrip()
    tail = segment.text[len(visible) :]
    hidden_tail = Markup("<span hidden>{}</span>").format(_escape(tail)) if tail else Markup("")
    pieces = len(segmentation.edges) - 1
    if pieces > MAX_SPANS:
        return _escape(visible) + hidden_tail
    spans = []
    for k in range(segment.first, segment.first + segment.pieces):
        part = segmentation.text[
            segmentation.edges[k] : min(int(segmentation.edges[k + 1]), segment.start + len(visible))
        ]
        spans.append(
            Markup('<span title="{} {}">{}</span>').format(segmentation.piece_name.capitalize(), k + 1, _escape(part))
        )
    return Markup("").join(spans) + hidden_tail


def _escape(text: str) -> Markup:
    """Escape a text such that a browser reads the same characters, even carriage returns, which it would replace."""
    return Markup(str(escape(text)).replace("\r", "&#13;").replace("\0", "\ufffd"))


# -- strengths of boundaries -------------------------------------------------------------------------------------------


def _build_chart(segmentation: Segmentation) -> Chart | None:
    """Return the chart of strengths; None if there is no gap."""
    pieces, strengths = len(segmentation.edges) - 1, segmentation.strengths
    if pieces < 2:
        return None
    finite = strengths[np.isfinite(strengths)]
    high, low = max(1.25, float(finite.max(initial=0))) * 1.06, min(0.0, float(finite.min(initial=0))) * 1.06

    def compute_y(value: float) -> float:
        return round((high - value) / (high - low) * HEIGHT, 2)

    zero = compute_y(0)
    width = 0.7 * WIDTH / min(pieces, MAX_BARS)

    def draw_bar(x: float, value: float) -> str:
        return f"M{x - width / 2:.2f} {zero}V{compute_y(value)}h{width:.2f}V{zero}z"

    boundaries = [(gap / pieces * WIDTH, float(strengths[gap - 1])) for gap in segmentation.boundaries.tolist()]
    boundaries = [(x, value if math.isfinite(value) else 0.0) for x, value in boundaries]
    return Chart(
        bars="".join(draw_bar(x, value) for x, value in _list_bars(segmentation)),
        chosen="".join(draw_bar(x, value) for x, value in boundaries),
        marks="".join(f"M{x:.2f} {compute_y(value)}h0" for x, value in boundaries),
        zero=zero,
        cost=compute_y(1),
        ticks=tuple((compute_y(tick), format_scalar(tick)) for tick in _choose_ticks(low, high)),
        numbers=tuple((round((k - 0.5) / pieces * 100, 3), format_fixed(k, 0)) for k in _choose_numbers(pieces)),
    )


def _list_bars(segmentation: Segmentation) -> list[tuple[float, float]]:
    """Return the x coordinates and strengths of considered gaps that are no boundary, or of the highest per bar."""
    pieces = len(segmentation.edges) - 1
    gaps = np.setdiff1d(np.flatnonzero(np.isfinite(segmentation.strengths)), segmentation.boundaries - 1)
    positions, values = (gaps + 1) / pieces, segmentation.strengths[gaps]
    if pieces > MAX_BARS:
        column = np.minimum((positions * MAX_BARS).astype(np.int64), MAX_BARS - 1)
        highest = np.full(MAX_BARS, -np.inf)
        np.maximum.at(highest, column, values)
        filled = np.flatnonzero(np.isfinite(highest))
        positions, values = (filled + 0.5) / MAX_BARS, highest[filled]
    return [(float(position) * WIDTH, float(value)) for position, value in zip(positions, values, strict=True)]


def _choose_ticks(low: float, high: float) -> list[float]:
    """Return at most six round numbers."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= high - low)
    return [round(k * step, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _choose_numbers(pieces: int) -> list[int]:
    """Return the numbers of the first and last piece, and round numbers between that are not too near to these."""
    step = next(f * 10**p for p in range(12) for f in (1, 2, 5) if f * 10**p * 6 >= pieces)
    between = [k for k in range(step, pieces, step) if k > 0.1 * pieces and k < 0.93 * pieces]
    return sorted({1, *between, pieces})


# -- similarities ------------------------------------------------------------------------------------------------------


def _build_map(segmentation: Segmentation) -> dict[str, Any]:
    """Return the outlines of the segments along the diagonal, and the range of the colour scale."""
    size = len(segmentation.cells) - 1
    ends = [_locate_piece(segmentation, segment.first) for segment in segmentation.segments] + [float(size)]
    outlines = "".join(f"M{a:.3f} {a:.3f}H{b:.3f}V{b:.3f}H{a:.3f}z" for a, b in pairwise(ends))
    return {
        "size": size,
        "outlines": outlines,
        "reach": _choose_reach(segmentation),
        "most": int(np.diff(segmentation.cells).max(initial=1)),
    }


def _locate_piece(segmentation: Segmentation, piece: int) -> float:
    """Return where a piece starts on the axes of the map, in cells."""
    return float(np.interp(piece, segmentation.cells, np.arange(len(segmentation.cells))))


def _choose_reach(segmentation: Segmentation) -> float:
    off_diagonal = ~np.eye(len(segmentation.similarity), dtype=bool)
    for values in (segmentation.similarity[off_diagonal], segmentation.similarity):
        magnitudes = np.abs(values[np.isfinite(values)])
        if magnitudes.size and magnitudes.max() > 0:
            return float(np.percentile(magnitudes, REACH_PERCENTILE)) or float(magnitudes.max())
    return 1.0


def _encode_similarity(similarity: Floats) -> tuple[str, float]:
    """Return the map with two bytes per cell, in base64, and the similarity of one step of these codes."""
    finite = np.isfinite(similarity)
    step = float(np.abs(similarity[finite]).max(initial=0)) / MAX_CODE or 1.0
    codes = np.where(finite, np.rint(np.where(finite, similarity, 0) / step), -MAX_CODE - 1)
    return base64.b64encode(codes.astype("<i2").tobytes()).decode("ascii"), step


# -- heads -------------------------------------------------------------------------------------------------------------


def _build_grid(segmentation: Segmentation, heaviest: float) -> Grid | None:
    if not segmentation.heads:
        return None
    layers = max(_get_size(segmentation.manifest.get("layers")), *(vote.layer + 1 for vote in segmentation.heads))
    heads = max(_get_size(segmentation.manifest.get("heads")), *(vote.head + 1 for vote in segmentation.heads))
    return Grid(layers, heads, tuple((vote, round(max(vote.weight / heaviest, 0.0), 3)) for vote in segmentation.heads))


def _get_size(value: Any) -> int:
    return value if isinstance(value, int) and value <= MAX_GRID_SIZE else 0


# -- the rest ----------------------------------------------------------------------------------------------------------


def _collect_data(segmentation: Segmentation) -> dict[str, Any]:
    """Return the data that the script shows and saves: all of `as_dict()` but the text, which it finds in the page."""
    codes, step = _encode_similarity(segmentation.similarity)
    return {
        "file": make_slug(get_first_words(segmentation.text)[:32]).lower(),
        "piece": segmentation.piece_name,
        "spans": len(segmentation.edges) - 1 <= MAX_SPANS,
        "boundaries": segmentation.boundaries.tolist(),
        "cells": segmentation.cells.tolist(),
        "codes": codes,
        "step": step,
        "reach": _choose_reach(segmentation),
        "colours": [pick_diverging_color(2 * k / (COLOR_STEPS - 1) - 1) for k in range(COLOR_STEPS)],
        "saved": {
            "level": segmentation.level,
            "characters": len(segmentation.text),
            "pieces": len(segmentation.edges) - 1,
            "segments": [],
            "edges": segmentation.edges.tolist(),
            "strengths": _replace_nonfinite(segmentation.strengths.tolist()),
            "heads": [
                {"head": vote.name, "layer": vote.layer, "head_number": vote.head}
                | dict(zip(("weight", "contrast"), _replace_nonfinite([vote.weight, vote.contrast]), strict=True))
                for vote in segmentation.heads
            ],
            "manifest": segmentation.manifest,
        },
    }


def _replace_nonfinite(numbers: Sequence[float]) -> list[float | None]:
    return [float(number) if math.isfinite(number) else None for number in numbers]


def _select_settings(groups: list[tuple[str, list[tuple[str, str]]]]) -> list[tuple[str, str]]:
    """Return the short manifest entries that only segmentations have: how this one was made."""
    return [entry for title, rows in groups if title == "Other" for entry in rows if len(entry[1]) <= 40][:MAX_SETTINGS]


def _compute_percentage(value: float | None, largest: float) -> float:
    """Return a positive value in percent of the largest, for a bar; 0 for other values."""
    return round(min(value / largest, 1.0) * 100, 1) if value is not None and _is_positive(value) else 0.0


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and not value)

"""A segmentation as one HTML page that needs nothing else: the text in its segments, and what they were decided on.

The text is somebody else's: it is escaped, stands in the page once, and every copy or file that the page offers is made
of what stands there. Only a null character, which no HTML can hold, is shown and saved as U+FFFD.
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

from headscope.page.differences import diverging, gradient
from headscope.page.html import asset, embedded, environment, policy, slug, whole
from headscope.page.words import fixed, manifest_groups, plain
from headscope.segmentation.result import HeadVote, Segment, Segmentation
from headscope.types import Floats

HUES = 5
"""colours of segments, in turn"""
SPANS = 3_000
"""up to so many pieces, each is an element with a name of its own; beyond, a segment is one run of text"""
COLUMNS = 800
"""bars across the chart; where there are more gaps, each shows the highest of its gaps"""
WIDTH, HEIGHT = 1000.0, 100.0
"""of the chart's view box, which is stretched to the page"""
LISTED = 12
"""heads in the table"""
SETTINGS = 6
"""entries of the manifest told beside the title"""
FIRST_WORDS = 60
"""characters"""
CODES = 32_767
"""steps of similarity on either side of 0; one below the lowest says that there is none"""
COLOURS = 129
TYPICAL = 99
"""the percentile of similarities where colours end: a few large ones leave the others visible"""
LARGEST_GRID = 300
"""layers or heads that the map of weights has room for"""


@dataclass(frozen=True)
class Chart:
    """Strengths of all gaps, in the units of a view box."""

    bars: str
    chosen: str
    marks: str
    """a dot on top of each chosen one"""
    zero: float
    cost: float
    """how far down a strength of 1 lies"""
    ticks: tuple[tuple[float, str], ...]
    """percent down, and the number"""
    numbers: tuple[tuple[float, str], ...]
    """percent across, and the piece"""


@dataclass(frozen=True)
class Grid:
    """Weights over layers and heads."""

    layers: int
    heads: int
    votes: tuple[tuple[HeadVote, float], ...]
    """with each weight as a part of the largest"""


def segments_page(segmentation: Segmentation) -> str:
    """The page: strengths of boundaries, the text in coloured segments, the map of similarities, and the heads."""
    made = segmentation
    script = asset("base.js", "segments.js")
    told = {name: value for name, value in made.manifest.items() if not _empty(value) and name != "level"}
    groups = manifest_groups(told)
    template = environment()
    template.filters.update(fixed=fixed, plain=plain, count=lambda number: fixed(number, 0), many=many)
    strongest = max((each.strength or 0.0 for each in made.segments if _positive(each.strength)), default=1.0)
    heaviest = max((vote.weight for vote in made.heads), default=1.0) or 1.0
    page = template.from_string(asset("segments.html")).render(
        made=made,
        about={"model": str(told.get("model", "unknown model"))},
        pieces=len(made.edges) - 1,
        parts=[
            {
                "segment": each,
                "hue": each.number % HUES,
                "words": first_words(each.text),
                "bar": _share(each.strength, strongest),
                "said": _said(made, each),
            }
            for each in made.segments
        ],
        chart=_chart(made),
        map=_map(made),
        gradient=gradient(),
        heads=[(vote, _share(vote.weight, heaviest)) for vote in made.heads[:LISTED]],
        grid=_grid(made, heaviest),
        settings=_settings(groups),
        groups=groups,
        hues=HUES,
        made_by=version("headscope"),
        policy=policy(script),
        script=Markup(script),
        style=Markup(asset("base.css", "report.css", "segments.css")),
        data=embedded(_data(made)),
    )
    return whole(page.lstrip())


def many(number: int, word: str) -> str:
    """So many of them.

    >>> many(1, "sentence"), many(1200, "block")
    ('1 sentence', '1,200 blocks')
    """
    return f"{fixed(number, 0)} {word}{'' if number == 1 else 's'}"


def first_words(text: str) -> str:
    """How a text begins, on one line.

    >>> first_words("  One\\n two. ")
    'One two.'
    """
    joined = " ".join(text[: 8 * FIRST_WORDS].split())
    return joined if len(joined) <= FIRST_WORDS else joined[:FIRST_WORDS].rsplit(" ", 1)[0] + " …"


# -- the text ----------------------------------------------------------------------------------------------------------


def _said(made: Segmentation, segment: Segment) -> Markup:
    """The text of a segment, exactly. What white space it ends with is there but takes no room."""
    shown = segment.text.rstrip()
    tail = segment.text[len(shown) :]
    hidden = Markup("<span hidden>{}</span>").format(_kept(tail)) if tail else Markup("")
    pieces = len(made.edges) - 1
    if pieces > SPANS:
        return _kept(shown) + hidden
    spans = []
    for k in range(segment.first, segment.first + segment.pieces):
        part = made.text[made.edges[k] : min(int(made.edges[k + 1]), segment.start + len(shown))]
        spans.append(Markup('<span title="{} {}">{}</span>').format(made.piece.capitalize(), k + 1, _kept(part)))
    return Markup("").join(spans) + hidden


def _kept(text: str) -> Markup:
    """Escaped, such that a browser reads the very same characters: it takes a carriage return for a line feed."""
    return Markup(str(escape(text)).replace("\r", "&#13;").replace("\0", "\ufffd"))


# -- strengths of boundaries -------------------------------------------------------------------------------------------


def _chart(made: Segmentation) -> Chart | None:
    """None where there is no gap."""
    pieces, strengths = len(made.edges) - 1, made.strengths
    if pieces < 2:
        return None
    known = strengths[np.isfinite(strengths)]
    high, low = max(1.25, float(known.max(initial=0))) * 1.06, min(0.0, float(known.min(initial=0))) * 1.06

    def down(value: float) -> float:
        return round((high - value) / (high - low) * HEIGHT, 2)

    zero = down(0)
    width = 0.7 * WIDTH / min(pieces, COLUMNS)

    def bar(place: float, value: float) -> str:
        return f"M{place - width / 2:.2f} {zero}V{down(value)}h{width:.2f}V{zero}z"

    cuts = [(cut / pieces * WIDTH, float(strengths[cut - 1])) for cut in made.boundaries.tolist()]
    cuts = [(place, value if math.isfinite(value) else 0.0) for place, value in cuts]
    return Chart(
        bars="".join(bar(place, value) for place, value in _columns(made)),
        chosen="".join(bar(place, value) for place, value in cuts),
        marks="".join(f"M{place:.2f} {down(value)}h0" for place, value in cuts),
        zero=zero,
        cost=down(1),
        ticks=tuple((down(tick), plain(tick)) for tick in _ticks(low, high)),
        numbers=tuple((round((k - 0.5) / pieces * 100, 3), fixed(k, 0)) for k in _numbers(pieces)),
    )


def _columns(made: Segmentation) -> list[tuple[float, float]]:
    """Places across and strengths of the considered gaps that are no boundary, or of the highest in every column."""
    pieces = len(made.edges) - 1
    gaps = np.setdiff1d(np.flatnonzero(np.isfinite(made.strengths)), made.boundaries - 1)
    places, values = (gaps + 1) / pieces, made.strengths[gaps]
    if pieces > COLUMNS:
        column = np.minimum((places * COLUMNS).astype(np.int64), COLUMNS - 1)
        highest = np.full(COLUMNS, -np.inf)
        np.maximum.at(highest, column, values)
        there = np.flatnonzero(np.isfinite(highest))
        places, values = (there + 0.5) / COLUMNS, highest[there]
    return [(float(place) * WIDTH, float(value)) for place, value in zip(places, values, strict=True)]


def _ticks(low: float, high: float) -> list[float]:
    """At most six round numbers."""
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= high - low)
    return [round(k * step, 10) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _numbers(pieces: int) -> list[int]:
    """The first piece, the last, and round ones between that do not come near them."""
    step = next(f * 10**p for p in range(12) for f in (1, 2, 5) if f * 10**p * 6 >= pieces)
    between = [k for k in range(step, pieces, step) if k > 0.1 * pieces and k < 0.93 * pieces]
    return sorted({1, *between, pieces})


# -- similarities ------------------------------------------------------------------------------------------------------


def _map(made: Segmentation) -> dict[str, Any]:
    """The found segments along the diagonal, and where colours end."""
    size = len(made.cells) - 1
    ends = [_cell(made, each.first) for each in made.segments] + [float(size)]
    outlines = "".join(f"M{a:.3f} {a:.3f}H{b:.3f}V{b:.3f}H{a:.3f}z" for a, b in pairwise(ends))
    return {"size": size, "outlines": outlines, "reach": _reach(made), "most": int(np.diff(made.cells).max(initial=1))}


def _cell(made: Segmentation, piece: int) -> float:
    """Where a piece starts on the axes of the map, which count cells."""
    return float(np.interp(piece, made.cells, np.arange(len(made.cells))))


def _reach(made: Segmentation) -> float:
    apart = ~np.eye(len(made.similarity), dtype=bool)
    for values in (made.similarity[apart], made.similarity):
        known = np.abs(values[np.isfinite(values)])
        if known.size and known.max() > 0:
            return float(np.percentile(known, TYPICAL)) or float(known.max())
    return 1.0


def _codes(similarity: Floats) -> tuple[str, float]:
    """The map as two bytes a cell, and what a code is multiplied with."""
    known = np.isfinite(similarity)
    step = float(np.abs(similarity[known]).max(initial=0)) / CODES or 1.0
    made = np.where(known, np.rint(np.where(known, similarity, 0) / step), -CODES - 1)
    return base64.b64encode(made.astype("<i2").tobytes()).decode("ascii"), step


# -- heads -------------------------------------------------------------------------------------------------------------


def _grid(made: Segmentation, heaviest: float) -> Grid | None:
    if not made.heads:
        return None
    layers = max(_whole_number(made.manifest.get("layers")), *(vote.layer + 1 for vote in made.heads))
    heads = max(_whole_number(made.manifest.get("heads")), *(vote.head + 1 for vote in made.heads))
    return Grid(layers, heads, tuple((vote, round(max(vote.weight / heaviest, 0.0), 3)) for vote in made.heads))


def _whole_number(value: Any) -> int:
    return value if isinstance(value, int) and value <= LARGEST_GRID else 0


# -- the rest ----------------------------------------------------------------------------------------------------------


def _data(made: Segmentation) -> dict[str, Any]:
    """What the script needs to show and to save: all of `as_dict()` but the text, which it finds in the page."""
    codes, step = _codes(made.similarity)
    return {
        "file": slug(first_words(made.text)[:32]).lower(),
        "piece": made.piece,
        "spans": len(made.edges) - 1 <= SPANS,
        "boundaries": made.boundaries.tolist(),
        "cells": made.cells.tolist(),
        "codes": codes,
        "step": step,
        "reach": _reach(made),
        "colours": [diverging(2 * k / (COLOURS - 1) - 1) for k in range(COLOURS)],
        "saved": {
            "level": made.level,
            "characters": len(made.text),
            "pieces": len(made.edges) - 1,
            "segments": [],
            "edges": made.edges.tolist(),
            "strengths": _numbers_or_null(made.strengths.tolist()),
            "heads": [
                {"name": v.name, "layer": v.layer, "head": v.head}
                | dict(zip(("weight", "contrast"), _numbers_or_null([v.weight, v.contrast]), strict=True))
                for v in made.heads
            ],
            "manifest": made.manifest,
        },
    }


def _numbers_or_null(numbers: Sequence[float]) -> list[float | None]:
    return [float(number) if math.isfinite(number) else None for number in numbers]


def _settings(groups: list[tuple[str, list[tuple[str, str]]]]) -> list[tuple[str, str]]:
    """What the manifest says that is said of nothing else than segmentations: how this one was made."""
    return [entry for title, rows in groups if title == "Other" for entry in rows if len(entry[1]) <= 40][:SETTINGS]


def _share(value: float | None, of: float) -> float:
    """In percent, for a bar."""
    return round(min(value / of, 1.0) * 100, 1) if value is not None and _positive(value) else 0.0


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and not value)

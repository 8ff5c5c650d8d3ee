"""The report: a study as one self-contained HTML page.

Render a study as one self-contained HTML page: no network, no library, one script and one style sheet inside.

Model names, corpus names, tokens, excerpts and findings come from outside and are not trusted. The template escapes all
of them, the script gets its data as JSON that cannot end its element, and a content security policy allows that one
script only.

What the layers attend to: the most attended tokens, and the shares of attention by receiver.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jinja2 import Template
from markupsafe import Markup

from headscope.page.formatting import (
    RECEIVERS,
    format_fixed,
    format_gradient,
    format_name,
    format_scalar,
    group_manifest,
    make_visible,
    pick_text_color,
)
from headscope.page.heat_maps import build_head_type_maps, build_heat_maps, collect_head_type_data, collect_script_data
from headscope.page.templates import (
    build_policy,
    embed_json,
    make_environment,
    make_slug,
    read_assets,
    replace_surrogates,
)
from headscope.studies.claim_statistics import SEPARATORS
from headscope.studies.findings import Finding, Verdict
from headscope.studies.result import Study
from headscope.studies.sample_size import RASTER_NOTE, adapt_wording, describe_errors

MAX_TOKENS = 5
"""tokens listed for each layer"""
MIN_LABELED_SHARE = 0.06
"""smallest share whose number fits into the bar"""


@dataclass(frozen=True)
class LayerTokens:
    """The tokens that are most often the most attended token of their text."""

    layer: int
    tokens: tuple[tuple[str, float, int], ...]
    """token, share of texts, texts"""
    others: int
    """number of further tokens"""
    others_share: float


@dataclass(frozen=True)
class Part:
    """A receiver's part of a bar."""

    receiver: str
    share: float
    background: str
    ink: str

    @property
    def roomy(self) -> bool:
        return self.share >= MIN_LABELED_SHARE


@dataclass(frozen=True)
class Bar:
    """Shares of the attention of one layer; or, as the baseline, of evenly spread attention."""

    label: str
    parts: tuple[Part, ...]
    baseline: bool = False


def list_most_attended(study: Study) -> list[LayerTokens]:
    """Return the most attended tokens layer by layer; an empty list if the study lacks them, as for selected heads."""
    if "most_attended" not in study.data or not study.texts:
        return []
    names = [make_visible(str(token)) for token in study.data["token"].values]
    rows = []
    for layer, counts in zip(study.layers, study.data["most_attended"].values, strict=True):
        order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
        top = tuple((names[k], counts[k] / study.texts, int(counts[k])) for k in order[:MAX_TOKENS])
        others = order[MAX_TOKENS:]
        rows.append(LayerTokens(layer, top, len(others), sum(int(counts[k]) for k in others) / study.texts))
    return rows


def build_receiver_bars(study: Study) -> list[Bar]:
    """Return a bar for each layer and one for evenly spread attention; an empty list if the study lacks them."""
    if "attention_received_share" not in study.data:
        return []
    names = [str(name) for name in study.data["receiver"].values]
    spread = study.data["attention_spread"].values
    shares = study.data["attention_received_share"].values
    even = spread / spread.sum() if spread.sum() else np.full(len(names), np.nan)
    if study.has_images:  # images have no separators
        even, shares = (np.where(np.isin(names, SEPARATORS), np.nan, values) for values in (even, shares))
    bars = [
        Bar(f"L{layer}", _build_parts(names, row.tolist())) for layer, row in zip(study.layers, shares, strict=True)
    ]
    return [*bars, Bar("even", _build_parts(names, even.tolist()), baseline=True)]


def _build_parts(names: list[str], shares: list[float]) -> tuple[Part, ...]:
    colours = [RECEIVERS[k % len(RECEIVERS)] for k in range(len(names))]
    return tuple(
        Part(name, share, background, pick_text_color(background))
        for name, share, background in zip(names, shares, colours, strict=True)
        if math.isfinite(share)
    )


VERDICT_STYLES: dict[Verdict, str] = {
    "consistent": "yes",
    "not consistent": "no",
    "undecided": "open",
    "too few texts": "open",
    "not measurable": "open",
}
"""each verdict and its class in the style sheet"""
WIDE_FIGURE = 400
"""points; a wider figure takes the whole width of the page"""


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report."""

    number: str
    """the number in the paper, such as 6a; or a word, for a figure that the paper does not have"""
    title: str
    caption: str
    svg: str
    """a complete SVG document"""

    @property
    def source(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(replace_surrogates(self.svg).encode()).decode("ascii")

    @property
    def label(self) -> str:
        """Number and title; only the title of a figure that the paper does not have."""
        return f"Figure {self.number}. {self.title}" if self.number[:1].isdigit() else self.title

    @property
    def file(self) -> str:
        return f"figure-{make_slug(self.number)}.svg"

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height, if the drawing states them."""
        view_box = re.search(r"<svg\b[^>]*\bviewBox=[\"']\s*[-\d.]+[\s,]+[-\d.]+[\s,]+([\d.]+)[\s,]+([\d.]+)", self.svg)
        width, height = (float(view_box[1]), float(view_box[2])) if view_box else (0.0, 0.0)
        return (round(width), round(height)) if min(width, height) >= 1 else None

    @property
    def wide(self) -> bool:
        return self.size is None or self.size[0] > WIDE_FIGURE


def render_report(study: Study, findings: Sequence[Finding], figures: Sequence[ReportFigure]) -> str:
    """Return the page of a study: findings, heat maps, head table, tokens, figures and the manifest."""
    maps, head_maps = build_heat_maps(study), build_head_type_maps(study)
    script = read_assets("base.js", "report.js")
    verdict_counts = Counter(finding.verdict for finding in findings)
    page = _load_template(study).render(
        study=study,
        about=study.manifest,
        errors=describe_errors(study),
        findings=findings,
        counts=[(verdict, verdict_counts[verdict]) for verdict in VERDICT_STYLES if verdict_counts[verdict]],
        maps=maps,
        head_maps=head_maps,
        pairs=study.data["pairs"].values.ravel().tolist(),
        layers=list_most_attended(study),
        receivers=build_receiver_bars(study),
        figures=figures,
        groups=group_manifest(study.manifest),
        policy=build_policy(script),
        script=Markup(script),
        style=Markup(read_assets("base.css", "report.css")),
        data=embed_json(
            {
                **collect_script_data(study, maps),
                **collect_head_type_data(head_maps),
                "file": f"{make_slug(study.manifest['model'])}-heads.csv",
            }
        ),
    )
    return replace_surrogates(page.lstrip())


def _load_template(study: Study) -> Template:
    environment = make_environment()
    environment.filters.update(
        fixed=format_fixed,
        plain=format_scalar,
        readable=format_name,
        slug=make_slug,
        say=partial(adapt_wording, study),
        count=lambda number: format_fixed(number, 0),
        percent=lambda share: f"{format_fixed(share * 100, 1)} %",
    )
    environment.globals.update(
        verdicts=VERDICT_STYLES, gradient=format_gradient(), finite=math.isfinite, raster=RASTER_NOTE
    )
    return environment.from_string(read_assets("report.html"))

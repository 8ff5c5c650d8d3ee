"""Render a study as one self-contained HTML page: no network, no library, one script and one style sheet inside.

Model names, corpus names, tokens, excerpts and findings come from outside and are not trusted. The template escapes all
of them, the script gets its data as JSON that cannot end its element, and a content security policy allows that one
script only.
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jinja2 import Template
from markupsafe import Markup

from headscope.page.attention import build_receiver_bars, list_most_attended
from headscope.page.colors import format_gradient
from headscope.page.formatting import format_fixed, format_name, format_scalar, group_manifest
from headscope.page.head_type_map import build_head_type_maps, collect_head_type_data
from headscope.page.heat_maps import build_heat_maps, collect_script_data
from headscope.page.templates import (
    build_policy,
    embed_json,
    make_environment,
    make_slug,
    read_assets,
    replace_surrogates,
)
from headscope.studies.findings import Finding, Verdict
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_errors
from headscope.studies.wording import RASTER_NOTE, adapt_wording

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

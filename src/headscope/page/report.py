"""A study as one HTML page that needs nothing else: no network, no library, one script and one style sheet inside.

Model names, corpus names, tokens, excerpts and findings are other people's text. The template escapes all of it, the
script gets its data as JSON that cannot end its element, and a content security policy allows that one script only.
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

from headscope.page.characters import character_data, character_map
from headscope.page.colours import gradient
from headscope.page.heads import heat_maps, script_data
from headscope.page.html import asset, embedded, environment, policy, slug, whole
from headscope.page.layers import most_attended, receivers
from headscope.page.words import fixed, manifest_groups, plain, readable
from headscope.studies.findings import Finding, Verdict
from headscope.studies.result import Study
from headscope.studies.speaking import RASTER, spoken

VERDICTS: dict[Verdict, str] = {"holds": "yes", "does not hold": "no", "cannot be measured": "open"}
"""each verdict and the name of its colours in the style sheet"""
WIDE = 540
"""points; a wider figure gets the whole width of the page"""


@dataclass(frozen=True)
class Plate:
    """One figure of the report."""

    number: str
    """as the paper counts, 6a; or a word, for one that the paper does not show"""
    title: str
    caption: str
    svg: str
    """a whole SVG document"""

    @property
    def source(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(whole(self.svg).encode()).decode("ascii")

    @property
    def label(self) -> str:
        """What the figure is called; one that the paper does not show has no number there."""
        return f"Figure {self.number}. {self.title}" if self.number[:1].isdigit() else self.title

    @property
    def file(self) -> str:
        return f"figure-{slug(self.number)}.svg"

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height, where the drawing states them."""
        found = re.search(r"<svg\b[^>]*\bviewBox=[\"']\s*[-\d.]+[\s,]+[-\d.]+[\s,]+([\d.]+)[\s,]+([\d.]+)", self.svg)
        width, height = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
        return (round(width), round(height)) if min(width, height) >= 1 else None

    @property
    def wide(self) -> bool:
        return self.size is None or self.size[0] > WIDE


def report(study: Study, findings: Sequence[Finding], figures: Sequence[Plate]) -> str:
    """The page of a study: findings, heat maps, head table, tokens, figures and how it was made."""
    maps, drawn = heat_maps(study), character_map(study)
    script = asset("base.js", "report.js")
    counts = Counter(finding.verdict for finding in findings)
    page = _template(study).render(
        study=study,
        about=study.manifest,
        findings=findings,
        counts=[(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]],
        maps=maps,
        characters=drawn,
        pairs=study.data["pairs"].values.ravel().tolist(),
        layers=most_attended(study),
        receivers=receivers(study),
        figures=figures,
        groups=manifest_groups(study.manifest),
        policy=policy(script),
        script=Markup(script),
        style=Markup(asset("base.css", "report.css")),
        data=embedded(
            {**script_data(study, maps), **character_data(drawn), "file": f"{slug(study.manifest['model'])}-heads.csv"}
        ),
    )
    return whole(page.lstrip())


def _template(study: Study) -> Template:
    made = environment()
    made.filters.update(
        fixed=fixed,
        plain=plain,
        readable=readable,
        slug=slug,
        say=partial(spoken, study),
        count=lambda number: fixed(number, 0),
        percent=lambda share: f"{fixed(share * 100, 1)} %",
    )
    made.globals.update(verdicts=VERDICTS, gradient=gradient(), finite=math.isfinite, raster=RASTER)
    return made.from_string(asset("report.html"))

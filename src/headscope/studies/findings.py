"""The paper's claims as measurements (METHOD §6): each with its number, its uncertainty and a verdict.

The claims themselves are in `claims.py`, one function each; here is what a finding is, and how it is written down.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headscope.errors import StudyError
from headscope.studies.claims import CLAIMS, CannotMeasure, Claim
from headscope.studies.result import Study
from headscope.studies.speaking import RASTER, spoken

Verdict = Literal["holds", "does not hold", "cannot be measured"]


@dataclass(frozen=True)
class Finding:
    """One claim of the paper, measured."""

    number: int
    claim: str
    """what is claimed, in one sentence"""
    paper: str
    """what the paper reports of BERT-12"""
    measured: str
    """what was measured here, in one sentence with its numbers"""
    verdict: Verdict
    criterion: str
    """when the claim counts as holding"""
    value: float | None = None
    """the number the verdict rests on"""
    error: float | None = None
    """its standard error"""
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """further numbers, by layer or head, as plain values"""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, where NaN is null."""
        return {name: _no_nan(value) for name, value in asdict(self).items()}

    @property
    def number_text(self) -> str:
        """The value with its error and unit, for a table's cell."""
        if self.value is None or math.isnan(self.value):
            return "–"
        scale, digits = (100, 1) if self.unit == "%" else (1, 2)
        text = f"{self.value * scale:.{digits}f}"
        if self.error is not None and not math.isnan(self.error):
            text += f" ± {self.error * scale:.{digits}f}"
        return f"{text} {self.unit}".strip()


def findings(study: Study) -> list[Finding]:
    """All twelve findings of a study."""
    if not study.whole:
        raise StudyError("findings speak of all layers and heads: give the whole study, not selected ones")
    return [_finding(claim, study) for claim in CLAIMS]


def _finding(claim: Claim, study: Study) -> Finding:
    about = (claim.number, claim.claim, claim.paper)
    try:
        if claim.of_words and study.of_images:
            raise CannotMeasure("patches are no words, and images have no sentences")
        measured = claim.measure(study)
    except CannotMeasure as why:
        return Finding(*about, f"not measured: {spoken(study, str(why))}", "cannot be measured", claim.criterion)
    value, error = float(measured.value), float(measured.error)
    return Finding(
        *about,
        spoken(study, measured.words),
        "holds" if measured.holds else "does not hold",
        claim.criterion,
        value,
        None if math.isnan(error) else error,
        spoken(study, measured.unit),
        measured.details,
    )


def as_json(study: Study, found: Sequence[Finding]) -> str:
    """Findings with the manifest they rest on."""
    content = {"manifest": _no_nan(study.manifest), "findings": [finding.as_dict() for finding in found]}
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def as_markdown(study: Study, found: Sequence[Finding]) -> str:
    """Findings as a page of Markdown."""
    about = study.manifest
    lines = [
        f"# Findings: {_cell(about['model'])} on {_cell(about['corpus'])}",
        "",
        f"{study.texts:,} {spoken(study, 'texts')} of {'' if study.of_images else 'up to '}{about['length']} "
        f"{spoken(study, 'tokens')}, {study.size}, θ = {about['theta']}. ± is one standard error."
        f"{' ' + RASTER if study.of_images else ''}",
        "",
    ]
    if not about["complete"]:
        lines += [f"**This study is incomplete**: {_cell(about['stopped_by'])}", ""]
    lines += ["| | claim | number | verdict |", "|---|---|---|---|"]
    lines += [f"| {f.number} | {_cell(f.claim)} | {f.number_text} | **{f.verdict}** |" for f in found]
    for f in found:
        lines += [
            "",
            f"## {f.number}. {f.claim}",
            "",
            f"- Paper (BERT-12): {_cell(f.paper)}",
            f"- Measured: {_cell(f.measured)}",
            f"- Verdict: **{f.verdict}** ({_cell(f.criterion)})",
        ]
    return "\n".join(lines) + "\n"


def _cell(text: object) -> str:
    """Text that cannot be taken for Markdown or HTML."""
    escaped = str(text)
    for character in ("\\", "|", "<", ">", "*", "_", "`", "[", "]"):
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())


def _no_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _no_nan(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_no_nan(held) for held in value]
    return value

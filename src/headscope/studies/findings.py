"""Findings: the paper's claims measured on a study (METHOD §6), each with a number, its uncertainty and a verdict.

The claims are defined in `claims.py`. This module measures them and writes the findings as JSON and Markdown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

from headscope.errors import StudyError
from headscope.settings import describe_unverified
from headscope.studies.claims import CLAIMS, CannotMeasure, Claim
from headscope.studies.result import Study
from headscope.studies.wording import RASTER_NOTE, adapt_wording

Verdict = Literal["holds", "does not hold", "cannot be measured"]


@dataclass(frozen=True)
class Finding:
    """One claim of the paper, measured."""

    number: int
    claim: str
    """the claim, in one sentence"""
    paper: str
    """what the paper reports for BERT-12"""
    measured: str
    """the result for this study, in one sentence with its numbers"""
    verdict: Verdict
    criterion: str
    """condition under which the claim holds"""
    value: float | None = None
    """the number that decides the verdict"""
    error: float | None = None
    """its standard error"""
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """further numbers, by layer or head, as plain values"""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with NaN replaced by None."""
        return {name: _replace_nan(value) for name, value in asdict(self).items()}

    @property
    def number_text(self) -> str:
        """The value with its standard error and unit, for a table cell."""
        if self.value is None or math.isnan(self.value):
            return "–"
        scale, digits = (100, 1) if self.unit == "%" else (1, 2)
        text = f"{self.value * scale:.{digits}f}"
        if self.error is not None and not math.isnan(self.error):
            text += f" ± {self.error * scale:.{digits}f}"
        return f"{text} {self.unit}".strip()


class Findings(list[Finding]):
    """Findings in their order, shown as a table."""

    def __repr__(self) -> str:
        rows = [("", "verdict", "number", "claim"), *((str(f.number), *_list_cells(f)) for f in self)]
        numbers, verdicts, values, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(
            f"{number:>{numbers}}  {verdict:<{verdicts}}  {value:>{values}}  {claim}"
            for number, verdict, value, claim in rows
        )

    def _repr_html_(self) -> str:
        header = "".join(f'<th style="text-align:left">{name}</th>' for name in ("", "verdict", "number", "claim"))
        rows = "".join(
            f"<tr><td>{f.number}</td>"
            + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in _list_cells(f))
            + "</tr>"
            for f in self
        )
        return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


def _list_cells(finding: Finding) -> tuple[str, str, str]:
    return finding.verdict, finding.number_text, finding.claim


def findings(study: Study) -> Findings:
    """Return all twelve findings of a study: the claims of the paper, each with a number, its error and a verdict.

    Parameters
    ----------
    study
        A study of all layers and heads of a model.

    Returns
    -------
    Findings
        A list of `Finding`, shown as a table.

    Raises
    ------
    StudyError
        If the study holds only selected layers or heads.

    Examples
    --------
    >>> import headscope
    >>> study = headscope.study("minilm", headscope.documents(limit=4))
    >>> headscope.findings(study)[3].claim
    "The middle layers' attention is centred on the diagonal"
    """
    if not study.whole:
        raise StudyError("findings are about all layers and heads: pass the whole study, not selected layers or heads")
    return Findings(measure_claim(claim, study) for claim in CLAIMS)


def measure_claim(claim: Claim, study: Study) -> Finding:
    """Return what a study says of one claim."""
    claim_fields = (claim.number, claim.claim, claim.paper)
    try:
        if claim.of_words and study.has_images:
            raise CannotMeasure("patches are no words, and images have no sentences")
        measured = claim.measure(study)
    except CannotMeasure as reason:
        return Finding(
            *claim_fields, f"not measured: {adapt_wording(study, str(reason))}", "cannot be measured", claim.criterion
        )
    value, error = float(measured.value), float(measured.error)
    return Finding(
        *claim_fields,
        adapt_wording(study, measured.words),
        "holds" if measured.holds else "does not hold",
        claim.criterion,
        value,
        None if math.isnan(error) else error,
        adapt_wording(study, measured.unit),
        measured.details,
    )


def as_json(study: Study, results: Sequence[Finding]) -> str:
    """Return findings as JSON, with the manifest of their study."""
    content = {"manifest": _replace_nan(study.manifest), "findings": [finding.as_dict() for finding in results]}
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def as_markdown(study: Study, results: Sequence[Finding]) -> str:
    """Return findings as a Markdown page."""
    manifest = study.manifest
    lines = [
        f"# Findings: {_escape_markdown(manifest['model'])} on {_escape_markdown(manifest['corpus'])}",
        "",
        f"{study.texts:,} {adapt_wording(study, 'texts')} of {'' if study.has_images else 'up to '}"
        f"{manifest['length']} "
        f"{adapt_wording(study, 'tokens')}, {study.size}, θ = {manifest['theta']}. ± is one standard error."
        f"{' ' + RASTER_NOTE if study.has_images else ''}",
        "",
    ]
    if not manifest["complete"]:
        lines += [f"**This study is incomplete**: {_escape_markdown(manifest['stopped_by'])}", ""]
    if mark := describe_unverified(manifest):
        lines += [f"**{_escape_markdown(mark)}**", ""]
    lines += ["| | claim | number | verdict |", "|---|---|---|---|"]
    lines += [f"| {f.number} | {_escape_markdown(f.claim)} | {f.number_text} | **{f.verdict}** |" for f in results]
    for f in results:
        lines += [
            "",
            f"## {f.number}. {f.claim}",
            "",
            f"- Paper (BERT-12): {_escape_markdown(f.paper)}",
            f"- Measured: {_escape_markdown(f.measured)}",
            f"- Verdict: **{f.verdict}** ({_escape_markdown(f.criterion)})",
        ]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: object) -> str:
    """Escape text so that it is not interpreted as Markdown or HTML."""
    escaped = str(text)
    for character in ("\\", "|", "<", ">", "*", "_", "`", "[", "]"):
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())


def _replace_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _replace_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nan(item) for item in value]
    return value

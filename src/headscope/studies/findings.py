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
from headscope.studies.claim_statistics import CannotMeasure, Condition, NothingCounted
from headscope.studies.claims import CLAIMS, Claim
from headscope.studies.rates import MIN_BLOCKS
from headscope.studies.result import Study
from headscope.studies.sample_size import MIN_TEXTS, RASTER_NOTE, adapt_wording, count_texts, describe_errors

Verdict = Literal["consistent", "not consistent", "undecided", "too few texts", "not measurable"]


@dataclass(frozen=True)
class Finding:
    """One claim of the paper, measured.

    Attributes
    ----------
    number
        Number of the claim, 1 to 18.
    title
        The claim, in one sentence.
    paper
        What the paper states of BERT-12.
    explanation
        The result for this study, in plain sentences with its numbers.
    verdict
        `consistent`, `not consistent`, `undecided` (within two standard errors of the criterion), `too few texts`, or
        `not measurable`.
    criterion
        What a study must show to be consistent with the claim.
    value, error, unit
        The number that the claim is about, its standard error and its unit; shares are between 0 and 1, with unit %.
    details
        Every condition of the criterion with its number, and further numbers by layer or head, as plain values.
    null
        What the number would be without the structure that is claimed.
    paper_number
        The number that the paper gives; empty if it gives none.

    Examples
    --------
    >>> import headscope
    >>> study = headscope.study("minilm", headscope.documents(limit=4))
    >>> finding = study.findings()[1]
    >>> finding.number, finding.unit
    (2, '%')
    """

    number: int
    title: str
    paper: str
    explanation: str
    verdict: Verdict
    criterion: str
    value: float | None = None
    error: float | None = None
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    null: float | None = None
    paper_number: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Returns
        -------
        dict
            The fields by name; NaN is None.

        Examples
        --------
        >>> import headscope
        >>> study = headscope.study("minilm", headscope.documents(limit=4))
        >>> study.findings()[1].as_dict()["number"]
        2
        """
        return {name: _replace_nan(value) for name, value in asdict(self).items()}

    @property
    def number_text(self) -> str:
        """The value with its standard error and unit, for a table cell."""
        return self._format(self.value, self.error)

    @property
    def null_text(self) -> str:
        """The null with its unit, for a table cell."""
        return self._format(self.null)

    def _format(self, value: float | None, error: float | None = None) -> str:
        if value is None or math.isnan(value):
            return "–"
        scale, digits = (100, 1) if self.unit == "%" else (1, 2)
        text = f"{value * scale:z.{digits}f}"
        if error is not None and not math.isnan(error):
            text += f" ± {error * scale:.{digits}f}"
        return f"{text} {self.unit}".strip()


class Findings(list[Finding]):
    """The findings of a study in their order, shown as a table.

    Examples
    --------
    >>> import headscope
    >>> study = headscope.study("minilm", headscope.documents(limit=4))
    >>> str(study.findings()).splitlines()[0].split()  # the header
    ['verdict', 'number', 'null', 'claim']
    """

    def __repr__(self) -> str:
        rows = [("", *HEADERS), *((str(f.number), *_list_cells(f)) for f in self)]
        numbers, verdicts, values, nulls, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(
            f"{number:>{numbers}}  {verdict:<{verdicts}}  {value:>{values}}  {null:>{nulls}}  {title}"
            for number, verdict, value, null, title in rows
        )

    def _repr_html_(self) -> str:
        header = "".join(f'<th style="text-align:left">{name}</th>' for name in ("", *HEADERS))
        rows = "".join(
            f"<tr><td>{f.number}</td>"
            + "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in _list_cells(f))
            + "</tr>"
            for f in self
        )
        return f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>"


HEADERS = ("verdict", "number", "null", "claim")


def _list_cells(finding: Finding) -> tuple[str, str, str, str]:
    return finding.verdict, finding.number_text, finding.null_text, finding.title


def findings(study: Study) -> Findings:
    """Return the eighteen claims of the paper measured on a study, as `Study.findings` does.

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
    >>> finding = headscope.findings(study)[3]
    >>> finding.title, finding.verdict
    ("The middle layers' attention is centred on the diagonal", 'too few texts')
    """
    if not study.whole:
        raise StudyError("findings are about all layers and heads: pass the whole study, not selected layers or heads")
    return Findings(measure_claim(claim, study) for claim in CLAIMS)


def measure_claim(claim: Claim, study: Study) -> Finding:
    """Return what a study says of one claim."""
    claim_fields = (claim.number, claim.title, claim.paper)
    shortage = adapt_wording(study, explain_shortage(study, of_sample=claim.of_sample))
    verdict: Verdict
    try:
        if claim.of_words and study.has_images:
            raise CannotMeasure("patches are no words, and images have no sentences")
        measured = claim.measure(study)
    except CannotMeasure as reason:
        explanation, verdict = f"Not measured: {adapt_wording(study, str(reason))}.", "not measurable"
        if isinstance(reason, NothingCounted) and shortage:
            verdict, explanation = "too few texts", f"{shortage} {explanation}"
        return Finding(*claim_fields, explanation, verdict, claim.criterion, paper_number=claim.paper_number)
    numbers = (float(number) for number in (measured.value, measured.error, measured.null))
    value, error, null = (None if math.isnan(number) else number for number in numbers)
    verdict, explanation = judge(measured.conditions), measured.explanation
    if shortage:
        verdict, explanation = "too few texts", f"{shortage} {explanation}"
    return Finding(
        *claim_fields,
        adapt_wording(study, explanation),
        verdict,
        claim.criterion,
        value,
        error,
        adapt_wording(study, measured.unit),
        {"conditions": [condition.as_dict() for condition in measured.conditions], **measured.details},
        null,
        claim.paper_number,
    )


def judge(conditions: Sequence[Condition]) -> Verdict:
    """Return the verdict of a criterion: every condition must be met.

    >>> judge([Condition("a", 0.9, 0.01, 0.5), Condition("b", 0.51, 0.01, 0.5)])
    'undecided'
    >>> judge([Condition("a", 0.4, 0.01, 0.5), Condition("b", 0.51, 0.01, 0.5)])
    'not consistent'
    """
    outcomes = [condition.is_met for condition in conditions]
    return "not consistent" if False in outcomes else "undecided" if None in outcomes else "consistent"


def explain_shortage(study: Study, *, of_sample: bool = False) -> str:
    """Return why there are too few texts for a verdict (METHOD §11); empty if there are enough.

    Args:
        study: The study.
        of_sample: Only the texts in the sample count.
    """
    counts = study.data["sample_texts_blocks" if of_sample else "texts_blocks"].values
    texts, blocks = int(counts.sum()), int((counts > 0).sum())
    if texts >= MIN_TEXTS and blocks >= MIN_BLOCKS:
        return ""
    sample = " in the sample" if of_sample else ""
    if texts < MIN_TEXTS:
        return f"A verdict needs {MIN_TEXTS} texts{sample}; there {'is' if texts == 1 else 'are'} {texts}."
    return f"A verdict needs texts{sample} in {MIN_BLOCKS} of the 20 blocks; they are in {blocks}."


def as_json(study: Study, results: Sequence[Finding]) -> str:
    """Return findings as JSON, with the manifest of their study."""
    content = {
        "manifest": _replace_nan(study.manifest),
        "errors": describe_errors(study),
        "findings": [finding.as_dict() for finding in results],
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def as_markdown(study: Study, results: Sequence[Finding]) -> str:
    """Return findings as a Markdown page."""
    manifest = study.manifest
    lines = [
        f"# Findings: {_escape_markdown(manifest['model'])} on {_escape_markdown(manifest['corpus'])}",
        "",
        f"{count_texts(study)} of {'' if study.has_images else 'up to '}"
        f"{manifest['length']} "
        f"{adapt_wording(study, 'tokens')}, {study.size}, θ = {manifest['theta']}. ± is one standard error; "
        "the null is what the number would be without the structure claimed."
        f"{' ' + RASTER_NOTE if study.has_images else ''}",
        *filter(None, [describe_errors(study)]),
        "",
    ]
    if not manifest["complete"]:
        lines += [f"**This study is incomplete**: {_escape_markdown(manifest['stopped_by'])}", ""]
    if mark := describe_unverified(manifest):
        lines += [f"**{_escape_markdown(mark)}**", ""]
    lines += ["| | claim | number | null | verdict |", "|---|---|---|---|---|"]
    lines += [
        f"| {f.number} | {_escape_markdown(f.title)} | {_escape_markdown(f.number_text)} | "
        f"{_escape_markdown(f.null_text)} | **{f.verdict}** |"
        for f in results
    ]
    for f in results:
        lines += [
            "",
            f"## {f.number}. {f.title}",
            "",
            f"- Paper (BERT-12): {_escape_markdown(f.paper)}",
            f"- Measured: {_escape_markdown(f.explanation)}",
            f"- Null, without the structure claimed: {_escape_markdown(f.null_text)}",
            f"- Verdict: **{f.verdict}** (consistent if: {_escape_markdown(f.criterion)})",
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

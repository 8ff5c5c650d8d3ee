"""Tables of the paper's claims: a verdict and a number for each model, and how far they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from headscope.studies.findings import Finding, Verdict

VERDICT_SIGNS: dict[Verdict, str] = {
    "consistent": "✓",
    "not consistent": "✗",
    "undecided": "?",
    "too few texts": "·",
    "not measurable": "–",
}
VERDICTS = tuple(VERDICT_SIGNS)
VERDICT_LEGEND = ", ".join(f"{sign} {verdict}" for verdict, sign in VERDICT_SIGNS.items())

NO_VERDICT = "no verdict"
"""Too few texts, or not measurable, for every model."""

SHORT_CLAIMS = {
    1: "attention peaks at −1, 0, +1",
    2: "first layers: first token",
    3: "last layers: separators",
    4: "middle layers: diagonal",
    5: "few similarities in the gap",
    6: "heads differ in repeats",
    7: "last layer: short distances",
    8: "last layer: one sentence",
    9: "pairs centre on one token",
    10: "heads choose other tokens",
    11: "far, near, then farther",
    12: "independent of the text",
    13: "last layers: same columns",
    14: "strongest blocks on diagonal",
    15: "lines delineate similarity",
    16: "lines and diagonal hold most",
    17: "sentences matter more later",
    18: "first distances random",
}
"""The claims in a few words, for narrow columns."""


def tabulate_findings(findings_by_model: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    """Return one row for each claim and model, claims in the paper's order."""
    rows = [
        {
            "number": finding.number,
            "claim": finding.title,
            "model": name,
            "verdict": finding.verdict,
            "value": math.nan if finding.value is None else finding.value,
            "error": math.nan if finding.error is None else finding.error,
            "null": math.nan if finding.null is None else finding.null,
            "unit": finding.unit,
            "text": finding.number_text,
            "explanation": finding.explanation,
        }
        for findings in zip(*findings_by_model.values(), strict=True)
        for name, finding in zip(findings_by_model, findings, strict=True)
    ]
    return pd.DataFrame(rows)


def summarize_findings(findings_by_model: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    """Return one row per claim: the models with each verdict, and a description of how far the numbers differ."""
    rows = []
    for findings in zip(*findings_by_model.values(), strict=True):
        by_name = dict(zip(findings_by_model, findings, strict=True))
        groups = {
            verdict: [name for name, finding in by_name.items() if finding.verdict == verdict] for verdict in VERDICTS
        }
        rows.append(
            {
                "number": findings[0].number,
                "claim": findings[0].title,
                "criterion": findings[0].criterion,
                "consistent_for": describe_agreement([finding.verdict for finding in by_name.values()]),
                **{verdict.replace(" ", "_"): names for verdict, names in groups.items()},
                "differs": describe_spread(by_name),
            }
        )
    return pd.DataFrame(rows)


def describe_agreement(verdicts: Sequence[Verdict]) -> str:
    """Describe how many of the models that have a verdict are consistent with a claim.

    >>> describe_agreement(["consistent", "consistent"]), describe_agreement(["consistent", "not consistent"])
    ('all', 'some')
    >>> describe_agreement(["not consistent", "undecided"]), describe_agreement(["not measurable"])
    ('none', 'no verdict')
    """
    decided = [verdict for verdict in verdicts if verdict not in ("too few texts", "not measurable")]
    if not decided:
        return NO_VERDICT
    count = decided.count("consistent")
    return "all" if count == len(decided) else "some" if count else "none"


def describe_spread(findings: Mapping[str, Finding]) -> str:
    """Describe the lowest and the highest number, and how many standard errors lie between them."""
    known = {
        name: finding
        for name, finding in findings.items()
        if finding.value is not None and math.isfinite(finding.value)
    }
    if len(known) < 2:
        return "one number only" if known else "no number"
    low = min(known, key=lambda name: known[name].value or 0.0)
    high = max(known, key=lambda name: known[name].value or 0.0)
    least, most = known[low], known[high]
    assert least.value is not None
    assert most.value is not None
    if (
        len({finding.unit for finding in known.values()}) > 1
    ):  # numbers of heads, of models with different numbers of heads
        return ", ".join(f"{finding.number_text} ({name})" for name, finding in known.items())
    if least.value == most.value:
        return f"no difference: {least.number_text} for {'both' if len(known) == 2 else 'all'}"
    text = f"from {least.number_text} ({low}) to {most.number_text} ({high})"
    if least.error is not None and most.error is not None:
        spread = math.hypot(least.error, most.error)
        text += f", {(most.value - least.value) / spread:.1f} standard errors apart" if spread > 0 else ""
    return text

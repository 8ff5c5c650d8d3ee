"""The paper's claims side by side: a verdict and a number for each model, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from headscope.studies.findings import Finding, Verdict

VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "cannot be measured")
SIGNS: dict[Verdict, str] = {"holds": "✓", "does not hold": "✗", "cannot be measured": "–"}

SHORT = {
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
}
"""the claims where there is little room"""


def findings_table(found: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    """One row for each claim and model, claims in the paper's order."""
    rows = [
        {
            "number": finding.number,
            "claim": finding.claim,
            "model": name,
            "verdict": finding.verdict,
            "value": math.nan if finding.value is None else finding.value,
            "error": math.nan if finding.error is None else finding.error,
            "unit": finding.unit,
            "text": finding.number_text,
            "measured": finding.measured,
        }
        for claims in zip(*found.values(), strict=True)
        for name, finding in zip(found, claims, strict=True)
    ]
    return pd.DataFrame(rows)


def summary_table(found: Mapping[str, Sequence[Finding]]) -> pd.DataFrame:
    """One row a claim: the names it holds for, and in words for whom it holds and how far the numbers lie apart."""
    rows = []
    for claims in zip(*found.values(), strict=True):
        of = dict(zip(found, claims, strict=True))
        groups = {verdict: [name for name, one in of.items() if one.verdict == verdict] for verdict in VERDICTS}
        rows.append(
            {
                "number": claims[0].number,
                "claim": claims[0].claim,
                "criterion": claims[0].criterion,
                "holds_for": agreement(*(len(group) for group in groups.values())),
                "holds": groups["holds"],
                "does_not_hold": groups["does not hold"],
                "cannot_be_measured": groups["cannot be measured"],
                "differs": apart(of),
            }
        )
    return pd.DataFrame(rows)


def agreement(holds: int, fails: int, unknown: int) -> str:
    """For whom a claim holds, of those it can be measured for.

    >>> agreement(3, 0, 0), agreement(1, 1, 1), agreement(0, 2, 0), agreement(0, 0, 2)
    ('all', 'some', 'none', 'not measurable')
    """
    if not holds + fails:
        return "not measurable"
    return "all" if not fails else "some" if holds else "none"


def apart(of: Mapping[str, Finding]) -> str:
    """The lowest and the highest number, and how many standard errors lie between them."""
    known = {name: one for name, one in of.items() if one.value is not None and math.isfinite(one.value)}
    if len(known) < 2:
        return "one number only" if known else "no number"
    low = min(known, key=lambda name: known[name].value or 0.0)
    high = max(known, key=lambda name: known[name].value or 0.0)
    least, most = known[low], known[high]
    assert least.value is not None
    assert most.value is not None
    if len({one.unit for one in known.values()}) > 1:  # so many of 9 heads beside so many of 12
        return ", ".join(f"{one.number_text} ({name})" for name, one in known.items())
    if least.value == most.value:
        return f"no difference: {least.number_text} for {'both' if len(known) == 2 else 'all'}"
    text = f"from {least.number_text} ({low}) to {most.number_text} ({high})"
    if least.error is not None and most.error is not None:
        spread = math.hypot(least.error, most.error)
        text += f", {(most.value - least.value) / spread:.1f} standard errors apart" if spread > 0 else ""
    return text

"""A comparison: tables of what several studies have in common and what sets them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from headscope.comparison import differences as heads
from headscope.comparison.depth import over_depth
from headscope.comparison.measures import MEASURES
from headscope.comparison.verdicts import findings_table, summary_table
from headscope.errors import StudyError
from headscope.studies.characters import CHARACTERS, characters, counts
from headscope.studies.findings import Finding, findings
from headscope.studies.result import Study

ALPHA = 0.05
"""the chance of one false alarm among all heads of a rate"""


@dataclass(frozen=True)
class Pair:
    """Two studies of one shape: a baseline, and what is held against it."""

    one: str
    other: str
    paired: bool
    """whether the same texts lie in the same blocks, so that the difference itself could be jackknifed"""
    blocks: int
    """blocks of texts that the errors rest on"""

    @property
    def how(self) -> str:
        """How its errors were made, in words."""
        if self.paired:
            return f"paired: the same texts in the same {self.blocks} blocks, errors of the differences themselves"
        return f"not paired: errors of both added in quadrature, {self.blocks} blocks"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several studies side by side; every table is computed when it is first asked for."""

    names: list[str]
    studies: list[Study]
    baseline: str | None = None
    alpha: float = ALPHA
    forced: list[str] = field(default_factory=list)
    """what should have been refused, and was forced"""
    warnings: list[str] = field(default_factory=list)
    """what makes the comparison weaker than it looks, the forced first"""
    notes: list[str] = field(default_factory=list)
    """what a reader should know of these models"""

    def study(self, name: str) -> Study:
        """The study of this name."""
        return self.studies[self.names.index(name)]

    # -- side by side -------------------------------------------------------------------------------------------------

    @cached_property
    def found(self) -> dict[str, list[Finding]]:
        """The findings of every study, by its name."""
        return {name: findings(study) for name, study in zip(self.names, self.studies, strict=True)}

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The paper's claims in every study: number, claim, model, verdict, value, error, unit, text, measured."""
        return findings_table(self.found)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a claim: for which studies it holds, for which not, for which it cannot be measured, what differs."""
        return summary_table(self.found)

    @cached_property
    def depth(self) -> pd.DataFrame:
        """Rates over relative depth, mean over heads: a row for each model, rate and layer."""
        return over_depth(self.names, self.studies)

    @cached_property
    def heads(self) -> dict[str, pd.DataFrame]:
        """The measured character of every head, by study."""
        return {name: characters(study) for name, study in zip(self.names, self.studies, strict=True)}

    @cached_property
    def characters(self) -> pd.DataFrame:
        """How many heads have which character: model, character, heads, share."""
        rows = []
        for name, table in self.heads.items():
            counted = counts(table)
            rows += [{"model": name, "character": kind.name, "heads": int(counted[kind.name])} for kind in CHARACTERS]
        made = pd.DataFrame(rows)
        return made.assign(share=made["heads"] / made.groupby("model")["heads"].transform("sum"))

    # -- head by head -------------------------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> list[Pair]:
        """Which studies are held against which: those of one shape against their first, or against the baseline."""
        groups: list[list[str]] = []
        for name in self.names:
            group = next((one for one in groups if heads.same_shape(self.study(one[0]), self.study(name))), None)
            if group is None:
                groups.append([name])
            else:
                group.append(name)
        return [
            self._pair(self._first(group), name) for group in groups for name in group if name != self._first(group)
        ]

    def _first(self, group: Sequence[str]) -> str:
        return self.baseline if self.baseline is not None and self.baseline in group else group[0]

    def _pair(self, one: str, other: str) -> Pair:
        both = self.study(one), self.study(other)
        return Pair(one, other, paired=heads.same_texts(*both), blocks=heads.blocks_of(*both))

    @cached_property
    def _differences(self) -> pd.DataFrame:
        if not self.pairs:
            return pd.DataFrame(columns=["baseline", "model", *heads.COLUMNS, "paired"])
        parts = [
            heads.differences(
                self.study(pair.one), self.study(pair.other), measure, paired=pair.paired, alpha=self.alpha
            ).assign(baseline=pair.one, model=pair.other, paired=pair.paired)
            for pair in self.pairs
            for measure in MEASURES.values()
        ]
        return pd.concat(parts, ignore_index=True)[["baseline", "model", *heads.COLUMNS, "paired"]]

    def differences(self, rate: str | None = None, model: str | None = None) -> pd.DataFrame:
        """Head by head, for studies of one shape: layer, head, name, rate, one, other, difference, error, t, p, …

        `one` is the baseline's value; `significant` is after Holm's correction over the heads of a rate. Empty where no
        two studies are of one shape.
        """
        found = self._differences
        if rate is not None:
            if rate not in MEASURES:
                raise StudyError(f"unknown rate {rate!r}; there are: {', '.join(MEASURES)}")
            found = found[found["rate"] == rate]
        if model is not None:
            if model not in self.names:
                raise StudyError(f"no study is called {model!r}; there are: {', '.join(self.names)}")
            found = found[found["model"] == model]
        return found.reset_index(drop=True)

    @cached_property
    def correlations(self) -> pd.DataFrame:
        """For each pair and rate, how alike the heads are ordered: baseline, model, rate, heads, correlation."""
        parts = [
            heads.correlations(self.study(pair.one), self.study(pair.other)).assign(baseline=pair.one, model=pair.other)
            for pair in self.pairs
        ]
        columns = ["baseline", "model", "rate", "heads", "correlation"]
        return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)

    @cached_property
    def changes(self) -> pd.DataFrame:
        """For each pair, every head: its character in both, and whether that changed."""
        parts = []
        for pair in self.pairs:
            one, other = self.heads[pair.one], self.heads[pair.other]
            parts.append(
                pd.DataFrame(
                    {
                        "baseline": pair.one,
                        "model": pair.other,
                        "layer": one["layer"].to_numpy(),
                        "head": one["head"].to_numpy(),
                        "name": one["name"].to_numpy(),
                        "before": one["character"].to_numpy(),
                        "after": other["character"].to_numpy(),
                    }
                )
            )
        columns = ["baseline", "model", "layer", "head", "name", "before", "after", "changed"]
        if not parts:
            return pd.DataFrame(columns=columns)
        made = pd.concat(parts, ignore_index=True)
        return made.assign(changed=made["before"] != made["after"])[columns]

    # -- files, and how it shows itself -------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        from headscope.comparison.plain import plain

        return plain(self)

    def page(self, path: str | Path | None = None) -> str:
        """One HTML page that needs nothing else; written to `path`, if given."""
        from headscope.output_compare import write_page  # pages know the comparison; here it only lends its looks
        from headscope.page.comparison import comparison_page

        html = comparison_page(self)
        if path is not None:
            write_page(Path(path), html)
        return html

    def save(self, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
        """Write comparison.json, comparison.html, differences.csv (where shapes are one) and figures/ there."""
        from headscope.output_compare import write

        return write(self, Path(folder), formats)

    def __repr__(self) -> str:
        said = f", {len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}" if self.warnings else ""
        return f"<Comparison of {', '.join(self.names)}: {len(self.studies)} studies{said}>"

    def _repr_html_(self) -> str:
        from headscope.page.comparison_card import comparison_card

        return comparison_card(self)

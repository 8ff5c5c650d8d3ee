"""Result of a comparison: tables of what several studies have in common and where they differ; as plain values.

Convert a comparison to plain values: the content of `comparison.json` and the output of `--json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from headscope import registry
from headscope.comparison import differences as head_differences
from headscope.comparison.claims import summarize_findings, tabulate_findings
from headscope.comparison.measures import MEASURES, SCORE_MEASURES, Measure, tabulate_depth
from headscope.comparison.relatedness import describe_unrelated
from headscope.errors import StudyError
from headscope.studies.findings import Finding, findings
from headscope.studies.head_types import PARTS, count_heads
from headscope.studies.labels import HEAD_COLUMNS
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_missing_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ALPHA = 0.05
"""Accepted probability of any false alarm among all heads of a rate."""


@dataclass(frozen=True)
class Pair:
    """Two studies of the same shape that are compared head by head: a baseline, and another."""

    baseline: str
    model: str
    paired: bool
    """whether the same texts are in the same blocks, so that the difference itself was jackknifed"""
    blocks: int
    """number of blocks of documents that the errors depend on"""
    missing: str = ""
    """why no head is tested: too few texts; empty if heads are tested"""

    @property
    def how(self) -> str:
        """Describe how the errors were computed."""
        if self.missing:
            return f"not tested, {self.missing}"
        if self.paired:
            return f"paired: the same texts in the same {self.blocks} blocks, errors of the differences themselves"
        return f"not paired: errors of both added in quadrature, {self.blocks} blocks"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several studies side by side; each table is computed when it is first used.

    `headscope.compare` makes one. docs/comparison.md says how to read it.

    Examples
    --------
    >>> import headscope
    >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
    >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
    >>> comparison = headscope.compare([ravens, bread], ["ravens", "bread"])
    >>> comparison.names, len(comparison.differences("repeat_rate"))
    (['ravens', 'bread'], 72)
    """

    names: list[str]
    studies: list[Study]
    baseline: str | None = None
    alpha: float = ALPHA
    forced: list[str] = field(default_factory=list)
    """differences in settings for which the comparison would have been refused without `force`"""
    warnings: list[str] = field(default_factory=list)
    """what makes the comparison weaker than it looks; the entries of `forced` come first"""
    notes: list[str] = field(default_factory=list)
    """what a reader should know of these models"""
    by_head: bool | None = None
    """whether studies of the same shape are compared head by head; None: those of related models"""

    def study(self, name: str) -> Study:
        """Return the study of a name.

        Parameters
        ----------
        name
            One of `names`.

        Returns
        -------
        Study

        Raises
        ------
        StudyError
            No study has this name.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> headscope.compare([ravens, bread], ["ravens", "bread"]).study("bread").texts
        1
        """
        self._select_models(name)
        return self.studies[self.names.index(name)]

    # -- side by side -------------------------------------------------------------------------------------------------

    @cached_property
    def findings_by_model(self) -> dict[str, list[Finding]]:
        """The findings of every study, by its name."""
        return {name: findings(study) for name, study in zip(self.names, self.studies, strict=True)}

    @cached_property
    def findings(self) -> pd.DataFrame:
        """The paper's claims in every study.

        The columns are number, claim, model, verdict, value, error, null, unit, text and explanation.
        """
        return tabulate_findings(self.findings_by_model)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per claim: which studies have which verdict, and the spread of numbers."""
        return summarize_findings(self.findings_by_model)

    @cached_property
    def depth(self) -> pd.DataFrame:
        """Rates over relative depth, averaged over heads: a row for each model, rate and layer."""
        return tabulate_depth(self.names, self.studies)

    @cached_property
    def _heads_by_model(self) -> dict[str, pd.DataFrame]:
        return {name: study.heads() for name, study in zip(self.names, self.studies, strict=True)}

    def heads(self, model: str | None = None) -> pd.DataFrame:
        """Return the table of heads of all studies, or of one.

        Parameters
        ----------
        model
            The name of a study; by default all.

        Returns
        -------
        DataFrame
            The columns of `Study.heads`, after the study's name in the column `model`.

        Raises
        ------
        StudyError
            No study has this name.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> table = headscope.compare([ravens, bread], ["ravens", "bread"]).heads("bread")
        >>> table.columns[:4].tolist(), len(table)
        (['model', 'head', 'layer', 'head_number'], 72)
        """
        tables = [
            table.assign(model=name)[["model", *table]]
            for name, table in self._heads_by_model.items()
            if name in self._select_models(model)
        ]
        return pd.concat(tables, ignore_index=True)

    def _select_models(self, model: str | None) -> list[str]:
        if model is not None and model not in self.names:
            raise StudyError(f"no study is called {model!r}; there are: {', '.join(self.names)}")
        return self.names if model is None else [model]

    @cached_property
    def head_types(self) -> pd.DataFrame:
        """How many heads are of which type: model, part (attends or writes), type, heads, share."""
        head_counts = pd.DataFrame(
            {"model": name, "part": part, "type": head_type, "heads": heads}
            for name, table in self._heads_by_model.items()
            for part in PARTS
            for head_type, heads in count_heads(table, part).items()
        )
        totals = head_counts.groupby(["model", "part"])["heads"].transform("sum")
        return head_counts.assign(share=head_counts["heads"] / totals)

    # -- head by head -------------------------------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> list[Pair]:
        """Which studies are compared head by head: related ones of one shape with their first, or with the baseline."""
        return [self._make_pair(*names) for names in self._same_shapes if not self._unrelated.get(names)]

    @property
    def unrelated(self) -> list[str]:
        """Which studies of one shape are not compared head by head, and why."""
        return [
            f"{baseline} and {name} are not compared head by head: {reason}"
            for (baseline, name), reason in self._unrelated.items()
            if reason
        ]

    @cached_property
    def _unrelated(self) -> dict[tuple[str, str], str]:
        """Why studies of one shape are not compared head by head; empty if they are."""
        if self.by_head is not None:
            return dict.fromkeys(self._same_shapes, "" if self.by_head else "this was asked for.")
        reasons = {
            (baseline, name): describe_unrelated(self.study(baseline), self.study(name))
            for baseline, name in self._same_shapes
        }
        return {
            names: reason and f"{reason}. --by-head (in Python by_head=True) compares them nevertheless."
            for names, reason in reasons.items()
        }

    @cached_property
    def _same_shapes(self) -> list[tuple[str, str]]:
        """Studies of one shape: a baseline, and another."""
        groups: list[list[str]] = []
        for name in self.names:
            study = self.study(name)
            group = next(
                (names for names in groups if head_differences.has_same_shape(self.study(names[0]), study)), None
            )
            if group is None:
                groups.append([name])
            else:
                group.append(name)
        return [
            (self._choose_baseline(group), name)
            for group in groups
            for name in group
            if name != self._choose_baseline(group)
        ]

    def _choose_baseline(self, names: Sequence[str]) -> str:
        return self.baseline if self.baseline is not None and self.baseline in names else names[0]

    def _make_pair(self, baseline: str, other: str) -> Pair:
        studies = self.study(baseline), self.study(other)
        paired = head_differences.has_same_texts(*studies)
        missing = next(filter(None, map(describe_missing_texts, studies)), "")
        return Pair(baseline, other, paired=paired, blocks=head_differences.count_blocks(*studies), missing=missing)

    @cached_property
    def _all_differences(self) -> pd.DataFrame:
        return self._tabulate_differences(MEASURES.values())

    def _tabulate_differences(self, measures: Iterable[Measure]) -> pd.DataFrame:
        if not self.pairs:
            return pd.DataFrame(columns=["baseline", "model", *head_differences.COLUMNS, "paired"])
        parts = [
            head_differences.tabulate_differences(
                self.study(pair.baseline), self.study(pair.model), measure, paired=pair.paired, alpha=self.alpha
            ).assign(baseline=pair.baseline, model=pair.model, paired=pair.paired)
            for pair in self.pairs
            for measure in measures
        ]
        return pd.concat(parts, ignore_index=True)[["baseline", "model", *head_differences.COLUMNS, "paired"]]

    def differences(self, rate: str | None = None, model: str | None = None) -> pd.DataFrame:
        """Return differences head by head, for studies of related models of the same shape.

        Parameters
        ----------
        rate
            A rate, such as `repeat_rate`, `near_attention`, or an attention score, such as `attends_previous`; by
            default all but attention scores.
        model
            The name of the study that is compared with its baseline; by default all.

        Returns
        -------
        DataFrame
            With the columns baseline, model, head, layer, head_number, rate, one (the baseline's value), other,
            difference, error, t, p, p_corrected (Holm's, over the heads of a rate), significant and paired. It is empty
            if no two studies are of related models of the same shape.

        Raises
        ------
        StudyError
            There is no such rate or study.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> comparison = headscope.compare([ravens, bread], ["ravens", "bread"])
        >>> comparison.differences("mean_distance")["head"].tolist()[:2]
        ['L0H0', 'L0H1']
        """
        table = self._all_differences
        if rate is not None:
            if rate not in (*MEASURES, *SCORE_MEASURES):
                raise StudyError(f"unknown rate {rate!r}; there are: {', '.join((*MEASURES, *SCORE_MEASURES))}")
            is_score = rate in SCORE_MEASURES
            table = self._tabulate_differences([SCORE_MEASURES[rate]]) if is_score else table[table["rate"] == rate]
        return table[table["model"].isin(self._select_models(model))].reset_index(drop=True)

    @cached_property
    def correlations(self) -> pd.DataFrame:
        """For each pair and rate, the correlation over heads: baseline, model, rate, heads, correlation."""
        parts = [
            head_differences.tabulate_correlations(self.study(pair.baseline), self.study(pair.model)).assign(
                baseline=pair.baseline, model=pair.model
            )
            for pair in self.pairs
        ]
        columns = ["baseline", "model", "rate", "heads", "correlation"]
        return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)

    @cached_property
    def changes(self) -> pd.DataFrame:
        """For each pair, every head: each part of its type in both (part, before, after), and whether it changed."""
        parts = []
        for pair in self.pairs:
            before, after = self._heads_by_model[pair.baseline], self._heads_by_model[pair.model]
            heads = before[list(HEAD_COLUMNS)].assign(baseline=pair.baseline, model=pair.model)
            parts += [
                heads.assign(part=name, before=before[part.column], after=after[part.column])
                for name, part in PARTS.items()
            ]
        columns = ["baseline", "model", *HEAD_COLUMNS, "part", "before", "after", "changed"]
        if not parts:
            return pd.DataFrame(columns=columns)
        changes = pd.concat(parts, ignore_index=True)
        return changes.assign(changed=changes["before"] != changes["after"])[columns]

    # -- files and representations ------------------------------------------------------------------------------------

    def plot(self, name: str) -> Figure:
        """Draw one figure of the comparison.

        Parameters
        ----------
        name
            `rates-over-depth`, `head-types`, or `differences`, with a number behind it where there are several pairs of
            studies: `differences-1`, …

        Returns
        -------
        Figure
            A figure of matplotlib, which shows itself in a notebook; `savefig` writes it.

        Raises
        ------
        StudyError
            There is no such figure.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> headscope.compare([ravens, bread], ["ravens", "bread"]).plot("differences-2")
        Traceback (most recent call last):
        headscope.errors.StudyError: no figure 'differences-2'; there are: rates-over-depth, head-types, differences
        """
        figure: Figure = registry.call("draw_comparison_figure", self, name)
        return figure

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values: the content of `comparison.json`.

        Returns
        -------
        dict
            The tables by name, each as a list of rows; NaN is None.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> headscope.compare([ravens, bread], ["ravens", "bread"]).as_dict()["differences"][0]["head"]
        'L0H0'
        """

        return to_plain_values(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return one self-contained HTML page, and write it to `path` if given.

        Parameters
        ----------
        path
            A file to write. A page of headscope is replaced.

        Returns
        -------
        str
            The page.

        Raises
        ------
        StudyError
            The file cannot be written, or is there already and is no page of headscope.

        Examples
        --------
        >>> import headscope
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> headscope.compare([ravens, bread], ["ravens", "bread"]).to_html().startswith("<!doctype html>")
        True
        """
        html: str = registry.call("render_comparison_page", self)
        if path is not None:
            registry.call("write_page", Path(path), html)
        return html

    def save(self, folder: str | Path, formats: Sequence[str] = ("png", "svg", "pdf")) -> list[Path]:
        """Write comparison.json, comparison.html, figures/ and, if shapes are equal, differences.csv to a folder.

        Parameters
        ----------
        folder
            The folder; it is created if there is none.
        formats
            Formats of the figures; empty for none.

        Returns
        -------
        list of Path
            The files.

        Raises
        ------
        StudyError
            The files cannot be written, or would replace others.

        Examples
        --------
        >>> import headscope, tempfile
        >>> ravens = headscope.study("minilm", ["Two ravens met. The ravens left."])
        >>> bread = headscope.study("minilm", ["Bread is made of flour. Dough needs yeast."])
        >>> comparison = headscope.compare([ravens, bread], ["ravens", "bread"])
        >>> [file.name for file in comparison.save(tempfile.mkdtemp(), formats=())]
        ['comparison.json', 'differences.csv', 'comparison.html']
        """
        files: list[Path] = registry.call("write_comparison", self, Path(folder), formats)
        return files

    def __repr__(self) -> str:
        warnings = f", {len(self.warnings)} warning{'s' * (len(self.warnings) > 1)}" if self.warnings else ""
        return f"<Comparison of {', '.join(self.names)}: {len(self.studies)} studies{warnings}>"

    def _repr_html_(self) -> str:
        return str(registry.call("render_comparison_card", self))


FORMAT = 1
STUDY_ATTRIBUTES = (
    "model", "model_type", "stack", "weight_hash", "tokenizer", "causal", "dtype", "corpus", "corpus_hash", "length",
    "windows", "blocks", "sentences", "min_tokens", "theta", "tau", "similarity", "complete", "stopped_by", "headscope",
    "date",
)  # fmt: skip


def to_plain_values(comparison: Comparison) -> dict[str, Any]:
    """Return every table of a comparison, with what it is based on; NaN becomes null."""
    return {
        "format": FORMAT,
        "kind": "comparison",
        "warnings": comparison.warnings,
        "forced": comparison.forced,
        "notes": comparison.notes,
        "alpha": comparison.alpha,
        "studies": [{"name": name, **describe_study(comparison, name)} for name in comparison.names],
        "findings": to_records(comparison.findings),
        "summary": to_records(comparison.summary),
        "measures": {
            name: {
                "label": measure.label,
                "unit": measure.unit,
                "factor": measure.factor,
                "against_chance": measure.against,
            }
            for name, measure in MEASURES.items()
        },
        "depth": to_records(comparison.depth),
        "head_type_definitions": [
            {"part": name, "name": kind.name, "about": kind.description, "criterion": kind.criterion}
            for name, part in PARTS.items()
            for kind in part.types
        ],
        "head_types": to_records(comparison.head_types),
        "pairs": [asdict(pair) for pair in comparison.pairs],
        "differences": to_records(comparison.differences()),
        "correlations": to_records(comparison.correlations),
        "changes": to_records(comparison.changes),
    }


def describe_study(comparison: Comparison, name: str) -> dict[str, Any]:
    """Return the manifest entries and sizes of a study that a comparison lists."""
    study = comparison.study(name)
    manifest = study.manifest
    return {
        **{key: manifest[key] for key in STUDY_ATTRIBUTES if key in manifest},
        "layers": study.layers,
        "heads": study.head_numbers,
        "texts": study.texts,
    }


def format_json(comparison: Comparison) -> str:
    """Return the text of `comparison.json`."""
    return json.dumps(comparison.as_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def to_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values; numbers that are not finite become None."""
    columns = {str(name): [_convert_value(value) for value in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _convert_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Render a comparison as one self-contained HTML page, with the conventions of the report.

Names of models and corpora are not trusted: the template escapes all of them, the script gets its data as JSON that
cannot end its element, and a content security policy allows that one script only.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from headscope.comparison.claims import NO_VERDICT, SHORT_CLAIMS, VERDICT_LEGEND, VERDICT_SIGNS
from headscope.comparison.measures import DEPTH_PANELS
from headscope.comparison.result import Comparison, Pair
from headscope.page import comparison_charts
from headscope.page.comparison_charts import build_difference_maps, collect_script_data, format_gradient
from headscope.page.formatting import format_fixed, format_scalar
from headscope.page.templates import (
    build_policy,
    embed_json,
    make_environment,
    make_slug,
    read_assets,
    replace_surrogates,
)
from headscope.studies.attention_types import UNMEASURED
from headscope.studies.findings import Verdict
from headscope.studies.head_types import PARTS, HeadType, TypePart
from headscope.studies.type_criteria import UNKNOWN

VERDICT_STYLES: dict[Verdict, str] = {
    "consistent": "yes",
    "not consistent": "no",
    "undecided": "open",
    "too few texts": "open",
    "not measurable": "open",
}
"""each verdict and its class in the style sheet"""
MODEL_STYLES = 8
"""models that have their own colour and mark; further models repeat them"""
MIN_LABELED_SHARE = 0.05
"""smallest share whose number fits into the bar"""
FACTS = {
    "model": "Model",
    "model_type": "Architecture",
    "stack": "Stack",
    "size": "Layers × heads",
    "causal": "A token sees",
    "tokenizer": "Tokenizer",
    "texts": "Texts",
    "corpus": "Corpus",
    "length": "Window, tokens",
    "windows": "Windows of a document",
    "sentences": "Sentences found by",
    "theta": "Threshold θ",
    "similarity": "Similarity of outputs",
    "tau": "Threshold τ",
    "min_tokens": "Shortest text, tokens",
    "dtype": "Dtype",
    "complete": "Complete",
    "weights": "Hash of the weights",
    "headscope": "headscope",
    "date": "Date",
}


@dataclass(frozen=True)
class Fact:
    """A setting or property of all studies."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def render_comparison_page(comparison: Comparison) -> str:
    """Return the page: warnings, findings, rates over depth, head types, differences of heads, and settings."""
    script = read_assets("base.js", "comparison.js")
    panels = comparison_charts.build_panels(comparison)
    page = _load_template().render(
        made=comparison,
        about={"model": ", ".join(comparison.names)},
        claims=_collect_claims(comparison),
        groups=_group_claims(comparison),
        panels=panels,
        numbers=_tabulate_depths(comparison),
        type_parts=[
            {"part": part, "types": _list_types(comparison, part), "bars": _build_bars(comparison, part)}
            for part in PARTS.values()
        ],
        maps=build_difference_maps(comparison),
        changes=_count_changes(comparison),
        facts=_collect_facts(comparison),
        made_by=version("headscope"),
        policy=build_policy(script),
        script=Markup(script),
        style=Markup(read_assets("base.css", "report.css", "comparison.css")),
        data=embed_json(
            {
                "file": f"{make_slug('-'.join(comparison.names))}-differences.csv",
                "curves": [_list_points(panel) for panel in panels],
                **collect_script_data(comparison),
            }
        ),
    )
    return replace_surrogates(page.lstrip())


def _load_template() -> Template:
    environment = make_environment()
    environment.filters.update(
        fixed=format_fixed,
        plain=format_scalar,
        count=lambda number: format_fixed(number, 0),
        place=comparison_charts.compute_x,
    )
    environment.globals.update(
        kinds=VERDICT_STYLES,
        signs=VERDICT_SIGNS,
        legend=VERDICT_LEGEND,
        gradient=format_gradient(),
        geometry=comparison_charts,
        colours=MODEL_STYLES,
    )
    return environment.from_string(read_assets("comparison.html"))


def _collect_claims(comparison: Comparison) -> list[dict[str, Any]]:
    """Return for each claim its summary, its short name, and the finding of every model."""
    summary = comparison.summary.to_dict("records")
    return [
        {"summary": row, "short": SHORT_CLAIMS.get(findings[0].number, findings[0].title), "findings": findings}
        for row, findings in zip(summary, zip(*comparison.findings_by_model.values(), strict=True), strict=True)
    ]


def _group_claims(comparison: Comparison) -> list[tuple[str, list[int]]]:
    labels = {
        "all": "consistent for all",
        "some": "consistent for some",
        "none": "consistent for none",
        NO_VERDICT: NO_VERDICT,
    }
    claims = {
        group: comparison.summary.loc[comparison.summary["consistent_for"] == group, "number"].tolist()
        for group in labels
    }
    return [(labels[group], numbers) for group, numbers in claims.items() if numbers]


def _list_points(panel: comparison_charts.Panel) -> list[list[Any]]:
    return [[point.x, point.y, line.model, point.words] for line in panel.lines for point in line.points]


def _tabulate_depths(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the numbers of the drawings: a row for each model and layer."""
    rows = []
    for (name, layer), part in comparison.depth.groupby(["model", "layer"], sort=False):
        cells = []
        for rate, column in DEPTH_PANELS:
            row = part[part["rate"] == rate].iloc[0]
            in_tokens = rate == "mean_distance"
            scale, digits = (1.0, 2) if in_tokens else (100.0, 1)
            error = row["error" if column == "value" else "against_chance_error"]
            cells.append((format_fixed(float(row[column]) * scale, digits), format_fixed(float(error) * scale, digits)))
        depth = format_fixed(float(part["depth"].iloc[0]), 2)
        rows.append({"model": name, "layer": int(layer), "depth": depth, "cells": cells})  # type: ignore[call-overload]
    return rows


def _list_types(comparison: Comparison, part: TypePart) -> list[tuple[int, HeadType]]:
    """Return the types of a part with their numbers; those that say that nothing is known only if heads have them."""
    counts = comparison.head_types[comparison.head_types["part"] == part.name].groupby("type")["heads"].sum()
    return [
        (k, head_type)
        for k, head_type in enumerate(part.types)
        if head_type not in (UNKNOWN, UNMEASURED) or counts[head_type.name]
    ]


def _build_bars(comparison: Comparison, part: TypePart) -> list[dict[str, Any]]:
    bars = []
    for name in comparison.names:
        counts = comparison.head_types
        rows = counts[(counts["model"] == name) & (counts["part"] == part.name)].to_dict("records")
        segments = [
            {
                "kind": k,
                "name": row["type"],
                "heads": row["heads"],
                "share": row["share"],
                "roomy": row["share"] >= MIN_LABELED_SHARE,
            }
            for k, row in enumerate(rows)
        ]
        bars.append({"name": name, "parts": segments})
    return bars


def _count_changes(comparison: Comparison) -> list[dict[str, Any]]:
    """Return for every pair and part how many heads changed their type, and from which to which."""
    return [
        {"pair": pair, "parts": [_count_changes_of_part(comparison, pair, part) for part in PARTS.values()]}
        for pair in comparison.pairs
    ]


def _count_changes_of_part(comparison: Comparison, pair: Pair, part: TypePart) -> dict[str, Any]:
    rows = comparison.changes[(comparison.changes["model"] == pair.model) & (comparison.changes["part"] == part.name)]
    changed = rows[rows["changed"].astype(bool)]
    steps: dict[tuple[str, str], list[str]] = {}
    for before, after, name in zip(changed["before"], changed["after"], changed["head"], strict=True):
        steps.setdefault((before, after), []).append(name)
    sorted_steps = sorted(
        ((before, after, names) for (before, after), names in steps.items()), key=lambda step: -len(step[2])
    )
    return {"label": part.label, "heads": len(rows), "changed": len(changed), "steps": sorted_steps}


def _collect_facts(comparison: Comparison) -> list[Fact]:
    def describe_study(name: str) -> dict[str, str]:
        study = comparison.study(name)
        manifest = study.manifest
        shown_entries = {key: format_scalar(manifest[key]) for key in FACTS if key in manifest}
        return shown_entries | {
            "size": f"{len(study.layers)} × {len(study.head_numbers)}",
            "texts": format_fixed(study.texts, 0),
            "causal": "what came before" if manifest.get("causal") else "the whole window",
            "complete": "yes"
            if manifest.get("complete", 1)
            else f"no: {manifest.get('stopped_by') or 'unknown cause'}",
            "weights": f"{str(manifest.get('weight_hash', 'unknown'))[:16]}…",
        }

    studies = [describe_study(name) for name in comparison.names]
    rows = [Fact(label, tuple(facts.get(key, "–") for facts in studies)) for key, label in FACTS.items()]
    return [row for row in rows if set(row.values) != {"–"}]

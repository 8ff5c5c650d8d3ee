"""A comparison as one HTML page that needs nothing else, after the report's conventions.

Names of models and corpora are other people's text: the template escapes all of it, the script gets its data as JSON
that cannot end its element, and a content security policy allows that one script only.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from headscope.comparison.result import Comparison
from headscope.comparison.verdicts import SHORT, SIGNS
from headscope.page import curves
from headscope.page.differences import difference_maps, gradient, script_data
from headscope.page.html import asset, embedded, environment, policy, slug, whole
from headscope.page.words import fixed, plain
from headscope.studies.characters import CHARACTERS
from headscope.studies.findings import Verdict

KINDS: dict[Verdict, str] = {"holds": "yes", "does not hold": "no", "cannot be measured": "open"}
"""each verdict and the name of its colours in the style sheet"""
COLOURS = 8
"""models that have a colour and a mark of their own"""
ROOM = 0.05
"""a share that has room for its number inside the bar"""
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
    "tau": "Threshold τ",
    "min_tokens": "Shortest text, tokens",
    "dtype": "Numeric type",
    "complete": "Complete",
    "weights": "Hash of the weights",
    "headscope": "headscope",
    "date": "Date",
}


@dataclass(frozen=True)
class Fact:
    """One line of what the studies are."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


def comparison_page(made: Comparison) -> str:
    """The page: warnings, findings, rates over depth, characters, head by head, and what the studies are."""
    script = asset("base.js", "comparison.js")
    drawn = curves.panels(made)
    page = _template().render(
        made=made,
        about={"model": ", ".join(made.names)},
        claims=_claims(made),
        groups=_groups(made),
        panels=drawn,
        numbers=_depth_numbers(made),
        bars=_bars(made),
        characters=CHARACTERS,
        maps=difference_maps(made),
        changes=_changes(made),
        facts=_facts(made),
        made_by=version("headscope"),
        policy=policy(script),
        script=Markup(script),
        style=Markup(asset("base.css", "report.css", "comparison.css")),
        data=embedded(
            {
                "file": f"{slug('-'.join(made.names))}-differences.csv",
                "curves": [_curve_data(panel) for panel in drawn],
                **script_data(made),
            }
        ),
    )
    return whole(page.lstrip())


def _template() -> Template:
    made = environment()
    made.filters.update(fixed=fixed, plain=plain, count=lambda number: fixed(number, 0), place=curves.place)
    made.globals.update(kinds=KINDS, signs=SIGNS, gradient=gradient(), geometry=curves, colours=COLOURS)
    return made.from_string(asset("comparison.html"))


def _claims(made: Comparison) -> list[dict[str, Any]]:
    """Claim by claim: what the paper says of it, what holds it together, and every model's finding."""
    summary = made.summary.to_dict("records")
    return [
        {"summary": row, "short": SHORT.get(findings[0].number, findings[0].claim), "findings": findings}
        for row, findings in zip(summary, zip(*made.found.values(), strict=True), strict=True)
    ]


def _groups(made: Comparison) -> list[tuple[str, list[int]]]:
    words = {
        "all": "hold for all",
        "some": "hold for some",
        "none": "hold for none",
        "not measurable": "not measurable",
    }
    of = {kind: made.summary.loc[made.summary["holds_for"] == kind, "number"].tolist() for kind in words}
    return [(words[kind], numbers) for kind, numbers in of.items() if numbers]


def _curve_data(panel: curves.Panel) -> list[list[Any]]:
    return [[point.x, point.y, line.model, point.words] for line in panel.lines for point in line.points]


def _depth_numbers(made: Comparison) -> list[dict[str, Any]]:
    """The numbers behind the drawings: a row for each model and layer."""
    rows = []
    for (name, layer), part in made.depth.groupby(["model", "layer"], sort=False):
        cells = []
        for rate, column in curves.PANELS:
            row = part[part["rate"] == rate].iloc[0]
            over = rate == "mean_distance"
            scale, digits = (1.0, 2) if over else (100.0, 1)
            error = row["error" if column == "value" else "against_chance_error"]
            cells.append((fixed(float(row[column]) * scale, digits), fixed(float(error) * scale, digits)))
        depth = fixed(float(part["depth"].iloc[0]), 2)
        rows.append({"model": name, "layer": int(layer), "depth": depth, "cells": cells})  # type: ignore[call-overload]
    return rows


def _bars(made: Comparison) -> list[dict[str, Any]]:
    bars = []
    for name in made.names:
        rows = made.characters[made.characters["model"] == name].to_dict("records")
        parts = [
            {
                "kind": k,
                "name": row["character"],
                "heads": row["heads"],
                "share": row["share"],
                "roomy": row["share"] >= ROOM,
            }
            for k, row in enumerate(rows)
        ]
        bars.append({"name": name, "parts": parts})
    return bars


def _changes(made: Comparison) -> list[dict[str, Any]]:
    """Of every pair: how many heads changed character, and from which to which."""
    found = []
    for pair in made.pairs:
        rows = made.changes[made.changes["model"] == pair.other]
        changed = rows[rows["changed"].astype(bool)]
        steps: dict[tuple[str, str], list[str]] = {}
        for before, after, name in zip(changed["before"], changed["after"], changed["name"], strict=True):
            steps.setdefault((before, after), []).append(name)
        listed = sorted(
            ((before, after, names) for (before, after), names in steps.items()), key=lambda step: -len(step[2])
        )
        found.append({"pair": pair, "heads": len(rows), "changed": len(changed), "steps": listed})
    return found


def _facts(made: Comparison) -> list[Fact]:
    def of(name: str) -> dict[str, str]:
        study = made.study(name)
        about = study.manifest
        made_of = {key: plain(about[key]) for key in FACTS if key in about}
        return made_of | {
            "size": f"{len(study.layers)} × {len(study.heads)}",
            "texts": fixed(study.texts, 0),
            "causal": "what came before" if about.get("causal") else "the whole window",
            "complete": "yes" if about.get("complete", 1) else f"no: {about.get('stopped_by') or 'unknown cause'}",
            "weights": f"{str(about.get('weight_hash', 'unknown'))[:16]}…",
        }

    each = [of(name) for name in made.names]
    rows = [Fact(label, tuple(facts.get(key, "–") for facts in each)) for key, label in FACTS.items()]
    return [row for row in rows if set(row.values) != {"–"}]

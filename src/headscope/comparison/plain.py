"""A comparison as plain values: what `comparison.json` holds, and what `--json` prints."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from headscope.comparison.measures import MEASURES
from headscope.studies.characters import CHARACTERS

if TYPE_CHECKING:
    from headscope.comparison.result import Comparison

FORMAT = 1
ABOUT = (
    "model", "model_type", "stack", "weight_hash", "tokenizer", "causal", "dtype", "corpus", "corpus_hash", "length",
    "windows", "sentences", "min_tokens", "theta", "tau", "complete", "stopped_by", "headscope", "date",
)  # fmt: skip


def plain(made: Comparison) -> dict[str, Any]:
    """Every table of a comparison, with what it rests on; NaN is null."""
    return {
        "format": FORMAT,
        "kind": "comparison",
        "warnings": made.warnings,
        "forced": made.forced,
        "notes": made.notes,
        "alpha": made.alpha,
        "studies": [{"name": name, **study_facts(made, name)} for name in made.names],
        "findings": records(made.findings),
        "summary": records(made.summary),
        "measures": {
            name: {"label": each.label, "unit": each.unit, "factor": each.factor, "against_chance": each.against}
            for name, each in MEASURES.items()
        },
        "depth": records(made.depth),
        "kinds": [{"name": kind.name, "about": kind.about, "criterion": kind.criterion} for kind in CHARACTERS],
        "characters": records(made.characters),
        "pairs": [asdict(pair) for pair in made.pairs],
        "differences": records(made.differences()),
        "correlations": records(made.correlations),
        "changes": records(made.changes),
    }


def study_facts(made: Comparison, name: str) -> dict[str, Any]:
    """What a study is, as far as a comparison speaks of it."""
    study = made.study(name)
    about = study.manifest
    return {
        **{key: about[key] for key in ABOUT if key in about},
        "layers": study.layers,
        "heads": study.heads,
        "texts": study.texts,
    }


def as_json(made: Comparison) -> str:
    """The text of `comparison.json`."""
    return json.dumps(made.as_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values, in which what is no finite number is null."""
    columns = {str(name): [_plain(value) for value in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Convert a comparison to plain values: the content of `comparison.json` and the output of `--json`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from headscope.comparison.measures import MEASURES
from headscope.studies.head_types import PARTS

if TYPE_CHECKING:
    from headscope.comparison.result import Comparison

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


def as_json(comparison: Comparison) -> str:
    """Return the text of `comparison.json`."""
    return json.dumps(comparison.as_dict(), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def to_records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values; numbers that are not finite become None."""
    columns = {str(name): [_convert_value(value) for value in table[name].tolist()] for name in table.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _convert_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

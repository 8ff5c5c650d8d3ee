"""An ablation as files: `ablation.nc`, `ablation.csv`, JSON."""

from __future__ import annotations

import json
from pathlib import Path

from headscope.errors import StudyError
from headscope.pruning.ablation import FILE, Ablation
from headscope.writing import check_folder, write_whole

TABLE = "ablation.csv"


def prepare(folder: Path, *, overwrite: bool) -> None:
    """Make sure, before anything is computed, that it can be written there and replaces nothing unasked."""
    check_folder(folder, StudyError)
    there = [name for name in (FILE, TABLE) if (folder / name).exists()]
    if there and not overwrite:
        raise StudyError(f"{folder / there[0]} is there already: choose another folder with --out, or say --overwrite")


def write(ablation: Ablation, folder: Path) -> None:
    """Both files, the numbers first."""
    ablation.save(folder / FILE)
    write_whole(folder / TABLE, as_csv(ablation).encode("utf-8"), StudyError)


def as_csv(ablation: Ablation) -> str:
    """The table for a spreadsheet."""
    text: str = ablation.table().to_csv(index=False, lineterminator="\n")
    return text


def as_json(ablation: Ablation) -> str:
    """The table with the manifest; NaN is null."""
    error = float(ablation.data["objective_error"])
    content = {
        "manifest": ablation.manifest,
        "objective": {
            "name": ablation.manifest["objective"],
            "value": float(ablation.data["objective"]),
            "error": None if error != error else error,
        },
        "heads": json.loads(ablation.table().to_json(orient="records", double_precision=15)),
    }
    return json.dumps(content, ensure_ascii=False, indent=2, allow_nan=False) + "\n"

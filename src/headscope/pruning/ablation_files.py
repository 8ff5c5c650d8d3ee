"""Write an ablation as files: `ablation.nc`, `ablation.csv`, JSON."""

from __future__ import annotations

import json
from pathlib import Path

from headscope.atomic_io import check_writable, create_folder, format_csv, write_atomically
from headscope.errors import StudyError
from headscope.pruning.ablation import FILE, Ablation

TABLE = "ablation.csv"


def prepare(folder: Path, *, overwrite: bool) -> None:
    """Check, before anything is computed, that the files can be written and would not replace others unasked."""
    check_writable(folder, StudyError)
    existing = [name for name in (FILE, TABLE) if (folder / name).exists()]
    if existing and not overwrite:
        raise StudyError(
            f"{folder / existing[0]} is there already: choose another folder with --output, or say --overwrite"
        )


def write(ablation: Ablation, folder: Path) -> None:
    """Write both files, netCDF first."""
    with create_folder(folder, StudyError):
        ablation.save(folder / FILE)
        write_atomically(folder / TABLE, as_csv(ablation).encode("utf-8"), StudyError)


def as_csv(ablation: Ablation) -> str:
    """Return the table as CSV."""
    return format_csv(ablation.table())


def as_json(ablation: Ablation) -> str:
    """Return the table and the manifest as JSON; NaN becomes null."""
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

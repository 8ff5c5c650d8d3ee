"""Tables for the terminal and for the docs, and pages whose tables stand between marks."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

NONE = "–"
RESULTS = Path(__file__).parent.parent / "results"
DOCS = Path(__file__).parent.parent.parent / "docs"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = False) -> str:
    """The first column to the left, all others to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = [
        [
            cell.rjust(width) if k else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    if not markdown:
        return "\n".join("  ".join(line).rstrip() for line in padded)
    rule = ["-" * width if not k else "-" * (width - 1) + ":" for k, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))


def number(value: float | None, digits: int = 2) -> str:
    """A number of few figures, or a dash."""
    return NONE if value is None else f"{value:,.{digits}f}"


def machine(device: str) -> dict[str, Any]:
    """What it was measured on and with."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "transformer-lens", "numba", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.date.today().isoformat(),
        "versions": versions,
    }


def save(result: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_all(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Results in the order of their files' names, each with that name."""
    held = sorted(paths, key=lambda path: path.name)
    return [{"name": path.stem, **json.loads(path.read_text(encoding="utf-8"))} for path in held]


Section = Callable[[list[dict[str, Any]]], str]


def written(page: str, sections: dict[str, Section], results: list[dict[str, Any]]) -> str:
    """A page with what stands between its marks written anew: `<!-- name -->` … `<!-- end of name -->`."""
    for name, section in sections.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, rest = page.split(begin)
        page = before + begin + section(results) + end + rest.split(end, 1)[1]
    return page


def write_page(path: Path, sections: dict[str, Section], results: list[dict[str, Any]]) -> None:
    path.write_text(written(path.read_text(encoding="utf-8"), sections, results), encoding="utf-8")
    print(path)


def of_kind(results: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [result for result in results if result["kind"] == kind]


def made_with(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{about['date']}, {about['processor']} (load {about['load']} before), {versions}"

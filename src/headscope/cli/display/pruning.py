"""Terminal output of `headscope prune`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import to_printable
from headscope.pruning.saved_model import format_load_code

UNITS = ("", "k", "M", "G", "T")


def show_pruned(manifest: dict[str, Any], folder: Path) -> None:
    """Print which heads were removed and how, what that saved, and how to load the model."""
    console = Console(soft_wrap=True, highlight=False)
    removed, total, ranking = len(manifest["heads_removed"]), manifest["heads_before"], manifest["ranking"]
    by = "" if ranking["by"] == "named" else f", the least by {ranking['by']}"
    on = f" over {ranking['texts']:,} texts of {ranking['corpus']}" if "texts" in ranking else ""
    title = f"{manifest['source']}: {removed} of {total} heads removed{by}{on}"
    table = Table(title=Text(to_printable(title)), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    for column in ("heads removed", "how", "heads left"):
        table.add_column(column, overflow="fold")
    for layer in manifest["layers"]:
        table.add_row(
            str(layer["layer"]), format_ranges(layer["removed"]) or "–", layer["how"], _format_remaining(layer)
        )
    console.print(table)
    for reason in sorted({layer["why"] for layer in manifest["layers"] if "why" in layer}):
        layers = format_ranges([layer["layer"] for layer in manifest["layers"] if layer.get("why") == reason], "")
        console.print(f"masked in layer {layers}: {reason}")
    for name in ("parameters", "bytes"):
        before, after = manifest["before"][name], manifest["after"][name]
        console.print(f"{name}: {format_number(before)} → {format_number(after)} ({after / before:.1%})")
    console.print(f"largest difference from the model with these heads silent: {manifest['difference']:.1e}, relative")
    console.print(Text(to_printable(f"{folder}: {manifest['form']}. Open it:")))
    for line in format_load_code(manifest["form"], folder):
        console.print(Text(to_printable(f"    {line}")))


def _format_remaining(layer: dict[str, Any]) -> str:
    silent = len(layer["silent"]) if layer["how"] == "removed" else 0
    return f"{layer['heads']}" + (f" ({silent} silent)" if silent else "")


def format_ranges(numbers: list[int], letter: str = "H") -> str:
    """Format numbers, joining consecutive ones.

    >>> format_ranges([0, 1, 2, 5, 7, 8])
    'H0-2 H5 H7-8'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(f"{letter}{part[0]}" + (f"-{part[-1]}" if len(part) > 1 else "") for part in parts)


def format_number(number: int) -> str:
    """Format a number with three digits.

    >>> format_number(22_713_216), format_number(999), format_number(1_000)
    ('22.7 M', '999', '1 k')
    """
    value, step = float(number), 0
    while value >= 999.5 and step < len(UNITS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {UNITS[step]}".strip()

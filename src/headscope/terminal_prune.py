"""A pruned model as people see it in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.pruning.folder import opens_with
from headscope.terminal import printable

UNITS = ("", "k", "M", "G", "T")


def show_pruned(manifest: dict[str, Any], folder: Path) -> None:
    """What went and how, what that saved, and how to open it."""
    console = Console(soft_wrap=True, highlight=False)
    gone, whole, ranking = len(manifest["heads_removed"]), manifest["heads_before"], manifest["ranking"]
    by = "" if ranking["by"] == "named" else f", the least by {ranking['by']}"
    on = f" over {ranking['texts']:,} texts of {ranking['corpus']}" if "texts" in ranking else ""
    title = f"{manifest['source']}: {gone} of {whole} heads removed{by}{on}"
    table = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("layer", justify="right")
    for column in ("heads that went", "how", "heads left"):
        table.add_column(column, overflow="fold")
    for each in manifest["layers"]:
        table.add_row(str(each["layer"]), ranges(each["removed"]) or "–", each["how"], _left(each))
    console.print(table)
    for why in sorted({each["why"] for each in manifest["layers"] if "why" in each}):
        layers = ranges([each["layer"] for each in manifest["layers"] if each.get("why") == why], "")
        console.print(f"masked in layer {layers}: {why}")
    for name in ("parameters", "bytes"):
        before, after = manifest["before"][name], manifest["after"][name]
        console.print(f"{name}: {short(before)} → {short(after)} ({after / before:.1%})")
    console.print(f"largest difference from the model with these heads silent: {manifest['difference']:.1e}, relative")
    console.print(Text(printable(f"{folder}: {manifest['form']}. Open it:")))
    for line in opens_with(manifest["form"], folder):
        console.print(Text(printable(f"    {line}")))


def _left(each: dict[str, Any]) -> str:
    silent = len(each["silent"]) if each["how"] == "removed" else 0
    return f"{each['heads']}" + (f" ({silent} silent)" if silent else "")


def ranges(numbers: list[int], letter: str = "H") -> str:
    """Numbers, those that follow each other joined.

    >>> ranges([0, 1, 2, 5, 7, 8])
    'H0-2 H5 H7-8'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return " ".join(f"{letter}{part[0]}" + (f"-{part[-1]}" if len(part) > 1 else "") for part in parts)


def short(number: int) -> str:
    """A number with three digits.

    >>> short(22_713_216), short(999), short(1_000)
    ('22.7 M', '999', '1 k')
    """
    value, step = float(number), 0
    while value >= 999.5 and step < len(UNITS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {UNITS[step]}".strip()

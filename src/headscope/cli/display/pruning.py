"""Terminal output of `headscope ablate` and `prune`.

Terminal table of an ablation: the heads that the model needs most, and those it needs least.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import format_unverified_line, to_printable
from headscope.pruning.ablation_result import Ablation
from headscope.pruning.objective import EMBEDDING_DISTANCE
from headscope.pruning.saved_model import format_load_code

SHOWN = 10
"""Number of heads at either end of the table."""
SIGNIFICANT_ERRORS = 2
"""Number of standard errors from which a change counts as different from 0."""


def show_ablation(ablation: Ablation) -> None:
    """Print the heads, most needed first; where there are many, those in the middle are left out."""
    manifest, changes = ablation.manifest, ablation.table().sort_values("change", ascending=False, kind="stable")
    noun = "image" if manifest["modality"] == "image" else "text"
    base = float(ablation.data["objective"])
    title = f"{manifest['model']} on {manifest['corpus']}: {ablation.texts:,} {noun}{'s' * (ablation.texts != 1)}"
    is_embedding = manifest["objective"] == EMBEDDING_DISTANCE
    if not is_embedding:
        title += f", {manifest['objective']} {base:.4f} ± {_format_error(float(ablation.data['objective_error']))}"
    table = Table(
        title=Text(to_printable(title)),
        caption=Text(_format_caption(manifest) + format_unverified_line(manifest)),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column, justify in (("", "right"), ("head", "left"), ("change", "right"), ("±", "right")):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("")
    largest = changes["change"].abs().max()
    columns = (changes["head"], changes["change"].astype(float), changes["error"].astype(float))
    for rank, (name, change, error) in enumerate(zip(*columns, strict=True), start=1):
        if SHOWN < rank <= len(changes) - SHOWN and len(changes) > 2 * SHOWN + 1:
            if rank == SHOWN + 1:
                table.add_row("", "…", "", "", Text(f"{len(changes) - 2 * SHOWN:,} heads between", style="dim"))
            continue
        table.add_row(str(rank), name, _format_change(change), _format_error(error), _draw_bar(change, largest))
    console = Console()
    console.print(table)
    console.print(Text("\n" + (_summarize_distances(changes) if is_embedding else _summarize_losses(changes))))


def _format_caption(manifest: dict[str, object]) -> str:
    silenced = "writes nothing" if manifest["ablation_type"] == "zero" else "writes what it writes on average"
    if manifest["objective"] == EMBEDDING_DISTANCE:
        meaning = f"how far a text's embedding moves (1 − cosine) when this head alone {silenced}"
    else:
        meaning = f"of the {manifest['objective']} when this head alone {silenced}; above 0 the model needs it"
    return f"change: {meaning}. ± is one standard error over texts."


def _summarize_distances(changes: pd.DataFrame) -> str:
    """Summarize the distances of embeddings. They are above 0 for any head, so none can be called unneeded."""
    distance = changes["change"]
    return (
        f"{len(changes):,} heads: the embedding moves by {distance.median():.5f} in the median, "
        f"{distance.max():.5f} at most"
    )


def _summarize_losses(changes: pd.DataFrame) -> str:
    needed = int((changes["change"] > SIGNIFICANT_ERRORS * changes["error"]).sum())
    harmful = int((changes["change"] < -SIGNIFICANT_ERRORS * changes["error"]).sum())
    return (
        f"{len(changes):,} heads: without {needed:,} of them the model is worse by more than {SIGNIFICANT_ERRORS} "
        f"standard errors, without {harmful:,} it is better"
    )


def _format_change(value: float) -> str:
    return f"{value:+.5f}" if abs(value) < 0.1 else f"{value:+.3f}"


def _format_error(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.5f}" if value < 0.1 else f"{value:.3f}"


def _draw_bar(value: float, largest: float) -> Text:
    width = round(20 * abs(value) / largest) if largest > 0 else 0
    return Text("█" * width, style="red" if value > 0 else "green")


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

"""Terminal table of an ablation: the heads that the model needs most, and those it needs least."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import format_unverified_line, to_printable
from headscope.pruning.ablation_result import Ablation
from headscope.pruning.objective import EMBEDDING_DISTANCE

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

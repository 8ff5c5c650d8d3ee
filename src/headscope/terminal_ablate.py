"""An ablation in a terminal: the heads that the model needs most, and those it needs least."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.pruning.ablation import Ablation
from headscope.pruning.objective import EMBEDDING
from headscope.terminal import printable

SHOWN = 10
"""heads at either end of the table"""
SURE = 2
"""a change of so many standard errors is told from none"""


def show_ablation(ablation: Ablation) -> None:
    """The table: most needed first; where there are many heads, those in the middle are left out."""
    about, found = ablation.manifest, ablation.table().sort_values("change", ascending=False, kind="stable")
    texts = "image" if about["modality"] == "image" else "text"
    base = float(ablation.data["objective"])
    title = f"{about['model']} on {about['corpus']}: {ablation.texts:,} {texts}{'s' * (ablation.texts != 1)}"
    moved = about["objective"] == EMBEDDING
    if not moved:
        title += f", {about['objective']} {base:.4f} ± {_error(float(ablation.data['objective_error']))}"
    table = Table(
        title=Text(printable(title)),
        caption=Text(_caption(about)),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column, justify in (("", "right"), ("head", "left"), ("change", "right"), ("±", "right")):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("")
    largest = found["change"].abs().max()
    columns = (found["name"], found["change"].astype(float), found["error"].astype(float))
    for place, (name, change, error) in enumerate(zip(*columns, strict=True), start=1):
        if SHOWN < place <= len(found) - SHOWN and len(found) > 2 * SHOWN + 1:
            if place == SHOWN + 1:
                table.add_row("", "…", "", "", Text(f"{len(found) - 2 * SHOWN:,} heads between", style="dim"))
            continue
        table.add_row(str(place), name, _number(change), _error(error), _bar(change, largest))
    console = Console()
    console.print(table)
    console.print(Text("\n" + (_moved(found) if moved else _missed(found))))


def _caption(about: dict[str, object]) -> str:
    silent = "writes nothing" if about["by"] == "zero" else "writes what it writes on average"
    if about["objective"] == EMBEDDING:
        what = f"how far a text's embedding moves (1 − cosine) when this head alone {silent}"
    else:
        what = f"of the {about['objective']} when this head alone {silent}; above 0 the model needs it"
    return f"change: {what}. ± is one standard error over texts."


def _moved(found: pd.DataFrame) -> str:
    """A distance is above 0 whatever was silenced, so that no head is told from none by it."""
    change = found["change"]
    return (
        f"{len(found):,} heads: the embedding moves by {change.median():.5f} in the median, {change.max():.5f} at most"
    )


def _missed(found: pd.DataFrame) -> str:
    needed = int((found["change"] > SURE * found["error"]).sum())
    harmful = int((found["change"] < -SURE * found["error"]).sum())
    return (
        f"{len(found):,} heads: without {needed:,} of them the model is worse by more than {SURE} standard errors, "
        f"without {harmful:,} it is better"
    )


def _number(value: float) -> str:
    return f"{value:+.5f}" if abs(value) < 0.1 else f"{value:+.3f}"


def _error(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:.5f}" if value < 0.1 else f"{value:.3f}"


def _bar(value: float, largest: float) -> Text:
    width = round(20 * abs(value) / largest) if largest > 0 else 0
    return Text("█" * width, style="red" if value > 0 else "green")

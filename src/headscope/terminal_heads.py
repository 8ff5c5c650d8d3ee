"""The characters of heads as people see them in a terminal: one line a head, above them what chance gives."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.studies.characters import PREFERENCES
from headscope.studies.result import Study
from headscope.terminal import printable

RATES = {
    "repeat_rate": ("equal\ntokens", 100),
    "near_share": ("near-\nby", 100),
    "same_sentence_rate": ("sen-\ntence", 100),
    "dominant_share": ("one\ntoken", 100),
    "mean_distance": ("tokens\napart", 1),
}
"""what stands above each rate, and the factor from the stored number to the one shown"""
NARROW = 90
"""columns of a terminal below which the distance goes: few heads rest on it, and what else fits needs the room"""
TELLING = {preference.name: preference.rate for preference in PREFERENCES}
"""the rate that a character rests on"""


def show_heads(study: Study, heads: pd.DataFrame, counts: pd.Series) -> None:
    """A table of heads, and how many of all heads have each character."""
    about = study.manifest
    table = Table(
        title=Text(printable(f"{about['model']} on {about['corpus']}: {study.texts:,} texts, {study.size}")),
        caption="Rates in percent; bold is what the character rests on. All numbers: --csv, --json",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    console = Console()
    rates = {name: held for name, held in RATES.items() if name != "mean_distance" or console.width >= NARROW}
    table.add_column("head", no_wrap=True)
    table.add_column("character", no_wrap=True)
    table.add_column("pairs\na text", justify="right", no_wrap=True)
    for label, _ in rates.values():
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("also")
    chances = (_number(heads[f"{name}_chance"].mean() * factor) for name, (_, factor) in rates.items())
    table.add_row("", "chance", "", *chances, "", style="dim")
    for _, head in heads.iterrows():
        telling = TELLING.get(head["character"])
        weight = "bold" if telling else "dim"
        table.add_row(
            head["name"],
            Text(head["character"], style=weight),
            _number(head["pairs_per_text"]),
            *(
                Text(_number(head[name] * factor), style="bold" if name == telling else "")
                for name, (_, factor) in rates.items()
            ),
            ", ".join(head["also"]),
        )
    console.print(table)
    told = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    console.print(Text(f"\n{counts.sum():,} heads: {told}"))


def _number(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"

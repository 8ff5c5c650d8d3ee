"""Terminal table of head types: one line per head, below a line of what chance gives."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import format_unverified_line, to_printable
from headscope.studies.head_types import PREFERENCES
from headscope.studies.rates import HEAD_RATES
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_errors
from headscope.studies.wording import count_texts

NARROW = 90
"""Terminal width below which the distance is left out: few heads are characterized by it."""
DECIDING_RATES = {preference.name: preference.rate for preference in PREFERENCES}
"""The rate that a head type is based on."""


def show_heads(study: Study, heads: pd.DataFrame, counts: pd.Series) -> None:
    """Print a table of heads, and how many of all heads are of each type."""
    manifest = study.manifest
    table = Table(
        title=Text(to_printable(f"{manifest['model']} on {manifest['corpus']}: {count_texts(study)}, {study.size}")),
        caption="Rates in percent; bold: the rate that the type is based on. All numbers: --csv, --json"
        + f"\n{describe_errors(study)}".rstrip()
        + format_unverified_line(manifest),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    console = Console()
    shown = [name for name in DECIDING_RATES.values() if name != "mean_distance" or console.width >= NARROW]
    rates = {name: HEAD_RATES[name] for name in shown}
    table.add_column("head", no_wrap=True)
    table.add_column("head type", no_wrap=True)
    table.add_column("pairs/\ntext", justify="right", no_wrap=True)
    for rate in rates.values():
        table.add_column(rate.short_label, justify="right", no_wrap=True)
    table.add_column("also")
    chances = (_format_number(heads[f"{name}_chance"].mean() * rate.factor) for name, rate in rates.items())
    table.add_row("", "chance", "", *chances, "", style="dim")
    for _, head in heads.iterrows():
        deciding_rate = DECIDING_RATES.get(head["head_type"])
        style = "bold" if deciding_rate else "dim"
        table.add_row(
            head["head"],
            Text(head["head_type"], style=style),
            _format_number(head["pairs_per_text"]),
            *(
                Text(_format_number(head[name] * rate.factor), style="bold" if name == deciding_rate else "")
                for name, rate in rates.items()
            ),
            ", ".join(head["also"]),
        )
    console.print(table)
    totals = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    console.print(Text(f"\n{counts.sum():,} heads: {totals}"))


def _format_number(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"

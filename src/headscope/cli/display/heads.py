"""Terminal table of heads: one line per head, with what it attends to and what its outputs are similar for."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import format_unverified_line, to_printable
from headscope.studies.attention_types import DECIDING_SCORES, DISTANCE, ENTROPY, OTHER_SPECIAL
from headscope.studies.head_types import PARTS, TypePart, count_heads
from headscope.studies.output_types import DECIDING_RATES
from headscope.studies.result import Study
from headscope.studies.sample_size import describe_errors
from headscope.studies.wording import count_texts

DECIDING = {"attends": DECIDING_SCORES, "writes": DECIDING_RATES}
"""the column that each type of a part is based on"""
WIDE = 95
"""Terminal width from which the other types that fit are shown too."""


def show_heads(study: Study, heads: pd.DataFrame, all_heads: pd.DataFrame, sort: str | None = None) -> None:
    """Print a table of heads, and how many of all heads are of each type.

    Args:
        study: Where the heads come from.
        heads: Their rows, in the order in which they are shown.
        all_heads: The rows that are counted.
        sort: The column they are sorted by, which is shown too if it is a number.
    """
    manifest = study.manifest
    console = Console()
    table = Table(
        title=Text(to_printable(f"{manifest['model']} on {manifest['corpus']}: {count_texts(study)}, {study.size}")),
        caption="Shares and entropies in percent, distances in tokens. All numbers and types that fit: --csv, --json"
        + f"\n{describe_errors(study)}".rstrip()
        + format_unverified_line(manifest),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("head", no_wrap=True)
    for part in PARTS.values():
        table.add_column(part.label, no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("chance", justify="right", no_wrap=True)
    sort_column = sort if sort is not None and pd.api.types.is_float_dtype(heads[sort]) else ""
    if sort_column:
        table.add_column(Text(sort_column), justify="right")
    if console.width >= WIDE:
        table.add_column("also")
    for _, head in heads.iterrows():
        cells = [Text(str(head["head"]))]
        for part in PARTS.values():
            cells += _format_part(head, part)
        if sort_column:
            cells.append(Text(f"{head[sort_column]:.4g}"))
        if console.width >= WIDE:
            cells.append(Text(_list_others(head)))
        table.add_row(*cells)
    console.print(table)
    console.print(Text(f"\n{len(all_heads):,} heads"))
    for part in PARTS.values():
        totals = ", ".join(f"{count:,} {name}" for name, count in count_heads(all_heads, part.name).items() if count)
        console.print(Text(f"{part.label}: {totals}"))


def _format_part(head: pd.Series, part: TypePart) -> list[Text]:
    """Return the type of a head, the number it is based on, and what chance gives."""
    name = str(head[part.column])
    column = DECIDING[part.name].get(name)
    if column is None:
        return [Text(name, style="dim"), Text(""), Text("")]
    if column == OTHER_SPECIAL:
        values = [head["attends_special"], head["attends_special_chance"]]
    else:
        values = [head[column], head[f"{column}_chance"]]
    factor = 1 if column in (DISTANCE, "mean_distance") else 100
    return [
        Text(name, style="dim" if column == ENTROPY else "bold"),
        *(Text(_format_number(value * factor)) for value in values),
    ]


def _list_others(head: pd.Series) -> str:
    """Return the other types that fit, by part."""
    return "; ".join(
        f"{part.name} {', '.join(head[part.also_column])}" for part in PARTS.values() if head[part.also_column]
    )


def _format_number(value: float) -> str:
    if pd.isna(value):
        return "–"
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.1f}"

"""Terminal table of labelled relations: the heads that relate their words most often, compared with chance."""

from __future__ import annotations

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headscope.cli.display.console import format_unverified_line, to_printable
from headscope.studies.relations import SIGNIFICANT
from headscope.studies.result import Study
from headscope.studies.sample_size import count_texts

CAPTION = (
    "Percent; in parentheses: pairs of words as far apart (chance). a → b: attention from a to b, of a treebank from a "
    "word to its head.\nBold: above chance, p < 5 % corrected for all heads and relations (Holm). All numbers: "
    "--output, --json"
)
COLUMNS = ("high", "times", "p", "a → b", "b → a")


def show_relations(study: Study, table: pd.DataFrame) -> None:
    """Print rows of the table of relations, those of a relation one after the other."""
    manifest = study.manifest
    shown = Table(
        title=Text(to_printable(f"{manifest['model']} on {manifest['corpus']}: {count_texts(study)}, {study.size}")),
        caption=CAPTION + format_unverified_line(manifest),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("relation")
    shown.add_column("pairs", justify="right", no_wrap=True)
    shown.add_column("head", no_wrap=True)
    for name in COLUMNS:
        shown.add_column(name, justify="right", no_wrap=True)
    for _, rows in table.groupby("relation", sort=False):
        for number, (_, row) in enumerate(rows.iterrows()):
            style = "bold" if row["p_corrected"] < SIGNIFICANT else "dim" if row["note"] else ""
            first = (to_printable(row["relation"]), f"{row['pairs']:,}") if number == 0 else ("", "")
            shown.add_row(*first, row["head"], *_format_numbers(row), style=style)
    console = Console()
    console.print(shown)
    notes = table[table["note"] != ""].drop_duplicates("relation")
    for reason, rows in notes.groupby(notes["note"].map(lambda note: note.partition(":")[0]), sort=False):
        names = ", ".join(to_printable(label) for label in rows["relation"])
        needed = rows["note"].iloc[0].rpartition(" and ")[2]
        console.print(Text(f"not tested, {reason} ({needed}): {names}"))


def _format_numbers(row: pd.Series) -> list[str]:
    cells = [_format_share(row, "rate", "chance"), "–" if pd.isna(row["ratio"]) else f"{row['ratio']:.1f}"]
    cells.append("–" if pd.isna(row["p_corrected"]) else f"{row['p_corrected']:.1g}")
    return cells + [_format_share(row, name, f"{name}_chance") for name in ("attention_ab", "attention_ba")]


def _format_share(row: pd.Series, name: str, chance: str) -> str:
    if pd.isna(row[name]):
        return "–"
    return f"{100 * row[name]:.1f} ({100 * row[chance]:.1f})"

"""`headscope heads`: what each head of a study is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options


def heads(
    source: options.StudyPath,
    layers: options.Layers = None,
    heads: options.Heads = None,
    character: Annotated[
        str | None, typer.Option(help="Only heads of this character, for instance repeat-token.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Order by a column of the CSV file, numbers from the largest.")
    ] = None,
    as_json: options.AsJson = False,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file, too.")] = None,
) -> None:
    """The character of each head: repeat-token, local, within-sentence, one-token, long-range, diffuse, …

    Each comes with the rate it rests on, and what chance would give.

    Examples:

        headscope heads bert/

        headscope heads bert/ --character repeat-token --sort repeat_rate

        headscope heads bert/ --layers 10-11 --json | jq '.heads[] | {name, description}'
    """
    from headscope.output import write_text
    from headscope.studies import head_table
    from headscope.studies.characters import characters, counts
    from headscope.studies.result import open_study
    from headscope.terminal import note
    from headscope.terminal_heads import show_heads

    chosen = {"layers": options.numbers(layers, "layers"), "heads": options.numbers(heads, "heads")}
    opened = open_study(source).select(**chosen)
    found = characters(opened)
    shown = head_table.ordered(head_table.only(found, character), sort)
    if csv is not None:
        write_text(csv, head_table.as_csv(shown))
        note(f"written: {csv}")
    if as_json:
        options.show_json(head_table.as_json(opened, shown, counts(found)))
    else:
        show_heads(opened, shown, counts(found))

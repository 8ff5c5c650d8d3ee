"""`headscope heads`: the type of each head of a study, in two parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options


def list_heads(
    source: options.StudyPath,
    layers: options.Layers = None,
    heads: options.Heads = None,
    attends: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Only heads that attend to this: previous-token, next-token, self, duplicate-token, induction, local, "
            "first-token, special-token, punctuation, broad, mixed, 'not measured', or 'too few texts'.",
        ),
    ] = None,
    writes: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Only heads whose outputs are similar for this: repeat-token, local, within-sentence, one-token, "
            "long-range, diffuse, silent, undecided, or 'too few texts'.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Sort by a column of the CSV file; numbers in descending order."),
    ] = None,
    as_json: options.AsJson = False,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    cache_policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Of a decoder, also write which heads need the whole context, as DuoAttention reads it.",
        ),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --cache-policy: number of heads of keys and values, if shared."),
    ] = None,
) -> None:
    """Show the type of each head, in two parts: what it attends to, and what its outputs are similar for.

    Each part comes with the number it is based on, and what chance gives. --attends and --writes also show heads that
    another type fits better, if theirs fits as well.

    Examples:

        headscope heads bert/

        headscope heads bert/ --attends induction

        headscope heads bert/ --writes repeat-token --sort repeat_rate

        headscope heads bert/ --layers 10-11 --json | jq '.heads[] | {head, description}'
    """
    from headscope.atomic_io import check_output_file, write_atomically
    from headscope.cli.display.console import print_note
    from headscope.cli.display.heads import show_heads
    from headscope.errors import StudyError
    from headscope.head_selection import combine_selections
    from headscope.studies import head_table
    from headscope.studies.result import open_study

    if csv is not None:
        check_output_file(csv, StudyError, "--csv")
    if kv_heads is not None and cache_policy is None:
        raise StudyError("--kv-heads is for --cache-policy")
    study = open_study(source)
    if cache_policy is not None:
        print_note(f"written: {study.write_cache_policy(cache_policy, kv_heads)}")
    if layers is not None or heads is not None:
        chosen = combine_selections(layers, heads, study.layers, study.head_numbers, "the study")
        study = study.select({layer for layer, _ in chosen}, None if heads is None else {head for _, head in chosen})
        table = head_table.filter_by_head(study.heads(), chosen)
    else:
        table = study.heads()
    selected = head_table.filter_by_type(table, "attends", attends)
    selected = head_table.sort_heads(head_table.filter_by_type(selected, "writes", writes), sort)
    if csv is not None:
        write_atomically(csv, head_table.as_csv(selected).encode("utf-8", "replace"), StudyError)
        print_note(f"written: {csv}")
    if as_json:
        options.show_json(head_table.as_json(study, selected, table))
    else:
        show_heads(study, selected, table, sort)

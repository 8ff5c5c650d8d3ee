"""`headscope relations`: which heads relate what a treebank relates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options

TOP, TOP_OF_CHOSEN = 3, 10
"""heads of each relation that are shown, of all relations and of chosen ones"""


def list_relations(
    source: options.StudyPath,
    label: Annotated[str | None, typer.Option(metavar="LIST", help="Only these relations: conj; or conj,amod.")] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Heads shown of each relation. Default: 3, or 10 of those chosen with --label."),
    ] = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    as_json: options.AsJson = False,
    csv: Annotated[
        Path | None, typer.Option("--output", "-o", "--csv", help="Also write all heads and numbers to this CSV file.")
    ] = None,
) -> None:
    """Show which heads relate what linguists relate: the labelled pairs of a treebank, against pairs as far apart.

    The study must be of texts with relations: CoNLL-U, or JSONL with a field `relations`.

    Examples:

        headscope study treebank.conllu --windows all --output gum/

        headscope relations gum/

        headscope relations gum/ --label conj,amod --top 5

        headscope relations gum/ --json | jq '.relations[] | select(.p_corrected < 0.05)'
    """
    from headscope.cli.display.console import print_note
    from headscope.cli.display.relations import show_relations
    from headscope.errors import StudyError
    from headscope.file_io import check_output_file, format_csv, write_atomically
    from headscope.head_selection import combine_selections
    from headscope.studies.head_table import filter_by_head
    from headscope.studies.relations import as_json as format_json
    from headscope.studies.relations import rank_relations, select_relations
    from headscope.studies.result import open_study

    if csv is not None:
        check_output_file(csv, StudyError, "--output")
    study = open_study(source)
    labels = None if label is None else list(filter(None, options.split_list(label)))
    table = select_relations(study.relations(), labels)
    if layers is not None or heads is not None:  # of the whole table: p-values are corrected for all heads
        table = filter_by_head(table, combine_selections(layers, heads, study.layers, study.head_numbers, "the study"))
    if csv is not None:
        write_atomically(csv, format_csv(table).encode("utf-8", "replace"), StudyError)
        print_note(f"written: {csv}")
    if as_json:
        options.show_json(format_json(study, table))
    else:
        show_relations(study, rank_relations(table, top or (TOP if labels is None else TOP_OF_CHOSEN)))

"""`headscope head`: one head of a study, with its numbers, its tokens, and texts that show it."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from headscope.cli import options


def show_head(
    source: options.StudyPath,
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The head, such as L3H7.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Number of typical texts, and of those in which the rate is highest.")
    ] = 1,
    rate: Annotated[
        Literal["repeat_rate", "same_sentence_rate", "near_share", "dominant_share", "mean_distance"] | None,
        typer.Option(
            metavar="RATE",
            help="The rate that texts are chosen by: repeat_rate, same_sentence_rate, near_share, dominant_share or "
            "mean_distance. Default: the one that names the head.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens that the head centers on.")] = 10,
    as_json: options.AsJson = False,
) -> None:
    """Show one head: its type and rates, the tokens it centers on, and texts with its strongest pairs.

    Tokens in brackets are in one of the pairs below the text.

    Examples:

        headscope head bert/ L3H7

        headscope head bert/ L3H7 --examples 2 --rate dominant_share

        headscope head bert/ L3H7 --json | jq '.dominant_tokens[] | {token, share}'
    """
    from headscope.cli.display.head import format_head_json, print_head
    from headscope.errors import StudyError
    from headscope.head_selection import select_heads
    from headscope.studies.example_arrays import has_dominant_tokens, has_examples
    from headscope.studies.examples import KINDS, Examples
    from headscope.studies.result import open_study

    study = open_study(source)
    chosen = select_heads(head, study.layers, study.head_numbers, "the study")
    if len(chosen) != 1:
        raise StudyError(f"{head} names {len(chosen)} heads: give one, such as L3H7")
    layer, number = next(iter(chosen))
    shown = Examples()
    if examples and has_examples(study.data):
        shown.extend(example for kind in KINDS for example in study.examples(layer, number, kind, rate, examples))
    table = study.select([layer], [number]).heads()
    centers = study.dominant_tokens(layer, number, tokens) if has_dominant_tokens(study.data) else None
    if as_json:
        options.show_json(format_head_json(study, table, centers, shown))
    else:
        print_head(study, table, centers, shown)

"""`headscope compare`: models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options


def compare(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="STUDY", help="Folders of studies, or their study.nc; two or more."),
    ] = None,
    names: Annotated[str | None, typer.Option(help="What to call them: a,b,c. Default: their models' names.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The name that studies of the same shape are held against. Default: the first.")
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Chance of one false alarm among all heads of a rate (Holm's correction).")
    ] = 0.05,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("compare"),
    formats: options.Formats = "png,svg,pdf",
    force: Annotated[
        bool, typer.Option("--force", help="Compare studies whose settings differ; every result then says so.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare studies: findings, rates over depth and characters of heads; head by head where shapes are the same.

    Studies must share window length and mode, sentence mode and θ. Studies with the same layers and heads (before and
    after fine-tuning, checkpoints) are also held against each other head by head, with p-values.

    Examples:

        headscope compare bert/ minilm/ smollm2/

        headscope compare before/ after/ --names before,after --out tuning/

        headscope compare ckpt-0/ ckpt-1/ ckpt-2/ --baseline ckpt-1 --alpha 0.01 --json | jq .summary
    """
    from headscope import terminal
    from headscope.comparison.compare import compare as run
    from headscope.comparison.plain import as_json as dumped
    from headscope.output_compare import PAGE, prepare, write
    from headscope.terminal_compare import show_comparison

    wanted = options.listed(formats)
    with terminal.working("comparing", quiet=quiet or as_json):
        made = run(
            sources or [],
            None if names is None else options.listed(names),
            baseline=baseline,
            alpha=alpha,
            force=force,
        )
        prepare(out, wanted)
        write(made, out, wanted)
    if as_json:
        for warning in made.warnings:
            terminal.note(f"warning: {warning}")
        options.show_json(dumped(made))
        return
    show_comparison(made)
    options.show(out / PAGE)

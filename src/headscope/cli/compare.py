"""`headscope compare`: compare models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options


def compare_studies(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(metavar="STUDY", help="Folders of studies, or their study.nc; at least two."),
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Names of the studies: a,b,c. Default: the names of their models.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Name of the study that others of its shape are compared with. Default: the first."),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Probability of any false alarm among all heads of a rate (Holm's correction).")
    ] = 0.05,
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("compare"),
    formats: options.Formats = "png,svg,pdf",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Compare studies although their settings differ; every result then carries a warning."
        ),
    ] = False,
    by_head: Annotated[
        bool | None,
        typer.Option(
            "--by-head/--no-by-head",
            help="Compare studies with the same layers and heads head by head. Default: those of related models.",
        ),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare studies: findings, rates over depth, head types; single heads of related models.

    Studies must have the same window length and mode, sentence mode and θ. Studies of related models
    (before and after fine-tuning, late checkpoints) are also compared head by head, with p-values.

    Examples:

        headscope compare bert/ minilm/ smollm2/

        headscope compare before/ after/ --names before,after --output tuning/

        headscope compare ckpt-0/ ckpt-1/ ckpt-2/ --by-head --baseline ckpt-1 --alpha 0.01 --json | jq .summary
    """
    from headscope.cli.display import console
    from headscope.cli.display.comparison import show_comparison
    from headscope.comparison.compare import compare as run
    from headscope.comparison.serialization import as_json as format_json
    from headscope.comparison_folder import PAGE, check_folder, write_comparison

    figure_formats = options.split_list(formats)
    check_folder(out, figure_formats)
    with console.show_status("comparing", quiet=quiet or as_json):
        comparison = run(
            sources or [],
            None if names is None else options.split_list(names),
            baseline=baseline,
            alpha=alpha,
            force=force,
            by_head=by_head,
        )
        write_comparison(comparison, out, figure_formats)
    if as_json:
        for warning in comparison.warnings:
            console.print_note(f"warning: {warning}")
        options.show_json(format_json(comparison))
        return
    show_comparison(comparison)
    options.show(out / PAGE)

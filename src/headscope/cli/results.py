"""`headscope findings`, `heads`, `figures`, `report` and `compare`: show existing studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli import options
from headscope.errors import StudyError

if TYPE_CHECKING:
    from headscope.studies.findings import Finding
    from headscope.studies.result import Study


def print_findings(
    source: options.StudyPath,
    as_json: options.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Show the paper's eighteen claims, measured in a study.

    Examples:

        headscope findings bert/

        headscope findings bert/ --json | jq '.findings[] | {number, value, error, null, verdict}'
    """
    if markdown and as_json:
        raise typer.BadParameter("--json and --markdown: choose one of them")

    from headscope.studies.findings import as_markdown
    from headscope.studies.findings import findings as compute_findings
    from headscope.studies.result import open_study

    study = open_study(source)
    claims = compute_findings(study)
    if markdown:
        options.show(as_markdown(study, claims), end="")
    else:
        show_findings(study, claims, as_json=as_json)


def draw_figures(
    source: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study's folder, its study.nc, or a saved reading (.nc).")
    ],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("figures"),
    only: options.Figures = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    formats: options.Formats = "png,svg,pdf",
    as_json: options.AsJson = False,
) -> None:
    """Draw the paper's figures: of a corpus from a study, of one text from a saved reading.

    Unless layers and heads are selected, those of the paper are drawn, or all.

    Examples:

        headscope figures bert/ --output figures/

        headscope figures bert/ --only 7,13 --layers 0,5,11 --formats pdf

        headscope figures article.nc --only 9 --heads L11H5,L11H7-8
    """
    from headscope.file_io import check_writable

    numbers = options.parse_figures(only)
    check_writable(out, StudyError)

    from headscope.figures import draw, list_drawings, save
    from headscope.output_folder import open_result

    result = open_result(source)
    available = list_drawings(result)
    if numbers is None:
        numbers = [number for number, drawing in available.items() if drawing.can_draw(result)]
    # All are drawn before the first is written: an error leaves no files.
    drawn = {number: draw(result, number, layers=layers, heads=heads) for number in numbers}
    written = []
    for number, figure in drawn.items():
        written += save(figure, out, available[number].stem, options.split_list(formats))
    options.show(json.dumps([str(path) for path in written]) if as_json else "\n".join(str(path) for path in written))


def write_report(
    source: options.StudyPath,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File of the page. Default: report.html in the study's folder."),
    ] = None,
) -> None:
    """Write one self-contained page of a study: findings, heads, figures, manifest.

    Example:

        headscope report bert/ --output bert.html
    """
    from headscope.file_io import check_page

    if out is not None and not out.is_dir():
        check_page(out, StudyError)

    from headscope import output_folder
    from headscope.studies.result import open_study

    study = open_study(source)
    options.show(output_folder.write_report(study, out or (source if source.is_dir() else source.parent)))


def show_findings(study: Study, claims: list[Finding], *, as_json: bool) -> None:
    """Print the findings, as a table or as JSON."""
    from headscope.cli.display import console
    from headscope.studies.findings import as_json as format_json

    if as_json:
        options.show_json(format_json(study, claims))
    else:
        console.show_findings(study, claims)


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
    from headscope.cli.display.console import print_note, show_heads
    from headscope.errors import StudyError
    from headscope.file_io import check_output_file, write_atomically
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
    from headscope.comparison.result import format_json
    from headscope.output_folder import COMPARISON_PAGE, check_comparison_folder, write_comparison

    figure_formats = options.split_list(formats)
    check_comparison_folder(out, figure_formats)
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
    options.show(out / COMPARISON_PAGE)

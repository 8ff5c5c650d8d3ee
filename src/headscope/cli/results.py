"""`headscope findings`, `figures` and `report`: show an existing study."""

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
    from headscope.atomic_io import check_writable

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
    from headscope.atomic_io import check_page

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

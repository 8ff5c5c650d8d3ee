"""`headscope findings`, `figures` and `report`: show an existing study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli import options

if TYPE_CHECKING:
    from headscope.studies.findings import Finding
    from headscope.studies.result import Study


def print_findings(
    source: options.StudyPath,
    as_json: options.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Show the paper's twelve claims, measured in a study.

    Examples:

        headscope findings bert/

        headscope findings bert/ --json | jq '.findings[] | {number, value, verdict}'
    """
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
    source: options.StudyPath,
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files.")] = Path("figures"),
    only: Annotated[
        str | None, typer.Option(help="Numbers of the figures to draw: 2,3,6a,6b,7,8,10,11a,11b,13,values.")
    ] = None,
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
    from headscope.figures import draw, list_drawings, save
    from headscope.output_folder import open_result

    result = open_result(source)
    available = list_drawings(result)
    numbers = (
        options.split_list(only)
        if only
        else [number for number, drawing in available.items() if drawing.can_draw(result)]
    )
    written = []
    for number in numbers:
        figure = draw(result, number, layers=layers, heads=heads)
        written += save(figure, out, available[number].stem, options.split_list(formats))
    options.show(json.dumps([str(path) for path in written]) if as_json else "\n".join(str(path) for path in written))


def write_report(
    source: options.StudyPath,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the page. Default: report.html beside the study.")
    ] = None,
) -> None:
    """Write one self-contained page of a study: findings, heads, figures, manifest.

    Example:

        headscope report bert/ --output bert.html
    """
    from headscope.output_folder import REPORT, make_report, write_text
    from headscope.studies.result import open_study

    target = out or (source if source.is_dir() else source.parent) / REPORT
    write_text(target, make_report(open_study(source)))
    options.show(target)


def show_findings(study: Study, claims: list[Finding], *, as_json: bool) -> None:
    """Print the findings, as a table or as JSON."""
    from headscope.cli.display import console
    from headscope.studies.findings import as_json as format_json

    if as_json:
        options.show_json(format_json(study, claims))
    else:
        console.show_findings(study, claims)

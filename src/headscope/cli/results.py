"""What is made of a study that is there: `headscope findings`, `figures`, `report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli import options

if TYPE_CHECKING:
    from headscope.studies.findings import Finding
    from headscope.studies.result import Study


def findings(
    source: options.StudyPath,
    as_json: options.AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """The paper's twelve claims, measured in a study.

    Examples:

        headscope findings bert/

        headscope findings bert/ --json | jq '.findings[] | {number, value, verdict}'
    """
    from headscope.studies.findings import as_markdown
    from headscope.studies.findings import findings as find
    from headscope.studies.result import open_study

    opened = open_study(source)
    found = find(opened)
    if markdown:
        options.show(as_markdown(opened, found), end="")
    else:
        show_findings(opened, found, as_json=as_json)


def figures(
    source: options.StudyPath,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    only: Annotated[
        str | None, typer.Option(help="Numbers of the figures wanted: 2,3,6a,6b,7,8,10,11a,11b,13,values.")
    ] = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    formats: options.Formats = "png,svg,pdf",
    as_json: options.AsJson = False,
) -> None:
    """The paper's figures: of a corpus from a study, of one text from a saved reading.

    Examples:

        headscope figures bert/ --out figures/

        headscope figures bert/ --only 7,13 --layers 0,5,11 --formats pdf

        headscope figures article.nc --only 9 --layers 11 --heads 5,7,8
    """
    from headscope.figures import draw, drawings, save
    from headscope.output import open_result

    opened = open_result(source)
    known = drawings(opened)
    numbers = (
        options.listed(only) if only else [number for number, drawing in known.items() if drawing.can_draw(opened)]
    )
    chosen = {"layers": options.numbers(layers, "layers"), "heads": options.numbers(heads, "heads")}
    written = []
    for number in numbers:
        figure = draw(opened, number, **chosen)
        written += save(figure, out, known[number].stem, options.listed(formats))
    options.show(json.dumps([str(path) for path in written]) if as_json else "\n".join(str(path) for path in written))


def report(
    source: options.StudyPath,
    out: Annotated[Path | None, typer.Option(help="The page's file. Default: report.html beside the study.")] = None,
) -> None:
    """One self-contained page of a study: findings, heads, figures, manifest.

    Example:

        headscope report bert/ --out bert.html
    """
    from headscope.output import REPORT, make_report, write_text
    from headscope.studies.result import open_study

    target = out or (source if source.is_dir() else source.parent) / REPORT
    write_text(target, make_report(open_study(source)))
    options.show(target)


def show_findings(made: Study, found: list[Finding], *, as_json: bool) -> None:
    """The findings, as a table or as JSON."""
    from headscope import terminal
    from headscope.studies.findings import as_json as dumped

    if as_json:
        options.show_json(dumped(made, found))
    else:
        terminal.show_findings(made, found)

"""`headscope merge`: studies made apart become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options
from headscope.cli.results import show_findings


def merge(
    sources: Annotated[list[Path], typer.Argument(metavar="STUDIES", help="Folders of studies, or their study.nc.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("merged"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a study in the output folder.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Studies made apart become one: of other shards, on other machines or days.

    They must agree in model and settings, and no text may be in two of them.

    Examples:

        headscope merge monday/ tuesday/ --out week/

        headscope merge part-*/ --out all/
    """
    from headscope import output, terminal
    from headscope.studies.lock import Lock

    output.check(out)
    with Lock(out):
        output.refuse_other(out, overwrite=overwrite)
        with terminal.working("adding up", quiet=quiet or as_json):
            made = output.merge(sources)
        with terminal.working("drawing figures and writing the report", quiet=quiet or as_json):
            found = output.write(made, out)
    show_findings(made, found, as_json=as_json)
    if not as_json:
        terminal.note(f"{len(sources)} studies, {made.texts:,} texts. Report: {out / output.REPORT}")

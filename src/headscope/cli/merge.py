"""`headscope merge`: merge several studies into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import options
from headscope.cli.interruption import convert_interrupts, end_interrupted
from headscope.cli.results import show_findings
from headscope.errors import StudyError


def merge_studies(
    sources: Annotated[list[Path], typer.Argument(metavar="STUDIES", help="Folders of studies, or their study.nc.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("merged"),
    allow_changed_files: Annotated[
        bool,
        typer.Option(
            "--allow-changed-files",
            help="Merge shares although sizes or times of the corpus files differ: for copies, or repaired files.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a study in the output folder.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Merge studies into one: shares of a corpus, or studies of different texts.

    They must agree in model and settings, and no text may be in two of them.

    Examples:

        headscope merge monday/ tuesday/ --output week/

        headscope merge share-*/ --output all/
    """
    from headscope import output_folder
    from headscope.atomic_io import create_folder
    from headscope.cli.display import console
    from headscope.run.lock import Lock
    from headscope.run.share import WHOLE

    output_folder.check_folder(out)
    try:
        with convert_interrupts() as interrupt, create_folder(out, StudyError), Lock(out):
            output_folder.refuse_other(out, overwrite=overwrite)
            with console.show_status("adding studies", quiet=quiet or as_json):
                merged = output_folder.merge_studies(sources, allow_changed_files=allow_changed_files)
            with console.show_status("drawing figures and writing the report", quiet=quiet or as_json):
                claims = output_folder.write_study(merged, out)
            interrupt.check()
    except KeyboardInterrupt as error:
        end_interrupted(error, f". The studies are unchanged; write {out} again with --overwrite")
    show_findings(merged, claims, as_json=as_json)
    share = merged.manifest.get("share", WHOLE)
    if share != WHOLE:
        console.print_note(f"shares of the corpus in it: {share}; the others are missing")
    if not as_json:
        console.print_note(f"{len(sources)} studies, {merged.texts:,} texts. Report: {out / output_folder.REPORT}")

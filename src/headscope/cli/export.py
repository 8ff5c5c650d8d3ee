"""`headscope export`: what heads write, or where they look, token by token, in a Parquet file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headscope.cli import options
from headscope.cli.options import convert_interrupts, end_interrupted


def export_heads(
    sources: options.Texts = None,
    what: Annotated[
        Literal["outputs", "projected", "attention"],
        typer.Option(
            help="outputs: what heads write before the output projection; projected: what they add to the residual "
            "stream; attention: nine scores of where each token looks."
        ),
    ] = "outputs",
    out: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file.")] = Path("heads.parquet"),
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    layers: options.Layers = None,
    heads: options.Heads = None,
    numbers: Annotated[
        Literal["float32", "float16"],
        typer.Option("--numbers", help="Numbers in the file; float16 takes half the space."),
    ] = "float32",
    field: options.Field = "text",
    target: options.Target = "",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int | None, typer.Option(help="Read at most this many documents.")] = None,
    length: options.Length = 128,
    windows: options.Windows = "first",
    batch_size: Annotated[int | None, typer.Option(help="Texts per batch.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Write what heads write, or where they look, token by token, to a Parquet file.

    A row is a token, a column such as L3H7 a head. The file is there only when it is complete.

    Examples:

        headscope export --heads L1H6,L2 --output heads.parquet

        headscope export articles.jsonl --model ./bert --what projected --layers 10-11 --numbers float16

        headscope export articles.jsonl --model gpt2 --what attention --limit 200 --output attention.parquet
    """
    from headscope.corpus.documents import documents
    from headscope.settings import AUTO, Settings, check_run_options

    # Mistakes are reported at once: importing torch and loading a model takes seconds.
    checked: dict[str, Any] = {"windows": windows}
    Settings(length=length, **checked)
    check_run_options(batch_size, AUTO, 0)
    _check_output(out, overwrite=overwrite)
    options.check_inputs(model, None, length=length, allow_pickle=allow_pickle)
    corpus = documents(sources or None, field=field, format=format, encoding=encoding, target=target)
    options.check_inputs(model, corpus.check_opening(limit), length=length, allow_pickle=allow_pickle)

    from headscope.cli.display import console
    from headscope.exporting.export import export as run
    from headscope.exporting.export import read_manifest
    from headscope.model.loading import load

    for note in corpus.notes:
        console.print_note(note)
    loaded = load(
        model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
    )
    try:
        with convert_interrupts(), console.show_progress(quiet=quiet or as_json) as progress:
            run(
                loaded, corpus, out, what=what, heads=heads, layers=layers, length=length, limit=limit, dtype=numbers,
                batch_size=batch_size, overwrite=overwrite, progress=progress, command=options.get_command_line(),
                allow_unverified=allow_unverified, **checked,
            )  # fmt: skip
    except KeyboardInterrupt as stopped:
        end_interrupted(stopped, ": nothing was written")
    manifest = read_manifest(out)
    if manifest["documents_skipped"]:
        skipped = ", ".join(f"{count} {reason}" for reason, count in manifest["documents_skipped"].items())
        console.print_note(f"skipped: {skipped}")
    console.print_unverified(manifest)
    if as_json:
        options.show_json(json.dumps({"file": str(out), "manifest": manifest}, indent=2, ensure_ascii=False) + "\n")
    else:
        console.print_note(f"{manifest['tokens']:,} tokens of {manifest['texts']:,} texts")
        options.show(out)


def _check_output(out: Path, *, overwrite: bool) -> None:
    from headscope.errors import StudyError
    from headscope.file_io import check_output_file

    check_output_file(out, StudyError, "--output")
    if out.exists() and not overwrite:
        raise StudyError(f"{out} is there already: choose another name with --output, or replace it with --overwrite")

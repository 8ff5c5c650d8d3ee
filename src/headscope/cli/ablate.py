"""`headscope ablate`: measure what each head contributes to its model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headscope.cli import options
from headscope.cli.interruption import convert_interrupts

if TYPE_CHECKING:
    from headscope.pruning.ablation_result import Ablation


def ablate_heads(
    sources: options.Texts = None,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    heads: options.Heads = None,
    ablation_type: Annotated[
        Literal["zero", "mean"],
        typer.Option(help="What a silenced head writes instead: zero, or mean (its average output over the texts)."),
    ] = "zero",
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for ablation.nc and ablation.csv.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    field: options.Field = "text",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int, typer.Option(help="Read at most this many documents; each is run once for every head.")] = 64,
    length: options.Length = 128,
    windows: options.Windows = "first",
    batch_size: Annotated[int | None, typer.Option(help="Texts per batch.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another ablation in the output folder.")
    ] = False,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Silence each head, or each of those selected, alone, and measure the effect on the model's own objective.

    The objective is the next-token or masked-token loss of models that predict words; for others, how far the embedding
    moves.

    Examples:

        headscope ablate

        headscope ablate articles.jsonl --model gpt2 --limit 200 --output gpt2-heads/

        headscope ablate articles.jsonl --model ./bert --heads L0H1,L11 --ablation-type mean --json
    """
    from headscope.atomic_io import check_output_file, check_writable
    from headscope.corpus.documents import documents
    from headscope.errors import StudyError
    from headscope.settings import AUTO, Settings, check_run_options

    # Mistakes are reported at once: importing torch and loading a model takes seconds.
    checked: dict[str, Any] = {"windows": windows}
    Settings(length=length, **checked)
    check_run_options(batch_size, AUTO, 0)
    if out is not None:
        check_writable(out, StudyError)
    if csv is not None:
        check_output_file(csv, StudyError, "--csv")
    options.check_inputs(model, None, length=length, allow_pickle=allow_pickle)
    corpus = documents(sources or None, field=field, format=format, encoding=encoding)
    options.check_inputs(model, corpus.check_opening(limit), length=length, allow_pickle=allow_pickle)

    from headscope import output_folder
    from headscope.cli.display import console
    from headscope.interrupts import Terminated
    from headscope.model.loading import load
    from headscope.pruning import ablation_result
    from headscope.pruning.ablation import ablate as run
    from headscope.pruning.text_batches import check_limit

    run_options: dict[str, Any] = {
        "heads": heads, "ablation_type": ablation_type, "length": length, "windows": windows, "batch_size": batch_size
    }  # fmt: skip
    check_limit(limit)
    for note in corpus.notes:
        console.print_note(note)
    try:
        if out is not None:
            ablation_result.check_output_folder(out, overwrite=overwrite)
        loaded = load(
            model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle, objective=True,
        )  # fmt: skip
        with convert_interrupts(), console.show_progress(quiet=quiet or as_json) as progress:
            ablation = run(
                loaded,
                corpus,
                limit=limit,
                progress=progress,
                on_message=console.print_note,
                command=options.get_command_line(),
                allow_unverified=allow_unverified,
                **run_options,
            )
    except (ablation_result.AblationInterrupted, KeyboardInterrupt) as stopped:
        _save_unfinished(getattr(stopped, "ablation", None), out)
        terminated = isinstance(stopped, Terminated) or isinstance(stopped.__context__, Terminated)
        raise typer.Exit(options.TERMINATED if terminated else options.INTERRUPTED) from None
    if out is not None:
        ablation_result.write_files(ablation, out)
        console.print_note(f"written: {out / 'ablation.nc'}, {out / 'ablation.csv'}")
    if csv is not None:
        output_folder.write_text(csv, ablation_result.as_csv(ablation))
        console.print_note(f"written: {csv}")
    _show(ablation, as_json=as_json)
    console.print_unverified(ablation.manifest)


def _show(ablation: Ablation, *, as_json: bool) -> None:
    from headscope.cli.display import console
    from headscope.cli.display.ablation import show_ablation
    from headscope.pruning import ablation_result

    if as_json:
        options.show_json(ablation_result.as_json(ablation))
    else:
        show_ablation(ablation)
    skipped = ablation.manifest["documents_skipped"]
    if skipped:
        console.print_note("skipped: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()))


def _save_unfinished(ablation: Ablation | None, out: Path | None) -> None:
    from headscope.cli.display import console
    from headscope.pruning import ablation_result

    if ablation is None or out is None:
        console.print_error("interrupted" + ("" if out is None else ": no text was finished"))
        return
    ablation_result.write_files(ablation, out)
    console.print_error(
        f"interrupted\nThe {ablation.texts:,} texts finished until then are in {out}, marked incomplete"
    )

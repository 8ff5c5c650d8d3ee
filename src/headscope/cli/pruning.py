"""`headscope ablate` and `prune`: what each head contributes, and a model without those that matter least."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headscope.cli import options
from headscope.cli.options import convert_interrupts, end_interrupted

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
    from headscope.corpus.documents import documents
    from headscope.errors import StudyError
    from headscope.file_io import check_output_file, check_writable
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
    from headscope.pruning.objective import check_limit

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
    from headscope.cli.display.pruning import show_ablation
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


Ranking = Literal[
    "signal-share", "repeat", "same-sentence", "distance", "dominant-share", "pairs", "norm", "projected-norm",
    "gradient", "ablation", "random",
]  # fmt: skip


def prune_model(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL TEXTS",
            help="The model, unless --model names it, then texts to rank heads on: files, folders, globs, `-`, "
            "`hf:NAME`. Default: minilm and the bundled texts.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hub name, folder, or `minilm`.")] = None,
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pruned model.")] = Path("pruned"),
    keep: Annotated[
        str | None, typer.Option(help="How many heads to keep: a share, such as 70%, or a number of heads.")
    ] = None,
    by: Annotated[
        Ranking,
        typer.Option(
            metavar="RANKING",
            help="How heads are ranked; the lowest are removed first: gradient, ablation, norm, projected-norm, "
            "random; or, from a study, signal-share, repeat, same-sentence, distance, dominant-share, pairs.",
        ),
    ] = "gradient",
    heads: options.Heads = None,
    per_layer: Annotated[
        bool,
        typer.Option(
            "--per-layer", help="Remove the same number in each layer: such models often load without custom code."
        ),
    ] = False,
    how: Annotated[
        Literal["auto", "remove", "mask"],
        typer.Option(
            help="auto: remove heads where possible, silence the others; remove: or fail; mask: only silence."
        ),
    ] = "auto",
    study: Annotated[
        Path | None, typer.Option(help="Rank by this study, instead of by TEXTS, with --by signal-share and others.")
    ] = None,
    stack: options.Stack = None,
    field: options.Field = "text",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int, typer.Option(help="Read at most this many documents.")] = 64,
    length: options.Length = 128,
    seed: Annotated[int, typer.Option(help="Random seed of --by random.")] = 0,
    device: options.Device = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a pruned model in the output folder.")
    ] = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a smaller model without the heads that matter least, or those selected; `from_pretrained` loads it.

    --keep removes the heads that rank lowest, --heads those that it names: where the architecture allows it, which is
    tried and measured; otherwise they are silenced.

    Examples:

        headscope prune minilm --keep 70% --output smaller/

        headscope prune ./smollm2 articles.jsonl --keep 6 --by ablation --output smaller/

        headscope prune --model ./bert --by signal-share --study bert-study/ --keep 50% --per-layer --output smaller/

        headscope prune gpt2 --heads L0H1,L3H4-7,L11 --how mask --output masked/ --json
    """
    import json

    from headscope.cli.display import console
    from headscope.cli.display.pruning import show_pruned
    from headscope.corpus.documents import documents
    from headscope.errors import Stopped
    from headscope.interrupts import Terminated
    from headscope.model.loading import load
    from headscope.pruning.objective import check_limit
    from headscope.pruning.prune import check_request, needs_objective
    from headscope.pruning.prune import prune as run
    from headscope.pruning.saved_model import check_output_folder, format_load_code
    from headscope.settings import Settings

    if model is None:
        model, *sources = sources or ["minilm"]
    check_request(heads, keep, by, study, how)
    Settings(length=length)
    check_output_folder(model, out, overwrite=overwrite)
    check_limit(limit)
    corpus = documents(sources or None, field=field, format=format, encoding=encoding)
    for note in corpus.notes:
        console.print_note(note)
    if keep is not None and by != "random" and study is None and not sources:
        console.print_note("heads are ranked on the bundled texts: name TEXTS to rank them on yours")
    try:
        loaded = load(model, stack=stack, device=device, allow_pickle=allow_pickle, objective=needs_objective(keep, by))
        with (
            convert_interrupts(),
            console.show_status("ranking and removing heads", quiet=quiet or as_json),
        ):
            pruned = run(
                loaded, heads, keep=keep, by=by, documents=corpus, study=study, limit=limit, length=length,
                seed=seed, per_layer=per_layer, how=how,
                command=options.get_command_line(), on_message=console.print_note, allow_unverified=allow_unverified,
            )  # fmt: skip
            manifest = pruned.save(out, overwrite=overwrite)
    except Stopped as stopped:
        if not stopped.interrupted:
            raise
        terminated = isinstance(stopped.__context__, Terminated)
        end_interrupted(Terminated() if terminated else KeyboardInterrupt(), f": {out} is unchanged")
    except KeyboardInterrupt as error:
        end_interrupted(error, f": {out} is unchanged")
    if as_json:
        commands = format_load_code(manifest["form"], out)
        options.show(json.dumps({"folder": str(out), "opens_with": commands, **manifest}, indent=2))
    else:
        show_pruned(manifest, out)
    console.print_unverified(manifest)

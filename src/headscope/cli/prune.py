"""`headscope prune`: write a smaller model without the heads that matter least."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headscope.cli import options
from headscope.cli.interruption import convert_interrupts, end_interrupted

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
    from headscope.pruning.prune import check_request, needs_objective
    from headscope.pruning.prune import prune as run
    from headscope.pruning.saved_model import check_output_folder, format_load_code
    from headscope.pruning.text_batches import check_limit
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

"""`headscope study`: from texts to every corpus figure and finding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.cli import options
from headscope.cli.endings import ending
from headscope.cli.results import show_findings

if TYPE_CHECKING:
    from headscope.corpus.documents import Corpus
    from headscope.model.model import Model
    from headscope.studies.settings import Settings


def study(
    sources: options.Texts = None,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("study"),
    field: options.Field = "text",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int | None, typer.Option(help="Read at most so many documents.")] = None,
    length: options.Length = 128,
    windows: options.Windows = "first",
    sentences: options.Sentences = "tokens",
    min_tokens: Annotated[int, typer.Option(help="Skip documents with fewer tokens, special ones aside.")] = 2,
    theta: options.Theta = 0.3,
    tau: options.Tau = 0.3,
    sample: Annotated[
        float | None,
        typer.Option(help="Fraction of texts for the costly quantities. Default: 1 up to 2,000 documents, else 0.05."),
    ] = None,
    maps: Annotated[
        bool | None, typer.Option("--maps/--no-maps", help="Keep N×N maps. Default: up to 256 tokens.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts at once; the result does not depend on it.")] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    kernel: Annotated[
        str,
        typer.Option(
            help="How sums are computed: auto, triton (NVIDIA GPUs), compiled (CPUs), vectorized, or reference: the "
            "definition in plain loops, slow. All give the same counts."
        ),
    ] = "auto",
    tf32: Annotated[
        bool, typer.Option("--tf32/--no-tf32", help="On a GPU, multiply float32 numbers in TF32: faster, less exact.")
    ] = True,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Skip and count documents that cannot be read, instead of stopping.")
    ] = False,
    engine: Annotated[str, typer.Option(help="Where it runs: local, or ray (a cluster).")] = "local",
    workers: Annotated[int | None, typer.Option(help="With ray: how many workers. Default: as there is room.")] = None,
    address: Annotated[
        str | None, typer.Option(help="With ray: a cluster's address, or auto. Default: one on this machine.")
    ] = None,
    checkpoint_every: Annotated[float, typer.Option(help="Seconds between two checkpoints.")] = 60.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another study in the output folder, or begin anew.")
    ] = False,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Study a corpus: from texts to every corpus figure and finding.

    Examples:

        headscope study

        headscope study articles.jsonl --model google-bert/bert-base-uncased --out bert/

        headscope study books/ --windows all --sentences text --out books-study/

        headscope study photos/ --model google/vit-base-patch16-224 --out vit/

        zcat corpus.jsonl.gz | headscope study - --field body --limit 500

        headscope study 's3://bucket/part-*.jsonl.gz' --model ./bert --engine ray --workers 8 --out all/

    A study that was ended, by whatever, goes on where it was when the same command is given again.
    """
    from headscope import output, terminal
    from headscope.corpus.documents import documents
    from headscope.model.loading import load
    from headscope.studies.lock import Lock
    from headscope.studies.run import fitted
    from headscope.studies.run import study as run
    from headscope.studies.settings import Settings
    from headscope.studies.undisturbed import terminable

    asked: dict[str, Any] = {
        "length": length, "windows": windows, "sentences": sentences, "min_tokens": min_tokens,
        "theta": theta, "tau": tau, "sample": sample, "maps": maps, "skip_broken": skip_broken,
    }  # fmt: skip
    settings = Settings(**asked)
    corpus = documents(
        sources or None, field=field, format=format, encoding=encoding, limit=limit, skip_broken=skip_broken
    )
    command = options.command()
    with terminable(), ending(out):
        output.check(out)
        with Lock(out):
            loaded = load(
                model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
            )  # fmt: skip
            output.prepare(out, expected=_identity(loaded, fitted(loaded, settings), corpus), overwrite=overwrite)
            with terminal.metering(quiet=quiet or as_json) as meter:
                made = run(
                    loaded, corpus, batch_size=batch_size, kernel=kernel, tf32=tf32, progress=meter, command=command,
                    checkpoints=out, every=checkpoint_every, say=terminal.note, engine=engine, workers=workers,
                    address=address, **asked,
                )  # fmt: skip
            with terminal.working("drawing figures and writing the report", quiet=quiet or as_json):
                found = output.write(made, out)
            output.finish(out)
    show_findings(made, found, as_json=as_json)
    skipped = made.manifest["documents_skipped"]
    if skipped:
        terminal.note("skipped: " + ", ".join(f"{count} {reason}" for reason, count in skipped.items()))
    if not as_json:
        terminal.note(
            f"{sum(f.verdict == 'holds' for f in found)} of {len(found)} claims hold. Report: {out / output.REPORT}"
        )


def _identity(model: Model, settings: Settings, corpus: Corpus) -> dict[str, Any]:
    """What must agree with a study already in the output folder for this run to replace it."""
    named = ("length", "windows", "sentences", "min_tokens", "theta", "tau")
    return {
        "model": model.name,
        "weight_hash": model.weight_hash,
        "stack": model.anatomy.stack,
        "dtype": model.dtype,
        "corpus": corpus.name,
        "limit": corpus.limit or "none",
    } | {name: getattr(settings, name) for name in named}

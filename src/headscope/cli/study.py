"""`headscope study` and `merge`: count a corpus, and join studies of its parts.

`headscope study`: count a corpus, and write all its figures, findings and the report.

`headscope merge`: merge several studies into one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headscope.cli import options
from headscope.cli.options import convert_interrupts, end_interrupted, handle_endings
from headscope.cli.results import show_findings
from headscope.errors import StudyError

if TYPE_CHECKING:
    from headscope.corpus.documents import Corpus
    from headscope.settings import Settings
    from headscope.studies.result import Study


def run_study(
    sources: options.Texts = None,
    model: options.ModelName = "minilm",
    stack: options.Stack = None,
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("study"),
    field: options.Field = "text",
    target: options.Target = "",
    format: options.Format = "auto",
    encoding: options.Encoding = "utf-8",
    limit: Annotated[int | None, typer.Option(help="Read at most this many documents.")] = None,
    length: options.Length = 128,
    windows: options.Windows = "first",
    sentences: options.Sentences = "tokens",
    blocks: options.Blocks = "documents",
    min_tokens: Annotated[int, typer.Option(help="Skip documents with fewer tokens, not counting special ones.")] = 2,
    theta: options.Theta = 0.3,
    tau: options.Tau = 0.3,
    similarity: options.Similarity = "dot",
    sample: Annotated[
        float | None,
        typer.Option(
            help="Fraction of texts for the costly quantities. Default: 1 for up to 2,000 documents, else 0.05."
        ),
    ] = None,
    maps: Annotated[
        bool | None, typer.Option("--maps/--no-maps", help="Store N×N maps. Default: for windows of up to 256 tokens.")
    ] = None,
    relations: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Labelled relations of CoNLL-U, or of a field `relations`, to measure: all, none, or a list of them.",
        ),
    ] = "all",
    batch_size: Annotated[
        int | None, typer.Option(help="Texts per batch. Default: as many as fit on the device.")
    ] = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    kernel: Annotated[
        Literal["auto", "triton", "numba", "torch", "reference"],
        typer.Option(
            metavar="KERNEL",
            help="How sums are computed: auto, triton (NVIDIA GPUs), numba (CPUs), torch (any device), or reference "
            "(the definition in plain loops, slow). All give the same counts.",
        ),
    ] = "auto",
    tf32: Annotated[
        bool, typer.Option("--tf32/--no-tf32", help="On a GPU, multiply float32 numbers in TF32: faster, less exact.")
    ] = True,
    skip_broken: Annotated[
        bool,
        typer.Option(
            "--skip-broken", help="Skip and count documents that cannot be read. Default: name them, and exit with 1."
        ),
    ] = False,
    examples: Annotated[
        bool,
        typer.Option("--examples/--no-examples", help="Store texts that show what each head does (headscope head)."),
    ] = True,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Where to run: local, or ray (a cluster, or several GPUs).")
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(help="With ray: number of workers. Default: one per GPU, or per node if none has a GPU."),
    ] = None,
    worker_timeout: Annotated[
        float, typer.Option(help="With ray: seconds after which a worker that returns no result is replaced.")
    ] = 900.0,
    address: Annotated[
        str | None, typer.Option(help="With ray: address of a cluster, or auto. Default: start one on this machine.")
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(help="Count only a share of the corpus, such as 3/16; `headscope merge` joins the shares."),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="Folder or URL for checkpoints. Default: a folder in the output folder.")
    ] = None,
    checkpoint_interval: Annotated[float, typer.Option(help="Seconds between two checkpoints.")] = 10.0,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace another study in the output folder, or start again from the beginning."
        ),
    ] = False,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    allow_unverified: options.AllowUnverified = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Study a corpus: count its texts, then write all figures, findings and a report.

    Examples:

        headscope study

        headscope study articles.jsonl --model google-bert/bert-base-uncased --output bert/

        headscope study books/ --windows all --sentences text --output books-study/

        headscope study pairs.jsonl --field en --target de --model ./marian-en-de --stack cross --output cross/

        headscope study photos/ --model google/vit-base-patch16-224 --output vit/

        zcat corpus.jsonl.gz | headscope study - --field body --limit 500

        headscope study 's3://bucket/part-*.jsonl.gz' --model ./bert --engine ray --workers 8 --output all/

        headscope study corpus/ --share 3/16 --output share-3/

    Run the same command again to resume an interrupted study.
    """
    from headscope.corpus.documents import documents
    from headscope.corpus.storage import is_url
    from headscope.corpus.windows import TOO_SHORT
    from headscope.file_io import check_writable, create_folder
    from headscope.run.engines import check_engine, check_limit, format_share, parse_share
    from headscope.settings import Settings, check_run_options, check_target_windows

    # Wrong options are reported at once: importing torch and loading a model takes seconds.
    setting_values: dict[str, Any] = {
        "length": length, "windows": windows, "sentences": sentences, "blocks": blocks,
        "min_tokens": min_tokens, "theta": theta, "tau": tau, "similarity": similarity, "sample": sample, "maps": maps,
        "skip_broken": skip_broken, "relations": relations, "examples": examples,
    }  # fmt: skip
    settings = Settings(**setting_values)
    check_target_windows(windows, has_targets=bool(target))
    check_run_options(batch_size, kernel, checkpoint_interval)
    check_engine(engine, workers, address, worker_timeout)
    options.check_inputs(model, None, length=length, allow_pickle=allow_pickle)
    parsed_share = None if share is None else parse_share(share)
    check_limit(parsed_share, limit)
    corpus = documents(
        sources or None, field=field, format=format, encoding=encoding, limit=limit, skip_broken=skip_broken,
        target=target, relations=settings.relation_labels != (),
    )  # fmt: skip
    check_writable(out, StudyError)
    checkpoint_folder = out if checkpoint_dir is None or is_url(checkpoint_dir) else Path(checkpoint_dir)
    check_writable(checkpoint_folder, StudyError, "--checkpoint-dir")
    if share is None:  # the files of other shares may be broken
        options.check_inputs(model, corpus.check_opening(), length=length, allow_pickle=allow_pickle)

    from headscope import output_folder
    from headscope.cli.display import console
    from headscope.run.checkpoint import FOLDER as CHECKPOINT_FOLDER
    from headscope.run.lock import Lock
    from headscope.studies.findings import findings
    from headscope.studies.sample_size import describe_missing_texts

    command = options.get_command_line()
    checkpoints = checkpoint_dir or str(out / CHECKPOINT_FOLDER)
    identify = partial(_identify, corpus=corpus, share=format_share(parsed_share), kernel=kernel, tf32=tf32)
    output_folder.check_folder(out)
    previous = None if overwrite else output_folder.open_previous(out)
    finished = None
    if previous is not None and not (trust_remote_code or allow_pickle):
        finished = _find_finished(previous, identify(previous, settings), corpus, model, stack, dtype)
    if finished is None:
        from headscope.model.loading import load

        loaded = load(
            model, stack=stack, device=device, dtype=dtype, trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
        )  # fmt: skip
        loaded.check_verified(allow_unverified=allow_unverified)
        loaded.check_target(has_targets=bool(target))
    with (
        handle_endings(out, checkpoints) as interrupt,
        create_folder(out, StudyError),
        create_folder(checkpoint_folder, StudyError, "--checkpoint-dir"),
        Lock(out),
    ):
        if overwrite:
            output_folder.remove_checkpoints(checkpoints)
        elif finished is None and (previous := output_folder.open_previous(out)) is not None:
            from headscope.provenance import describe_model
            from headscope.studies.study import fit_settings

            expected = identify(previous, fit_settings(loaded, settings)) | describe_model(loaded)
            finished = output_folder.find_finished(out, previous, expected, corpus.version)
        if finished is None:
            from headscope.studies.study import study as run

            with console.show_study_progress(quiet=quiet or as_json) as meter:
                result = run(
                    loaded, corpus, batch_size=batch_size, kernel=kernel, tf32=tf32, progress=meter,
                    command=command, checkpoint_dir=checkpoints, checkpoint_interval=checkpoint_interval,
                    on_message=console.print_note, engine=engine, workers=workers, address=address,
                        worker_timeout=worker_timeout, share=share, allow_unverified=allow_unverified, **setting_values,
                )  # fmt: skip
        else:
            result = finished
            console.print_note(
                f"{out} holds this study already, complete: nothing is counted again. Count again with --overwrite."
            )
        if finished is not None and output_folder.has_files(out):
            claims = findings(result)
        else:
            with console.show_status("drawing figures and writing the report", quiet=quiet or as_json):
                claims = output_folder.write_study(result, out)
        interrupt.check()
        output_folder.remove_checkpoints(checkpoints)
    show_findings(result, claims, as_json=as_json)
    console.print_unverified(result.manifest)
    skipped = result.manifest["documents_skipped"]
    if skipped:
        short = {TOO_SHORT: f" (fewer than {result.manifest['min_tokens']} tokens)"}
        reasons = (f"{count} {reason}{short.get(reason, '')}" for reason, count in skipped.items())
        console.print_note("skipped: " + ", ".join(reasons))
    present = result.data["relation"].values.tolist() if "relation" in result.data else []
    if absent := [label for label in settings.relation_labels or () if label not in present]:
        console.print_note(f"the texts have no pairs of these relations: {', '.join(absent)}")
    if not as_json:
        consistent = sum(claim.verdict == "consistent" for claim in claims)
        missing = describe_missing_texts(result)
        verdicts = f"No verdicts, {missing}" if missing else f"{consistent} of {len(claims)} claims are consistent"
        console.print_note(f"{verdicts}. Report: {out / output_folder.REPORT}")


def _identify(
    previous: Study, settings: Settings, *, corpus: Corpus, share: str, kernel: str, tf32: bool
) -> dict[str, Any]:
    """Return what the manifest of an earlier study must hold to be of these settings and this corpus."""
    from headscope.settings import MAX_SMALL_CORPUS

    expected = {
        **settings.describe(),
        **corpus.describe(),
        "sample": settings.choose_sample(corpus.measure(MAX_SMALL_CORPUS)[0], corpus.limit),
        "share": share,
    }
    if previous.manifest["documents_skipped"] and not settings.skip_broken:
        expected["skip_broken"] = 0
    if kernel != "auto":
        expected["kernel"] = kernel
    if not tf32:
        expected["tf32"] = 0
    return expected


def _find_finished(
    previous: Study, expected: dict[str, Any], corpus: Corpus, model: str, stack: str | None, dtype: str
) -> Study | None:
    """Return an earlier study if it is the one wanted, as far as that is known without loading the model."""
    from headscope import output_folder
    from headscope.model.model_files import hash_model

    manifest = previous.manifest
    if (
        manifest["modality"] == "image" or manifest.get("trusted") != "nothing" or not manifest.get("verified")
    ):  # only the loaded model knows what that changes
        return None
    expected = {**expected, "stack": stack or manifest["stacks"].split("+")[0], "dtype": dtype}
    if output_folder.find_changes(previous, expected) or not output_folder.is_complete(previous, corpus.version):
        return None
    return previous if hash_model(model) == (manifest["model"], manifest["weight_hash"]) else None


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
    from headscope.cli.display import console
    from headscope.file_io import create_folder
    from headscope.run.engines import WHOLE
    from headscope.run.lock import Lock

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

"""`headscope.study`: study a model on a corpus and return the labelled result.

Sources (files) of a study: their names, their numbers of documents, and the content hashes of what was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from headscope import provenance, registry
from headscope.corpus.chunks import adjust_repaired_chunks, hash_chunks
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.relations import FindRelations, label_documents, name_function
from headscope.corpus.windows import TOO_SHORT, BlockMode, SentenceMode, WindowMode
from headscope.errors import Changed, HeadscopeError, Stopped, StudyError
from headscope.model.image_patches import Patches
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.run.checkpoint import INTERVAL, Checkpoint, LocalFolder
from headscope.run.engines import WORKER_TIMEOUT, Engine, check_engine, format_share, parse_share
from headscope.run.local_engine import LocalEngine
from headscope.run.lock import Lock
from headscope.run.plan import RunPlan
from headscope.run.run import Progress, run_chunks
from headscope.run.state import CorpusStats, RunState, StageClock
from headscope.settings import Settings, check_run_options, check_target_windows
from headscope.similarity import Similarity
from headscope.studies.labels import label_sums
from headscope.studies.result import FORMAT, Study
from headscope.tally.backends import AUTO

if TYPE_CHECKING:
    from headscope.run.ray_cluster import RayCluster


NAMES = ("source_documents", "source_hash")


def assign_sources(data: xr.Dataset, sources: Mapping[int, tuple[int, int]], names: Sequence[str]) -> xr.Dataset:
    """Return a study's Dataset with its sources, along a dimension `source`.

    Args:
        sources: Number of documents and sum of their hashes, by source.
        names: Names of all sources of the corpus.
    """
    numbers = sorted(sources)
    return data.assign(
        source_documents=("source", np.array([sources[k][0] for k in numbers], dtype=np.int64)),
        source_hash=("source", np.array([f"{sources[k][1]:032x}" for k in numbers], dtype=object)),
    ).assign_coords(source=np.array([names[k] for k in numbers], dtype=object))


__all__ = ["Progress", "fit_settings", "study"]

MAX_COUNTED = 100
"""documents whose length is counted for an error message"""


def study(
    model: ModelSource,
    documents: Corpus | str | Path | Iterable[Any] | None = None,
    *,
    field: str = "text",
    target: str = "",
    length: int = Settings.length,
    windows: WindowMode = Settings.windows,
    sentences: SentenceMode = Settings.sentences,
    blocks: BlockMode = Settings.blocks,
    min_tokens: int = Settings.min_tokens,
    theta: float = Settings.theta,
    tau: float = Settings.tau,
    similarity: Similarity = Settings.similarity,
    sample: float | None = Settings.sample,
    maps: bool | None = Settings.maps,
    skip_broken: bool = Settings.skip_broken,
    relations: str | FindRelations = Settings.relations,
    examples: bool = Settings.examples,
    batch_size: int | None = None,
    kernel: str = AUTO,
    tf32: bool = True,
    progress: bool | Callable[[Progress], None] | None = None,
    command: str = "",
    checkpoint_dir: str | Path | None = None,
    checkpoint_interval: float = INTERVAL,
    on_message: Callable[[str], None] = lambda _: None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    worker_timeout: float = WORKER_TIMEOUT,
    share: str | None = None,
    allow_unverified: bool = False,
) -> Study:
    """Study what every head of a model does with a corpus.

    Parameters
    ----------
    model
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer).
    documents
        Strings, pairs (source, target) of strings for a decoder behind an encoder, a DataFrame or Series of pandas, a
        Dataset of the package datasets, a source that `headscope.documents` opens, or nothing for the bundled texts;
        for a vision model, images of PIL or arrays of bytes (height, width, 3), or such a source.
    field
        The column, or field, of `documents` that holds the text.
    target
        The column, or field, that holds what the decoder of an encoder–decoder model is to write for the text: it reads
        that, shifted by one, as in training. The stacks `decoder` and `cross` need it; pairs are given without it.
    length
        Tokens of a window, including special tokens.
    windows
        `first` reads the first window of each document and leaves out the rest of longer ones; `all` reads
        one window after another, without a last one that is less than half full.
    sentences
        How sentences are found: from the `tokens` or from the `text`.
    blocks
        What standard errors are computed over: `documents`, in 20 blocks, of which at least 10 must be filled; or
        `windows`, for a single long document, whose errors are then too small and marked as such.
    min_tokens
        Documents with fewer tokens, not counting special ones, are skipped and counted.
    theta, tau
        Thresholds of high pairs and of attention lines, as shares of the maximum.
    similarity
        Of what outputs C is computed: `dot` takes them as they are, as the paper does; `centered` less their mean over
        the window; `projected` as the output projection adds them to the residual stream; `projected-centered` both.
    sample
        Fraction of the texts for the costly quantities; None: all texts of a corpus known to be small, else 0.05.
    maps
        Whether to keep N×N maps; None: for windows of up to 256 tokens.
    skip_broken
        Skip and count documents that the tokenizer cannot process; otherwise the first of them is an error.
    relations
        Labelled relations that are measured: `all` that documents have, `none`, or names with commas between them; or
        a function of a text that returns its relations, a list of (start_a, end_a, start_b, end_b, label) with
        positions of characters. Documents have relations if they are from CoNLL-U, have a field `relations`, or are
        `headscope.Document` with `relations`.
    examples
        Whether to keep texts that show what each head does (`Study.examples`), and the beginnings of the first
        documents. Without them the study holds no text, only single tokens and their counts.
    batch_size
        Texts per batch. By default as many as the device has room for.
    kernel
        How sums are computed, one of `headscope.tally.backends.KERNELS`; all give the same counts.
    tf32
        Multiply single-precision numbers in TF32 on GPUs that support it; recorded in the manifest.
    progress
        True shows a bar on stderr; a function is called with the `headscope.Progress` of the study.
    command
        The command line, recorded in the manifest.
    checkpoint_dir
        Folder, or URL, for the state of the study while it runs. The same call resumes from there. Checkpoints stay
        until `headscope.output_folder.finish` removes them.
    checkpoint_interval
        Seconds between two checkpoints.
    on_message
        Called with messages for the user.
    engine
        `local`, or `ray` for a cluster or several GPUs.
    workers, address
        With `ray`: the number of workers (by default one for each GPU or node), and the address of the cluster.
    worker_timeout
        With `ray`: seconds after which a worker that returns no result is replaced.
    share
        Count only a share of the corpus, for instance "3/16"; `Study.merge` joins the shares.
    allow_unverified
        Measure a model whose captured heads cannot be verified, which is refused otherwise, and mark all results.

    Returns
    -------
    Study

    Raises
    ------
    Stopped
        The study cannot be completed; its `study` holds what is counted.

    Examples
    --------
    >>> import headscope
    >>> headscope.study("minilm", ["Two ravens met. The ravens left.", "Bread rises. Bread is eaten."])
    <Study of minilm: 6 layers × 12 heads, 2 texts of texts given in Python>
    """
    clock, requested = StageClock(), Settings(
        length=length, windows=windows, sentences=sentences, blocks=blocks, min_tokens=min_tokens, theta=theta,
        tau=tau, similarity=similarity, sample=sample, maps=maps, skip_broken=skip_broken, examples=examples,
        relations=relations if isinstance(relations, str) else name_function(relations),
    )  # fmt: skip
    check_run_options(batch_size, kernel, checkpoint_interval)
    check_engine(engine, workers, address, worker_timeout)
    corpus = as_corpus(
        documents, field, target=target, skip_broken=skip_broken, relations=requested.relation_labels != ()
    )
    if not isinstance(relations, str):
        corpus = label_documents(corpus, relations)
    loaded = resolve_model(model, allow_unverified=allow_unverified)
    has_targets = bool(corpus.options.target)
    check_target_windows(windows, has_targets=has_targets)
    loaded.check_target(has_targets=has_targets)
    settings = fit_settings(loaded, requested)
    for note in corpus.notes:
        on_message(note)
    with ExitStack() as resources:
        cluster = resources.enter_context(_connect(loaded, corpus, address)) if engine == "ray" else None
        plan = RunPlan.create(
            loaded, corpus, settings, batch_size=batch_size, kernel=kernel, tf32=tf32,
            share=None if share is None else parse_share(share),
            device=None if cluster is None else cluster.device_type,
        )  # fmt: skip

        def start_engine(state: RunState, plan: RunPlan) -> Engine:
            if cluster is None:
                in_thread = documents is None or isinstance(documents, (Corpus, str, Path, Sized))
                return LocalEngine(loaded, corpus, plan, batch_size=state.batch_size, in_thread=in_thread)
            from headscope.run.ray_engine import RayEngine

            return RayEngine(
                cluster, loaded, corpus, plan, workers=workers, timeout=worker_timeout, on_message=on_message
            )

        checkpoint = None
        if checkpoint_dir is not None:
            checkpoint = Checkpoint(
                checkpoint_dir, plan.get_identity(loaded, corpus), plan.chunk_size, interval=checkpoint_interval,
                on_message=on_message,
            )  # fmt: skip
            if isinstance(checkpoint.files, LocalFolder):
                resources.callback(checkpoint.files.remove_if_empty)
                resources.enter_context(Lock(checkpoint.files.folder))
        on_progress = resources.enter_context(registry.open_progress(progress, "show_study_progress"))
        state, plan = _run(loaded, corpus, plan, start_engine, clock, checkpoint, on_message, on_progress, command)
        if checkpoint is not None and not state.texts:  # there is nothing to resume
            checkpoint.files.clear()
    if not state.texts:
        where = "" if share is None else f" in share {share}"
        advice = "" if share is None else ": choose fewer shares"
        raise StudyError(
            f"{corpus.name}: no {loaded.modality} to study{where}: {state.stats.documents} documents read"
            f"{state.stats.describe_skipped()}{describe_short_texts(loaded, corpus, state.stats, settings)}{advice}"
        )
    return _make_study(loaded, corpus, plan, state, command)


def _run(
    model: Model,
    corpus: Corpus,
    plan: RunPlan,
    start: Callable[[RunState, RunPlan], Engine],
    clock: StageClock,
    checkpoint: Checkpoint | None,
    on_message: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
    command: str,
) -> tuple[RunState, RunPlan]:
    """Run a study from its beginning or from its checkpoint; return its final state, and the plan it resumed."""
    state = checkpoint.read(plan.get_shape(model)) if checkpoint is not None else None
    if state is None or checkpoint is None:
        state = RunState.empty(plan.get_shape(model))
    else:
        plan = plan.resume(checkpoint.chunk_size)
        on_message(f"resuming: {state.texts:,} texts are counted already")
    try:
        engine = start(state, plan)
        if state.chunks:
            state.chunks = adjust_repaired_chunks(
                state.chunks, corpus.sources, state.source_sizes, state.failed, state.completed
            )
        else:
            state.chunks = corpus.plan_chunks(plan.chunk_size)
        state.source_sizes = corpus.sizes
        state.skips_broken |= plan.settings.skip_broken or corpus.options.skip_broken
        clock.lap("opening")
        state.seconds["opening"] = state.seconds.get("opening", 0.0) + clock.seconds["opening"]
        run_chunks(engine, corpus, plan, state, checkpoint, progress or (lambda _: None))
    except Changed:
        raise
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        described = str(error) if isinstance(error, HeadscopeError) else f"{type(error).__name__}: {error}"
        reason = "interrupted" if interrupted else described
        finished = _make_study(model, corpus, plan, state, command, reason) if state.texts else None
        if finished is None and not interrupted:
            raise
        raise Stopped(reason, finished, interrupted=interrupted) from error
    return state, plan


def _connect(model: Model, corpus: Corpus, address: str | None) -> AbstractContextManager[RayCluster]:
    """Connect to a Ray cluster, if a study of this model and corpus can run there."""
    from headscope.run.ray_cluster import connect

    if model.origin is None:
        raise StudyError("on a cluster every worker loads the model itself: give its name or folder, not an object")
    if not corpus.is_readable_elsewhere:
        raise StudyError(f"{corpus.name}: only this process can read it: write it to a file, and give that")
    return connect(address, str(model.origin.get("device", "auto")))


def fit_settings(model: Model, settings: Settings) -> Settings:
    """Return the settings adapted to the model; raise a StudyError for lengths that exceed its positions.

    For images the length is the number of tokens that the model makes of an image. An image is one window and has no
    sentences.
    """
    if isinstance(model.tokens, Patches):
        default, length = Settings(), model.tokens.length
        if settings.length not in (default.length, length):
            raise StudyError(
                f"length is {settings.length}, but an image has {length} tokens in {model.name}, no more and no fewer: "
                "leave --length out"
            )
        options = ("windows", "sentences", "blocks")
        if any(getattr(settings, name) != getattr(default, name) for name in options):
            raise StudyError(
                "an image is one window and has no sentences: leave --windows, --sentences and --blocks out"
            )
        return replace(settings, length=length)
    limit = model.max_length
    if limit is not None and settings.length > limit:
        raise StudyError(
            f"length is {settings.length}, but {model.name} has positions for {limit} tokens: "
            f"choose --length {limit} or less"
        )
    if settings.length < model.tokens.special_count + settings.min_tokens:
        raise StudyError(
            f"length is {settings.length}, of which this model's special tokens take {model.tokens.special_count}: "
            f"choose --length {model.tokens.special_count + settings.min_tokens} or more"
        )
    return settings


def describe_short_texts(model: Model, corpus: Corpus, stats: CorpusStats, settings: Settings) -> str:
    """Return how long a text must be and how long they are, as the end of a sentence; empty if none was too short."""
    if TOO_SHORT not in stats.skipped:
        return ""
    required = f": a text needs {settings.min_tokens} tokens that are not special"
    if not corpus.rereadable:
        return required
    cut = replace(settings.cut, min_tokens=1)
    cuts = (model.windows(document, cut) for document in islice(corpus, MAX_COUNTED))
    sizes = [int((~window.special).sum()) for windows in cuts if not isinstance(windows, str) for window in windows]
    first = f" of the first {MAX_COUNTED}" if stats.documents > MAX_COUNTED else ""
    return f"{required}, and the longest{first} has {max(sizes, default=0)}"


def _make_study(
    model: Model, corpus: Corpus, plan: RunPlan, state: RunState, command: str, stopped_by: str = ""
) -> Study:
    clock = StageClock(state.seconds)
    data = label_sums(
        state.sums, model.key_tokens.names, model.architecture.numbers, model.modality, model.window_tokens
    )
    names = [source.name for source in corpus.sources]
    data = assign_sources(data, state.stats.sources, names)
    clock.lap("finishing")
    run_attributes = {
        "sample": plan.sample,
        "similarity_note": plan.similarity_note,
        "batch_size": state.batch_size,
        "batch_size_note": state.batch_size_note,
        "kernel": ", ".join(sorted(state.kernels)),
        "kernel_note": "; ".join(sorted(filter(None, state.kernels.values()))),
        "tf32": int(state.tf32),
        "share": format_share(plan.share),
        "chunks": hash_chunks(state.chunks),
        "skip_broken": int(state.skips_broken),
        "chunk_size": f"{plan.chunk_size.documents} documents, {plan.chunk_size.bytes} bytes",
        "command": command,
        "runs": state.runs,
        "duration_seconds": sum(clock.seconds.values()),
        "timing": json.dumps(clock.get_rounded()),
    }
    attributes = _get_manifest(model, plan.settings, corpus, state.stats, stopped_by)
    attributes["device"] = ", ".join(sorted(state.devices))
    return Study(data.assign_attrs({**attributes, **run_attributes}))


def _get_manifest(
    model: Model, settings: Settings, corpus: Corpus, stats: CorpusStats, stopped_by: str
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **provenance.describe_model(model),
        "batching": model.batching,
        **settings.describe(),
        **corpus.describe(),
        "corpus_version": corpus.version,
        "corpus_hash": f"{stats.content:032x}",
        "documents_read": stats.documents,
        "documents_skipped": json.dumps(dict(sorted(stats.skipped.items()))),
        "excerpts": json.dumps(
            [excerpt for _, excerpt in sorted(stats.excerpts.items())] if settings.examples else [], ensure_ascii=False
        ),
        "complete": int(not stopped_by),
        "stopped_by": stopped_by,
        **provenance.describe_run(),
    }

"""Running a study: documents in, one batch after the other through the model, the sums under labels out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from headscope import manifest
from headscope.corpus.documents import Corpus, as_corpus
from headscope.engines.choice import Engine, engine_of
from headscope.errors import Changed, HeadscopeError, Stopped, StudyError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.studies.account import Account
from headscope.studies.checkpoint import EVERY, FOLDER, Checkpoints
from headscope.studies.clock import Clock
from headscope.studies.job import Job
from headscope.studies.labels import labelled
from headscope.studies.lock import Lock
from headscope.studies.options import Options
from headscope.studies.result import FORMAT, Study
from headscope.studies.settings import Settings
from headscope.studies.sources import with_sources
from headscope.studies.standing import Standing
from headscope.tally.kernels import AUTO

OWN_MAPS = "attention computed by the model itself"
"""what the manifest says where a kernel could not do that"""


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    texts: int
    documents: int
    """those that the texts come from, and those between them that have none; not what was read ahead"""
    expected: int | None
    """documents in all, where that is known"""
    unit: str = "texts"
    """what is studied: texts, or images"""
    texts_before: int = 0
    documents_before: int = 0
    """those of earlier runs, from which this one goes on"""


def study(
    model: Model,
    documents: Corpus | str | Path | Iterable[Any] | None = None,
    *,
    batch_size: int | None = None,
    kernel: str = AUTO,
    tf32: bool = True,
    progress: Callable[[Progress], None] | None = None,
    command: str = "",
    checkpoints: str | Path | None = None,
    every: float = EVERY,
    say: Callable[[str], None] = lambda _: None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    **options: Unpack[Options],
) -> Study:
    """Study what every head of a model does with a corpus.

    `documents` are strings, a source that `headscope.documents` opens, or nothing for the bundled texts; for a vision
    model, images of PIL or arrays of bytes (height, width, 3), or such a source. `options` are those of `Settings`. A
    study that cannot go on raises `Stopped`, with the texts finished until then in its `study`.

    `kernel` is the way sums are computed, one of `headscope.tally.kernels.KERNELS`; all give the same counts. `tf32`
    lets GPUs that can do so multiply single-precision numbers in TF32, as the manifest then says.

    `checkpoints` is a folder where the sums so far are kept while it runs, `every` so many seconds: the same call then
    goes on from there. They stay until `headscope.output.finish(folder)` takes them away. `say` is told what people
    should know on the way.

    `engine` is where it runs: `local`, or `ray`, with so many `workers`, on the cluster at `address`.

    >>> import headscope
    >>> headscope.study(headscope.load(), ["Two ravens met. The ravens left.", "Bread rises. Bread is eaten."])
    <Study of minilm: 6 layers × 12 heads, 2 texts of texts given in Python>
    """
    clock, settings = Clock(), fitted(model, Settings(**options))
    if not every >= 0:
        raise StudyError(f"{every} seconds between checkpoints: at least 0")
    corpus = as_corpus(documents)
    job = Job.of(model, corpus, settings, batch_size=batch_size, kernel=kernel, tf32=tf32)
    run = engine_of(engine, model, corpus, job, ahead=_anywhere(documents), workers=workers, address=address, say=say)
    if checkpoints is None:
        stands = _brought_on(run, model, corpus, job, clock, None, say, progress, command)
    else:
        kept = Checkpoints(Path(checkpoints) / FOLDER, job.identity(model, corpus), every=every, say=say)
        try:
            with Lock(kept.folder):
                stands = _brought_on(run, model, corpus, job, clock, kept, say, progress, command)
        finally:
            kept.tidy()
    if not stands.texts:
        read, skipped = stands.account.read, stands.account.skipped
        skips = "".join(f", {count} {reason}" for reason, count in sorted(skipped.items()))
        raise StudyError(f"{corpus.name}: no {model.modality} to study: {read} documents read{skips}")
    return _result(model, corpus, job, stands, command)


def _brought_on(
    run: Engine,
    model: Model,
    corpus: Corpus,
    job: Job,
    clock: Clock,
    kept: Checkpoints | None,
    say: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
    command: str,
) -> Standing:
    """How a study stands at its end, begun anew or gone on with."""
    standing = kept.found(job.shape(model)) if kept is not None else None
    if standing is None:
        standing = Standing.empty(job.shape(model), job.batch_size)
    else:
        say(f"going on from {standing.texts:,} texts that were studied before")
    clock.lap("opening")
    standing.seconds["opening"] = standing.seconds.get("opening", 0.0) + clock.seconds["opening"]
    before = standing.texts, standing.account.read

    def told(texts: int, read: int) -> None:
        if progress is not None:
            progress(Progress(texts, read, job.expected, f"{model.modality}s", *before))

    try:
        run.run(standing, kept, told)
    except Changed:
        raise
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        named = str(error) if isinstance(error, HeadscopeError) else f"{type(error).__name__}: {error}"
        reason = "interrupted" if interrupted else named
        stands = run.standing
        finished = _result(model, corpus, job, stands, command, reason) if stands.texts else None
        if finished is None and not interrupted:
            raise
        raise Stopped(reason, finished, interrupted=interrupted) from error
    return run.standing


def _result(model: Model, corpus: Corpus, job: Job, stands: Standing, command: str, stopped_by: str = "") -> Study:
    clock = Clock(stands.seconds)
    made = labelled(stands.tally, model.tokens.names, model.anatomy.numbers, model.modality)
    made = with_sources(made, stands.account, corpus)
    clock.lap("finishing")
    halved = f"halved from {job.batch_size} after running out of memory"
    how = {
        "sample": job.fraction,
        "batch_size": stands.batch_size,
        "batch_size_note": halved if stands.batch_size < job.batch_size else "",
        "kernel": job.kernel,
        "kernel_note": job.kernel_note or (OWN_MAPS if stands.shown else ""),
        "tf32": int(job.tf32),
        "command": command,
        "runs": stands.runs,
        "duration_seconds": sum(clock.seconds.values()),
        "timing": json.dumps(clock.rounded()),
    }
    return Study(made.assign_attrs({**_manifest(model, job.settings, corpus, stands.account, stopped_by), **how}))


def _anywhere(documents: Any) -> bool:
    """Whether documents may be read in another thread: what a generator of Python does may be bound to this one."""
    return documents is None or isinstance(documents, (Corpus, str, Path, Sized))


def fitted(model: Model, settings: Settings) -> Settings:
    """The settings as the model takes them; refused where it has no positions for a window, or no words fit in.

    An image has the number of tokens that the model gives it, is one window, and has no sentences.
    """
    if isinstance(model.tokens, Patches):
        plain, length = Settings(), model.tokens.length
        if settings.length not in (plain.length, length):
            raise StudyError(
                f"length is {settings.length}, but an image has {length} tokens in {model.name}, no more and no fewer: "
                "leave --length out"
            )
        if (settings.windows, settings.sentences) != (plain.windows, plain.sentences):
            raise StudyError("an image is one window and has no sentences: leave --windows and --sentences out")
        return replace(settings, length=length)
    limit = model.max_length
    if limit is not None and settings.length > limit:
        raise StudyError(
            f"length is {settings.length}, but {model.name} has positions for {limit} tokens: "
            f"choose --length {limit} or less"
        )
    if settings.length < model.tokens.added + settings.min_tokens:
        raise StudyError(
            f"length is {settings.length}, of which this model's special tokens take {model.tokens.added}: "
            "choose a larger --length"
        )
    return settings


def _manifest(model: Model, settings: Settings, corpus: Corpus, account: Account, stopped_by: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **manifest.of_model(model),
        "length": settings.length,
        "windows": settings.windows,
        "sentences": settings.sentences,
        "min_tokens": settings.min_tokens,
        "skip_broken": int(settings.skip_broken or corpus.options.skip_broken),
        "theta": settings.theta,
        "tau": settings.tau,
        "maps": int(settings.keeps_maps),
        "corpus": corpus.name,
        "limit": corpus.limit or "none",
        "corpus_hash": f"{account.content:032x}",
        "documents_read": account.read,
        "documents_skipped": json.dumps(dict(sorted(account.skipped.items()))),
        "excerpts": json.dumps([text for _, text in sorted(account.excerpts.items())], ensure_ascii=False),
        "complete": int(not stopped_by),
        "stopped_by": stopped_by,
        **manifest.of_run(),
    }

"""Running a study: documents in, one batch after the other through the model, the sums under labels out."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from headscope import manifest
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Batch
from headscope.errors import HeadscopeError, Stopped, StudyError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.studies.crew import Crew
from headscope.studies.labels import labelled
from headscope.studies.memory import Room
from headscope.studies.options import Options
from headscope.studies.precision import multiplying, uses_tf32
from headscope.studies.result import FORMAT, Study
from headscope.studies.settings import SAMPLE_FRACTION, SMALL_CORPUS, Settings
from headscope.studies.texts import Account, Load, Texts
from headscope.studies.undisturbed import undisturbed
from headscope.tally.kernels import AUTO, choose
from headscope.tally.quantities import Shape
from headscope.tally.tally import Counting

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


def study(
    model: Model,
    documents: Corpus | str | Path | Iterable[Any] | None = None,
    *,
    batch_size: int | None = None,
    kernel: str = AUTO,
    tf32: bool = True,
    progress: Callable[[Progress], None] | None = None,
    command: str = "",
    **options: Unpack[Options],
) -> Study:
    """Study what every head of a model does with a corpus.

    `documents` are strings, a source that `headscope.documents` opens, or nothing for the bundled texts; for a vision
    model, images of PIL or arrays of bytes (height, width, 3), or such a source. `options` are those of `Settings`. A
    study that cannot go on raises `Stopped`, with the texts finished until then in its `study`.

    `kernel` is the way sums are computed, one of `headscope.tally.kernels.KERNELS`; all give the same counts. `tf32`
    lets GPUs that can do so multiply single-precision numbers in TF32, as the manifest then says.

    >>> import headscope
    >>> headscope.study(headscope.load(), ["Two ravens met. The ravens left.", "Bread rises. Bread is eaten."])
    <Study of minilm: 6 layers × 12 heads, 2 texts of texts given in Python>
    """
    clock, settings = _Clock(), fitted(model, Settings(**options))
    if batch_size is not None and batch_size < 1:
        raise StudyError(f"batch size is {batch_size}: at least 1")
    corpus = as_corpus(documents)
    counted = corpus.count(SMALL_CORPUS)
    small = counted is not None or (corpus.limit is not None and corpus.limit <= SMALL_CORPUS)
    fraction = settings.sample if settings.sample is not None else (1.0 if small else SAMPLE_FRACTION)
    anatomy = model.anatomy
    shape = Shape(anatomy.layers, anatomy.heads, settings.length, settings.keeps_maps)
    counting = Counting(shape, settings.theta, settings.tau, fraction, anatomy.causal, anatomy.numbers)
    tf32 = tf32 and uses_tf32(model)
    chosen, started = choose(kernel, counting, model.device, tf32=tf32), time.monotonic()
    crew = Crew(chosen)
    room = Room.of(model, settings.length, batch_size)
    texts = Texts(corpus, model, settings.cut, room.size)

    def result(stopped_by: str = "") -> Study:
        made = labelled(crew.total(), model.tokens.names, anatomy.numbers, model.modality)
        clock.lap("finishing")
        how = {
            "sample": fraction,
            "batch_size": room.size,
            "batch_size_note": room.note,
            "kernel": chosen.name,
            "kernel_note": chosen.note or (OWN_MAPS if crew.shown() and hasattr(crew.talliers[0], "attend") else ""),
            "tf32": int(tf32),
            "command": command,
            "duration_seconds": time.monotonic() - started,
            "timing": json.dumps(clock.rounded()),
        }
        return Study(made.assign_attrs({**_manifest(model, settings, corpus, texts.account, stopped_by), **how}))

    def attempt(batch: Batch) -> None:
        crew.observe(model, batch)

    done, ended = 0, deque[Load]()

    def account(lag: int) -> None:
        """Say of the batches that count by now that they do."""
        nonlocal done
        while len(ended) > lag:
            part = ended.popleft()
            texts.count(part)
            done += len(part.batch)

    clock.lap("opening")
    try:
        with multiplying(tf32), texts.loads(ahead=_anywhere(documents)) as loads:
            for load in loads:
                clock.lap("waiting_for_texts")
                for part in room.tried(load, attempt):
                    with undisturbed():  # the sums, and what is said of them, change together
                        crew.end()
                        ended.append(part)
                        account(crew.lag)
                    if progress is not None and done:
                        progress(Progress(done, texts.account.read, counted, f"{model.modality}s"))
                clock.lap("model_and_sums")
            with undisturbed():
                crew.settle()
                account(0)
            clock.lap("model_and_sums")
    except (Exception, KeyboardInterrupt) as error:  # whatever it is, also out of memory, loses nothing
        interrupted = isinstance(error, KeyboardInterrupt)
        named = str(error) if isinstance(error, HeadscopeError) else f"{type(error).__name__}: {error}"
        reason = "interrupted" if interrupted else named
        with suppress(HeadscopeError):  # what ended counts, unless it is what is broken
            crew.settle()
            account(0)
        finished = result(reason) if done else None
        if finished is None and not interrupted:
            raise
        raise Stopped(reason, finished, interrupted=interrupted) from error
    finally:
        crew.close()
    if not done:
        read, skipped = texts.account.read, texts.account.skipped
        skips = "".join(f", {count} {reason}" for reason, count in sorted(skipped.items()))
        raise StudyError(f"{corpus.name}: no {model.modality} to study: {read} documents read{skips}")
    return result()


@dataclass
class _Clock:
    """Where the time goes, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """All since the last lap was this."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def rounded(self) -> dict[str, float]:
        return {name: round(taken, 3) for name, taken in self.seconds.items()}


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

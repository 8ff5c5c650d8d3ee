"""Running a study: documents in, one batch after the other through the model, the sums under labels out."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from headscope import manifest
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Window, batches
from headscope.errors import HeadscopeError, Stopped, StudyError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.studies.labels import labelled
from headscope.studies.options import Options
from headscope.studies.result import FORMAT, Study
from headscope.studies.settings import SAMPLE_FRACTION, SMALL_CORPUS, Settings
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Counting, Tallier
from headscope.tally.vectorized import VectorizedTallier

EXCERPTS = 3
EXCERPT_LENGTH = 160
BATCH_SIZE = 32
BATCH_ELEMENTS = 8_000_000
"""N×N elements over all heads that a batch of the default size may hold at once"""

KERNELS: dict[str, Callable[[Counting, torch.device], Tallier]] = {
    "vectorized": VectorizedTallier,
    "reference": lambda counting, device: ReferenceTallier(counting),
}


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    texts: int
    documents: int
    expected: int | None
    """documents in all, where that is known"""
    unit: str = "texts"
    """what is studied: texts, or images"""


def study(
    model: Model,
    documents: Corpus | str | Path | Iterable[Any] | None = None,
    *,
    batch_size: int | None = None,
    kernel: str = "vectorized",
    progress: Callable[[Progress], None] | None = None,
    command: str = "",
    **options: Unpack[Options],
) -> Study:
    """Study what every head of a model does with a corpus.

    `documents` are strings, a source that `headscope.documents` opens, or nothing for the bundled texts; for a vision
    model, images of PIL or arrays of bytes (height, width, 3), or such a source. `options` are those of `Settings`. A
    study that cannot go on raises `Stopped`, with the texts finished until then in its `study`.

    >>> import headscope
    >>> headscope.study(headscope.load(), ["Two ravens met. The ravens left.", "Bread rises. Bread is eaten."])
    <Study of minilm: 6 layers × 12 heads, 2 texts of texts given in Python>
    """
    settings = fitted(model, Settings(**options))
    if kernel not in KERNELS:
        raise StudyError(f"unknown kernel {kernel!r}; there are: {', '.join(KERNELS)}")
    if batch_size is not None and batch_size < 1:
        raise StudyError(f"batch size is {batch_size}: at least 1")
    corpus = as_corpus(documents)
    counted = corpus.count(SMALL_CORPUS)
    small = counted is not None or (corpus.limit is not None and corpus.limit <= SMALL_CORPUS)
    fraction = settings.sample if settings.sample is not None else (1.0 if small else SAMPLE_FRACTION)
    anatomy = model.anatomy
    shape = Shape(anatomy.layers, anatomy.heads, settings.length, settings.keeps_maps)
    counting = Counting(shape, settings.theta, settings.tau, fraction, anatomy.causal, anatomy.numbers)
    size = batch_size or max(1, min(BATCH_SIZE, BATCH_ELEMENTS // (anatomy.heads * settings.length**2)))

    reading = _Reading(corpus, model, settings)
    tallier, started = KERNELS[kernel](counting, model.device), time.monotonic()

    def result(stopped_by: str = "") -> Study:
        total = tallier.total()
        made = labelled(total, model.tokens.names, anatomy.numbers, model.modality)
        how = {
            "sample": fraction,
            "batch_size": size,
            "kernel": kernel,
            "command": command,
            "duration_seconds": time.monotonic() - started,
        }
        return Study(made.assign_attrs({**_manifest(model, settings, reading, stopped_by), **how}))

    done = 0
    try:
        alike = not model.ignores_padding
        for batch in batches(reading.windows(), size, model.tokens.pad_id, alike=alike):
            tallier.begin(batch)
            model.observe(batch, tallier.see)
            tallier.end()
            done += len(batch)
            if progress is not None:
                progress(Progress(done, reading.read, counted, f"{model.modality}s"))
    except (Exception, KeyboardInterrupt) as error:  # whatever it is, also out of memory, loses nothing
        interrupted = isinstance(error, KeyboardInterrupt)
        named = str(error) if isinstance(error, HeadscopeError) else f"{type(error).__name__}: {error}"
        reason = "interrupted" if interrupted else named
        finished = result(reason) if tallier.total()["texts"].sum() else None
        if finished is None and not interrupted:
            raise
        raise Stopped(reason, finished, interrupted=interrupted) from error
    if not done:
        raise StudyError(
            f"{corpus.name}: no {model.modality} to study: {reading.read} documents read{_skips(reading.skipped)}"
        )
    return result()


@dataclass
class _Reading:
    """The documents of a corpus as windows, and what was met on the way."""

    corpus: Corpus
    model: Model
    settings: Settings
    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    content: int = 0
    excerpts: list[dict[str, str]] = field(default_factory=list)

    def windows(self) -> Iterator[Window]:
        cut = self.settings.cut
        for document in self.corpus:
            windows = self.model.windows(document, cut)
            self.read += 1
            # The sum of all documents' hashes: the same for the same texts in any order, and it adds when studies do.
            digest = hashlib.blake2b(document.content, digest_size=16).digest()
            self.content = (self.content + int.from_bytes(digest, "little")) % 2**128
            if isinstance(windows, str):
                self.skipped[windows] += 1
                continue
            if len(self.excerpts) < EXCERPTS:
                self.excerpts.append({"name": document.name, "text": document.excerpt[:EXCERPT_LENGTH]})
            yield from windows


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


def _manifest(model: Model, settings: Settings, reading: _Reading, stopped_by: str) -> dict[str, Any]:
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
        "corpus": reading.corpus.name,
        "limit": reading.corpus.limit or "none",
        "corpus_hash": f"{reading.content:032x}",
        "documents_read": reading.read,
        "documents_skipped": json.dumps(dict(sorted(reading.skipped.items()))),
        "excerpts": json.dumps(reading.excerpts, ensure_ascii=False),
        "complete": int(not stopped_by),
        "stopped_by": stopped_by,
        **manifest.of_run(),
    }


def _skips(skipped: Counter[str]) -> str:
    return "".join(f", {count} {reason}" for reason, count in sorted(skipped.items()))

"""The texts on which heads are silenced: the windows of a corpus, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Batch, Window, WindowMode, grouped
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.run.batch_size import choose_batch_size
from headscope.run.state import CorpusStats
from headscope.settings import Settings
from headscope.studies.study import fit_settings

LIMIT = 64
"""documents that are read where nothing else is said: every head takes a run of its own over all of them"""
LOGITS = 2**26
"""numbers that a model may make at once of the words that could come next"""

Documents = Corpus | str | Path | Iterable[Any] | None


@dataclass(frozen=True)
class Read:
    """The windows of a corpus in its order, and what is known of the documents they come from."""

    corpus: Corpus
    settings: Settings
    windows: list[Window]
    stats: CorpusStats


def read_windows(
    model: Model,
    documents: Documents = None,
    *,
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = LIMIT,
) -> Read:
    """The windows of at most `limit` documents, as the model's watched stack reads them."""
    settings = fit_settings(model, Settings(length=length, windows=windows))
    if limit is not None and limit < 1:
        raise StudyError(f"limit is {limit}: ask for at least one document")
    corpus = as_corpus(documents)
    limits = [most for most in (corpus.limit, limit) if most is not None]
    corpus = replace(corpus, limit=min(limits, default=None))
    selected: list[Window] = []
    stats = CorpusStats()
    for number, document in enumerate(corpus):
        stats.add_document(document, 0)
        cut = model.windows(document, settings.cut)
        if isinstance(cut, str):
            stats.add_skipped(cut)
        else:
            stats.add_excerpt((0, number), document)
            selected += cut
    if not selected:
        raise StudyError(
            f"{corpus.name}: no {model.modality} to run: {stats.documents} documents read{stats.describe_skipped()}"
        )
    return Read(corpus, settings, selected, stats)


@dataclass(frozen=True)
class Numbered:
    """A batch, and the places of its texts among all."""

    places: list[int]
    batch: Batch


def batches_of(model: Model, windows: Sequence[Window], size: int | None = None) -> list[Numbered]:
    """Windows in batches of like length; where a model sees its padding, of one length."""
    if size is not None and size < 1:
        raise StudyError(f"batch size is {size}: at least 1")
    if not windows:
        raise StudyError("there are no texts: give at least one window")
    items = [_Item(k, window) for k, window in enumerate(windows)]
    return [
        Numbered([item.place for item in group], Batch.of([item.window for item in group], model.tokens.pad_id))
        for group in grouped(items, size or _size(model, windows), alike=not model.ignores_padding)
    ]


def _size(model: Model, windows: Sequence[Window]) -> int:
    longest = max(map(len, windows))
    size = choose_batch_size(model, longest)
    words = getattr(model._config, "vocab_size", None) if model.modality == "text" else None
    return max(1, min(size, LOGITS // (longest * words))) if isinstance(words, int) and words else size


@dataclass(frozen=True)
class _Item:
    place: int
    window: Window

    def __len__(self) -> int:
        return len(self.window)

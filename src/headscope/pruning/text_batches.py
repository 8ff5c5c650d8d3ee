"""Read the texts on which heads are silenced: the windows of a corpus, and batches of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Batch, Window, WindowMode, group_by_length
from headscope.errors import CorpusError, StudyError
from headscope.model.model import Model
from headscope.run.batch_size import choose_batch_size
from headscope.run.state import CorpusStats
from headscope.settings import Settings
from headscope.studies.study import describe_short_texts, fit_settings

DEFAULT_LIMIT = 64
"""documents read by default: every head takes a run over all of them"""
MAX_LOGITS = 2**26
"""logits in one batch"""

Documents = Corpus | str | Path | Iterable[Any] | None


@dataclass(frozen=True)
class CorpusWindows:
    """The windows of a corpus in its order, and statistics of the documents they come from."""

    corpus: Corpus
    settings: Settings
    windows: list[Window]
    stats: CorpusStats
    leaves_out: bool
    """whether the corpus has documents beyond the limit"""


def check_limit(limit: int | None) -> None:
    """Raise a StudyError for a limit that leaves no document."""
    if limit is not None and limit < 1:
        raise StudyError(f"limit is {limit}: ask for at least one document")


def limit_corpus(corpus: Corpus, limit: int | None) -> Corpus:
    """Return a corpus of at most `limit` documents."""
    check_limit(limit)
    limits = [number for number in (corpus.limit, limit) if number is not None]
    return replace(corpus, limit=min(limits, default=None))


def has_more_documents(corpus: Corpus, limit: int | None, documents_read: int) -> bool:
    """Return whether a corpus has documents beyond a limit.

    Of a stream that can be read only once this is unknown: one that reached the limit is taken to have more.
    """
    if limit is None or documents_read < limit:
        return False
    try:
        return corpus.measure(limit)[0] is None
    except CorpusError:  # the next document cannot be read
        return True


def describe_limit(limit: int | None) -> str:
    """Return the message that documents beyond the limit are left out."""
    return f"only the first {limit} documents are used, the others are left out: choose a larger limit to use more"


def show_warning(message: str) -> None:
    """Issue a warning that names the line from which `ablate` or `prune` was called."""
    warnings.warn(message, stacklevel=3)


def read_windows(
    model: Model,
    documents: Documents = None,
    *,
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = DEFAULT_LIMIT,
) -> CorpusWindows:
    """Return the windows of at most `limit` documents, as the model's observed stack reads them."""
    settings = fit_settings(model, Settings(length=length, windows=windows))
    all_documents = as_corpus(documents, field)
    corpus = limit_corpus(all_documents, limit)
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
            f"{describe_short_texts(model, corpus, stats, settings)}"
        )
    return CorpusWindows(corpus, settings, selected, stats, has_more_documents(all_documents, limit, stats.documents))


@dataclass(frozen=True)
class NumberedBatch:
    """A batch, and the positions of its texts among all."""

    places: list[int]
    batch: Batch


def batch_windows(model: Model, windows: Sequence[Window], size: int | None = None) -> list[NumberedBatch]:
    """Return windows in batches of similar lengths; of equal lengths if padding would change the model's results."""
    if size is not None and size < 1:
        raise StudyError(f"batch size is {size}: at least 1")
    if not windows:
        raise StudyError("there are no texts: give at least one window")
    items = [_Item(k, window) for k, window in enumerate(windows)]
    size = size or _choose_size(model, windows)
    return [
        NumberedBatch([item.place for item in group], Batch.of([item.window for item in group], model.tokens.pad_id))
        for group in group_by_length(items, model.limit_batch_size(size), alike=not model.ignores_padding)
    ]


def _choose_size(model: Model, windows: Sequence[Window]) -> int:
    longest = max(map(len, windows))
    size = choose_batch_size(model, longest)
    vocabulary = (
        getattr(model.network.config.get_text_config(), "vocab_size", None) if model.modality == "text" else None
    )
    if not isinstance(vocabulary, int) or not vocabulary:
        return size
    return max(1, min(size, MAX_LOGITS // (longest * vocabulary)))


@dataclass(frozen=True)
class _Item:
    place: int
    window: Window

    def __len__(self) -> int:
        return len(self.window)

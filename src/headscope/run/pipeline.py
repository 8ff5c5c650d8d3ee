"""From chunks to batches: read documents, tokenize them, cut windows, and group those of similar length.

A chunk is counted in *sections* of a bounded number of texts. Most chunks are one section; a compressed file or a pipe,
which can only be read from its beginning, has many. A section is complete before its first batch runs, so a document
that cannot be read never leaves half a section in the sums. Which texts share a batch depends on the chunk and the
settings alone: not on interruptions, nor on the worker that counts it.

The pipeline runs in a background thread, one section ahead of the model. A fast tokenizer gets many texts in one call
and spreads them over all cores.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import attrgetter
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from headscope.corpus.chunks import Chunk, read_chunk
from headscope.corpus.document import Document
from headscope.corpus.documents import Corpus
from headscope.corpus.lines import resolve_line_numbers
from headscope.corpus.windows import Batch, Window, WindowSpec
from headscope.errors import CorpusError, StorageError
from headscope.model.model import Model
from headscope.run.state import HASH_MODULUS, ChunkProgress, CorpusStats, hash_document, make_changed_error

DOCUMENTS_FIRST_CALL, DOCUMENTS_PER_CALL = 16, 128
"""Documents tokenized in one call: few at first, so that the model can start; more gain nothing."""
CHARACTERS_PER_CALL = 1_000_000
"""Long documents are not tokenized by the hundred."""
DOCUMENTS_PER_TEXT = 16
"""A section ends as well after so many times its texts in documents: there may be many without any text."""
NOTHING_COUNTED = ChunkProgress(0, 0)
RETRY_SECONDS = (2.0, 10.0, 30.0)
"""pauses before remote storage that failed is tried again"""


@dataclass
class Section:
    """Batches that are counted together, and the statistics of their documents."""

    chunk: int
    batches: list[Batch] = field(default_factory=list)
    stats: CorpusStats = field(default_factory=CorpusStats)
    progress: ChunkProgress = NOTHING_COUNTED
    """what is counted of the chunk after this section"""
    is_last: bool = False
    """the chunk ends here"""
    error: str = ""
    """why the rest of the chunk cannot be read; the section is empty then"""

    @property
    def texts(self) -> int:
        """Number of windows."""
        return sum(len(batch) for batch in self.batches)


class SectionReader:
    """Read chunks section by section. `section_texts` is the number of texts at which a section ends."""

    def __init__(self, corpus: Corpus, model: Model, cut: WindowSpec, batch_size: int, section_texts: int) -> None:
        self.corpus, self.model, self.cut = corpus, model, cut
        # Both run the model, so not in the background thread.
        self.batch_size, self.can_pad = model.limit_batch_size(batch_size), model.ignores_padding
        self.section_texts = section_texts
        self.stopped = False
        self.is_reading = False

    @contextmanager
    def prefetch(
        self,
        chunks: Iterable[Chunk],
        in_progress: Mapping[int, ChunkProgress],
        *,
        in_thread: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[Iterable[Section]]:
        """Read sections in a background thread, one ahead of the consumer, or in the thread that asks for them."""
        sections = self.read(chunks, in_progress)
        if not in_thread:
            yield sections
            return
        with Prefetcher(sections, 1, lambda: self.is_reading, check) as prefetched:
            try:
                yield prefetched
            finally:
                self.stopped = True

    def read(self, chunks: Iterable[Chunk], in_progress: Mapping[int, ChunkProgress]) -> Generator[Section]:
        """Yield the sections of some chunks that are not counted yet.

        A chunk with a document that cannot be read ends with a section that says so, and the next chunk follows.

        Raises:
            Changed: What was counted of a chunk before is not there any more.
        """
        for chunk in chunks:
            try:
                yield from self._read_with_retries(chunk, in_progress.get(chunk.number, NOTHING_COUNTED))
            except CorpusError as error:
                yield Section(chunk.number, error=resolve_line_numbers(str(error)))
            if self.stopped:
                return

    def _read_with_retries(self, chunk: Chunk, progress: ChunkProgress) -> Iterator[Section]:
        """Read a chunk; when remote storage fails, wait and continue after the last section."""
        for pause in (*RETRY_SECONDS, None):
            try:
                for section in self._read_chunk(chunk, progress):
                    progress = section.progress
                    yield section
                return
            except StorageError:
                if pause is None or not self.corpus.rereadable:
                    raise
                self._pause(pause)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.stopped and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _read_chunk(self, chunk: Chunk, done: ChunkProgress) -> Iterator[Section]:
        documents = self._read_documents(chunk)
        self._skip(documents, done, chunk)
        builder = _SectionBuilder(self, chunk.number, done)
        for source, document, windows in self._cut_windows(documents):
            builder.add(source, document, windows)
            if builder.is_full:
                # What was counted of a chunk stays counted, so it must be of the right version.
                self.corpus.sources[source].check_unchanged()
                yield builder.finish(is_last=False)
        if not self.stopped:
            yield builder.finish(is_last=True)

    def _skip(self, documents: Iterator[tuple[int, Document]], done: ChunkProgress, chunk: Chunk) -> None:
        """Pass over the documents that are counted, and make sure that they are still the same."""
        count, content = 0, 0
        for _, document in islice(documents, done.documents):
            count, content = count + 1, (content + hash_document(document)) % HASH_MODULUS
        if (count, content) != done and not self.stopped:
            raise make_changed_error(self.corpus, chunk)

    def _read_documents(self, chunk: Chunk) -> Iterator[tuple[int, Document]]:
        documents = read_chunk(self.corpus.sources, chunk, self.corpus.limit)
        while not self.stopped:
            self.is_reading = True
            item = next(documents, None)
            self.is_reading = False
            if item is None:
                return
            yield item

    def _cut_windows(
        self, documents: Iterator[tuple[int, Document]]
    ) -> Iterator[tuple[int, Document, list[Window] | str]]:
        for group in self._group_for_tokenizer(documents):
            windows = self.model.cut_documents([document for _, document in group], self.cut)
            for (source, document), cut in zip(group, windows, strict=True):
                yield source, document, cut

    def _group_for_tokenizer(self, documents: Iterator[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
        most = 1 if self.model.modality == "image" else DOCUMENTS_PER_CALL
        wanted, characters, group = min(DOCUMENTS_FIRST_CALL, most), 0, list[tuple[int, Document]]()
        for source, document in documents:
            group.append((source, document))
            characters += len(document.text)
            if len(group) >= wanted or characters >= CHARACTERS_PER_CALL:
                yield group
                wanted, characters, group = min(2 * wanted, most), 0, []
        if group:
            yield group


class _SectionBuilder:
    """Collect windows until a section is full."""

    def __init__(self, reader: SectionReader, chunk: int, done: ChunkProgress) -> None:
        self.reader, self.chunk = reader, chunk
        self.documents, self.content = done
        self._begin()

    def _begin(self) -> None:
        self.stats = CorpusStats()
        self.windows: list[Window] = []

    @property
    def is_full(self) -> bool:
        most = self.reader.section_texts
        return len(self.windows) >= most or self.stats.documents >= DOCUMENTS_PER_TEXT * most

    def add(self, source: int, document: Document, windows: list[Window] | str) -> None:
        self.stats.add_document(document, source)
        if isinstance(windows, str):
            self.stats.add_skipped(windows)
            return
        self.stats.add_excerpt((self.chunk, self.documents + self.stats.documents), document)
        for window in windows:
            _ = window.digest  # cached, so that it is not computed while the model waits
        self.windows += windows

    def finish(self, *, is_last: bool) -> Section:
        self.documents += self.stats.documents
        self.content = (self.content + self.stats.content) % HASH_MODULUS
        batches = make_batches(
            self.windows, self.reader.batch_size, self.reader.model.tokens.pad_id, can_pad=self.reader.can_pad
        )
        section = Section(self.chunk, batches, self.stats, ChunkProgress(self.documents, self.content), is_last=is_last)
        self._begin()
        return section


get_lengths = attrgetter("lengths")


def make_batches(windows: list[Window], size: int, pad_id: int, *, can_pad: bool = True) -> list[Batch]:
    """Group windows of similar length into batches, the longest first: so little is padded.

    Unless `can_pad`, a batch holds windows of one length, and nothing is padded.
    """
    order = sorted(windows, key=get_lengths, reverse=True)  # stable: windows of one length stay in their order
    runs = [order] if can_pad else [list(run) for _, run in groupby(order, key=get_lengths)]
    groups = chain.from_iterable((run[k : k + size] for k in range(0, len(run), size)) for run in runs)
    return [Batch.of(group, pad_id) for group in groups if group]


T = TypeVar("T")

POLL_SECONDS = 0.5
"""How long to wait for the next item, or for the thread to end, before looking whether to stop."""


class _End:
    """Last item of the queue: the source is exhausted, or raised an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Prefetcher(Generic[T]):
    """Iterate over `source` in a background thread, at most `depth` items ahead of the consumer.

    An error of the source is raised where its next item would have come. On leaving the context the thread is stopped
    and joined, unless `is_blocked` says that it waits for something outside, such as a pipe that nobody writes to:
    nothing can wake it then, and it ends with its next step or with the process.

    A consumer that waits calls `check` now and then, which may raise.
    """

    def __init__(
        self,
        source: Generator[T],
        depth: int,
        is_blocked: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._source, self._is_blocked, self._check = source, is_blocked, check
        self._queue: SimpleQueue[T | _End] = SimpleQueue()
        self._free_slots = threading.Semaphore(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="headscope: prefetch", daemon=True)

    def _produce(self) -> None:
        # An abandoned thread that reads standard input keeps a reference to it: otherwise Python would close it under
        # the thread at exit, and abort.
        stdin = sys.stdin
        end = _End()
        try:
            while True:
                self._free_slots.acquire()
                if self._stopped.is_set():
                    break
                self._queue.put(next(self._source))
        except StopIteration:
            pass
        except BaseException as error:  # raised in the consumer instead
            end = _End(error)
        finally:
            self._source.close()
            self._queue.put(end)
            del stdin

    def __enter__(self) -> Prefetcher[T]:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._take(), _End):
            self._free_slots.release()
            yield item
        self._queue.put(item)  # a second iteration ends in the same way
        if item.error is not None:
            raise item.error

    def _take(self) -> T | _End:
        while True:
            try:
                return self._queue.get(timeout=POLL_SECONDS)
            except Empty:
                self._check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._free_slots.release()
        self._thread.join(POLL_SECONDS)
        while self._thread.is_alive() and not self._is_blocked():
            self._thread.join(POLL_SECONDS)

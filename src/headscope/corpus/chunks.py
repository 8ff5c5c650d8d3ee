"""Split a corpus into chunks: parts of about the same number of documents that can be read independently.

Consecutive small files form one chunk; a large file of lines, or of row groups, is split into several. Chunk boundaries
depend only on the corpus and the chunk size, so a chunk contains the same documents in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import overload

import numpy as np

from headscope.corpus.document import Document
from headscope.corpus.storage import Stamp, can_read_parts, get_stamp
from headscope.corpus.tables import count_rows
from headscope.errors import CorpusError

MAX_TRACKED_FILES = 100
"""Above this number, the files of a chunk that are one document each share one entry in the statistics."""
THREADS = 32
"""number of large files whose footers are read in parallel"""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or stream of documents."""

    name: str
    read: Callable[..., Iterator[Document]]
    """`read()` gives all documents; where `is_splittable` is set, `read(start, stop)` gives those of a part"""
    path: str = ""
    """path or URL from which size and version can be queried; empty if they cannot"""
    is_single_document: bool = False
    """the whole file is one document"""
    is_splittable: bool = False
    """byte ranges or ranges of row groups can be read independently"""
    stamp: Stamp | None = None
    """size and version when the corpus was listed; None where they are not known"""
    has_row_groups: bool = False
    """parts are ranges of row groups"""

    def get_current_stamp(self) -> Stamp | None:
        """Query the current size and version from storage.

        If the listing gave no version, or another kind of version than storage gives for a single file, only sizes can
        be compared: the version of the listing is then returned.
        """
        current = get_stamp(self.path) if self.path else None
        if current is None or self.stamp is None:
            return current
        comparable = current.version and self.stamp.version and current.kind == self.stamp.kind
        return current if comparable else Stamp(current.size, self.stamp.version)

    def check_unchanged(self) -> None:
        """Raise a CorpusError if the file has changed since it was listed."""
        if self.stamp is not None and self.get_current_stamp() != self.stamp:
            raise CorpusError(f"{self.name}: changed since this study began: leave files alone until a study is done")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive sources `first`..`after`-1, each complete; or of a single source the part from `start` to `stop`."""

    number: int
    first: int
    after: int
    start: int = 0
    stop: int | None = None
    """None: to the end"""


class SourceSubset(Sequence[Source]):
    """The sources of some chunks, indexed as in their corpus; small enough to send to another process."""

    def __init__(self, sources: Sequence[Source], chunks: Sequence[Chunk]) -> None:
        self._length = len(sources)
        self._sources = {k: sources[k] for chunk in chunks for k in range(chunk.first, chunk.after)}

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: int) -> Source: ...
    @overload
    def __getitem__(self, key: slice) -> list[Source]: ...
    def __getitem__(self, key: int | slice) -> Source | list[Source]:
        if isinstance(key, slice):
            return [self._sources[number] for number in range(*key.indices(self._length))]
        return self._sources[key]


@dataclass(frozen=True)
class ChunkSize:
    """Target size of chunks."""

    documents: int
    """approximate number of documents per chunk"""
    bytes: int
    """bytes of uncompressed text that correspond to this number of documents"""


def plan_chunks(sources: Sequence[Source], size: ChunkSize) -> list[Chunk]:
    """Split a corpus into chunks, in its order."""
    chunks: list[Chunk] = []
    large = {
        number
        for number, source in enumerate(sources)
        if source.stamp is not None and not source.is_single_document and source.stamp.size > size.bytes
    }
    cuts = _find_cuts(sources, sorted(large), size)
    # Weights are integer multiples of 1 / (bytes × documents) of a chunk, so that their sums are exact.
    first, weight = 0, 0
    for number, source in enumerate(sources):
        if number in large or source.stamp is None:
            if first < number:
                chunks.append(Chunk(len(chunks), first, number))
            for start, stop in pairwise([*cuts.get(number, [0]), None]):
                chunks.append(Chunk(len(chunks), number, number + 1, start or 0, stop))
            first, weight = number + 1, 0
            continue
        weight += size.bytes if source.is_single_document else max(size.bytes, source.stamp.size * size.documents)
        if weight >= size.bytes * size.documents:
            chunks.append(Chunk(len(chunks), first, number + 1))
            first, weight = number + 1, 0
    if first < len(sources):
        chunks.append(Chunk(len(chunks), first, len(sources)))
    return chunks


def adjust_repaired_chunks(
    chunks: Sequence[Chunk],
    sources: Sequence[Source],
    sizes: Sequence[int],
    failed: AbstractSet[int],
    completed: AbstractSet[int],
) -> list[Chunk]:
    """Return the chunks with boundaries adjusted for files that were repaired since they were split.

    Everything after a repaired document is shifted by the change in file size. The repaired chunk is known if exactly
    one chunk of the file could not be read, or exactly one is not counted yet. Otherwise the chunks are returned
    unchanged: counted documents are verified anyway.

    Args:
        sizes: Bytes of all sources when they were split; -1 where unknown.
        failed: Numbers of the chunks that could not be read.
        completed: Numbers of the chunks that are counted.
    """
    adjusted = list(chunks)
    for number, parts in groupby(chunks, key=lambda chunk: chunk.first):
        source, parts_of_source = sources[number], list(parts)
        if len(parts_of_source) == 1 or source.has_row_groups or source.stamp is None or sizes[number] < 0:
            continue
        added = source.stamp.size - sizes[number]
        suspects = [chunk for chunk in parts_of_source if chunk.number in failed]
        suspects = suspects or [chunk for chunk in parts_of_source if chunk.number not in completed]
        if not added or len(suspects) != 1:
            continue
        (repaired,) = suspects
        if repaired.stop is None or repaired.stop + added <= repaired.start:
            continue
        for chunk in parts_of_source:
            start = chunk.start + added * (chunk.number > repaired.number)
            stop = None if chunk.stop is None else chunk.stop + added * (chunk.number >= repaired.number)
            adjusted[chunk.number] = replace(chunk, start=start, stop=stop)
    return adjusted


def hash_chunks(chunks: Sequence[Chunk]) -> str:
    """Return a hash of the number of chunks of each source, and of which sources share a chunk."""
    sources = np.array([(chunk.first, chunk.after) for chunk in chunks], dtype="<i8")
    return hashlib.blake2b(sources.tobytes(), digest_size=8).hexdigest()


def read_chunk(sources: Sequence[Source], chunk: Chunk, limit: int | None = None) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a chunk with the numbers of their sources, at most `limit`.

    For many single-document sources, the number is that of the first.

    Raises:
        CorpusError: A source cannot be read, or has changed since the corpus was listed.
    """
    is_aggregated = (
        sum(sources[number].is_single_document for number in range(chunk.first, chunk.after)) > MAX_TRACKED_FILES
    )
    remaining = limit
    for number in range(chunk.first, chunk.after):
        source = sources[number]
        for document in _read_source(source, chunk):
            yield chunk.first if is_aggregated and source.is_single_document else number, document
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    break
        source.check_unchanged()
        if remaining == 0:
            return


def _read_source(source: Source, chunk: Chunk) -> Iterator[Document]:
    is_part = chunk.start > 0 or chunk.stop is not None
    try:
        yield from source.read(chunk.start, chunk.stop) if is_part else source.read()
    except CorpusError as error:
        # A file that was modified meanwhile looks damaged: report the modification instead.
        try:
            source.check_unchanged()
        except CorpusError as changed:
            raise changed from error
        raise


def _find_cuts(sources: Sequence[Source], large: Sequence[int], size: ChunkSize) -> dict[int, list[int]]:
    """Return where the parts of large splittable sources begin, by source number."""
    cuts, requests = dict[int, list[int]](), list[int]()
    for number in large:
        source = sources[number]
        if source.is_splittable and (source.has_row_groups or source.path.startswith(("http:", "https:"))):
            requests.append(number)
        elif source.is_splittable:
            cuts[number] = _cut_bytes(source, size)
    if requests:
        with ThreadPoolExecutor(THREADS) as pool:
            answers = pool.map(lambda number: _find_remote_cuts(sources[number], size), requests)
            cuts.update(zip(requests, answers, strict=True))
    return cuts


def _find_remote_cuts(source: Source, size: ChunkSize) -> list[int]:
    """Return where the parts of a source begin, if its storage or footer has to be read for that."""
    try:
        if source.has_row_groups:
            return _cut_rows(count_rows(source.path), size)
        return _cut_bytes(source, size) if can_read_parts(source.path) else [0]
    except CorpusError:  # raised again when the source is read, so that other chunks are still counted
        return [0]


def _cut_bytes(source: Source, size: ChunkSize) -> list[int]:
    """Return where byte ranges of the chunk size begin; a remainder of less than half belongs to the last range."""
    count, remainder = divmod(source.stamp.size if source.stamp is not None else 0, size.bytes)
    return [k * size.bytes for k in range(max(1, count + (2 * remainder >= size.bytes)))]


def _cut_rows(rows: Sequence[int], size: ChunkSize) -> list[int]:
    """Return which row groups begin chunks."""
    cuts, documents = [0], 0
    for group, count in enumerate(rows):
        if documents >= size.documents:
            cuts.append(group)
            documents = 0
        documents += count
    return cuts

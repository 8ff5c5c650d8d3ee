"""State of a run: partial sums, statistics of the documents in them, and which chunks these are.

This is all that a checkpoint keeps and all that a worker sends: states of different chunks of one study add.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from headscope.corpus.document import Document
from headscope.corpus.lines import resolve_line_numbers
from headscope.errors import Changed, CorpusError
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally

if TYPE_CHECKING:
    from headscope.corpus.chunks import Chunk
    from headscope.corpus.documents import Corpus

EXCERPTS = 3
EXCERPT_LENGTH = 160
HASH_MODULUS = 2**128
"""Content hashes are added modulo this number, so that a sum is the same for the same documents in any order."""

Position = tuple[int, int]
"""chunk, number of the document in it"""


def hash_document(document: Document) -> int:
    """Return a document's content hash, which is also that of its labelled relations if it has any."""
    content = document.content
    if document.relations:
        content += b"\xff" + repr([tuple(row) for row in document.relations]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")


@dataclass(slots=True)
class CorpusStats:
    """What the manifest says of the documents read. Statistics of different documents add."""

    documents: int = 0
    content: int = 0
    """sum of the content hashes"""
    skipped: dict[str, int] = field(default_factory=dict)
    """documents without windows, by reason"""
    excerpts: dict[Position, dict[str, str]] = field(default_factory=dict)
    """the beginnings of the first documents, by their position in the corpus"""
    sources: dict[int, tuple[int, int]] = field(default_factory=dict)
    """documents and the sum of their hashes, by source"""

    def add_document(self, document: Document, source: int) -> None:
        """Count one document."""
        content = hash_document(document)
        self.documents += 1
        self.content = (self.content + content) % HASH_MODULUS
        self._add_source(source, 1, content)

    def add_excerpt(self, position: Position, document: Document) -> None:
        """Keep the beginning of a document if it is one of the first."""
        if len(self.excerpts) < EXCERPTS:
            self.excerpts[position] = {"name": document.name, "text": document.excerpt[:EXCERPT_LENGTH]}

    def add_skipped(self, reason: str, documents: int = 1) -> None:
        """Count documents that have no windows."""
        self.skipped[reason] = self.skipped.get(reason, 0) + documents

    def add(self, other: CorpusStats) -> None:
        """Add the statistics of other documents."""
        self.documents += other.documents
        self.content = (self.content + other.content) % HASH_MODULUS
        for reason, documents in other.skipped.items():
            self.add_skipped(reason, documents)
        for source, (documents, content) in other.sources.items():
            self._add_source(source, documents, content)
        if other.excerpts:
            self.excerpts = dict(sorted({**self.excerpts, **other.excerpts}.items())[:EXCERPTS])

    def _add_source(self, source: int, documents: int, content: int) -> None:
        before = self.sources.get(source, (0, 0))
        self.sources[source] = (before[0] + documents, (before[1] + content) % HASH_MODULUS)

    def describe_skipped(self) -> str:
        """Return the numbers of skipped documents by reason, as the end of a sentence."""
        return "".join(f", {count} {reason}" for reason, count in sorted(self.skipped.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON can hold them."""
        return {
            "documents": self.documents,
            "content": f"{self.content:x}",
            "skipped": dict(self.skipped),
            "excerpts": [[*position, excerpt] for position, excerpt in self.excerpts.items()],
            "sources": [[number, count, f"{content:x}"] for number, (count, content) in self.sources.items()],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CorpusStats:
        """Return the statistics that `to_json` described."""
        return cls(
            documents=int(values["documents"]),
            content=int(values["content"], 16),
            skipped={str(reason): int(count) for reason, count in values["skipped"].items()},
            excerpts={
                (int(chunk), int(number)): {str(name): str(words) for name, words in excerpt.items()}
                for chunk, number, excerpt in values["excerpts"]
            },
            sources={int(number): (int(count), int(content, 16)) for number, count, content in values["sources"]},
        )


class ChunkProgress(NamedTuple):
    """How much of a chunk is counted that is not complete: its first documents, and the sum of their hashes."""

    documents: int
    content: int


@dataclass
class RunState:
    """Partial sums over some chunks."""

    sums: Tally
    stats: CorpusStats = field(default_factory=CorpusStats)
    completed: set[int] = field(default_factory=set)
    """numbers of the chunks that are counted completely"""
    in_progress: dict[int, ChunkProgress] = field(default_factory=dict)
    """what is counted of other chunks"""
    versions: dict[int, str] = field(default_factory=dict)
    """versions of the files read, by the number of the first source of their chunk"""
    failed: set[int] = field(default_factory=set)
    """numbers of the chunks that could not be read"""
    chunks: list[Chunk] = field(default_factory=list)
    """the whole corpus in chunks; a worker has no need of it"""
    source_sizes: list[int] = field(default_factory=list)
    """bytes of all sources when they were cut into these chunks; -1 where they are not known"""
    skips_broken: bool = False
    """whether any run was told to skip broken documents"""
    batch_size: int = 0
    """texts per batch; smaller than planned after running out of memory"""
    batch_size_note: str = ""
    kernels: dict[str, str] = field(default_factory=dict)
    """names of the kernels used, and why no faster one was"""
    devices: set[str] = field(default_factory=set)
    tf32: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """where the time went, over all runs and workers"""
    runs: int = 1
    """how often the study was started or resumed"""

    @classmethod
    def empty(cls, shape: Shape) -> RunState:
        """Return the state of a study of which nothing is counted."""
        return cls(Tally.zeros(shape))

    @property
    def texts(self) -> int:
        """Number of windows counted."""
        return int(self.sums["texts"].sum())

    def add(self, other: RunState) -> None:
        """Add the sums of other chunks, or of later sections of the same ones.

        Raises:
            ValueError: A chunk or section of `other` was counted already. Nothing is changed then.
        """
        repeated = self.completed & (other.completed | other.in_progress.keys())
        repeated |= {
            number
            for number, progress in other.in_progress.items()
            if number in self.in_progress and progress.documents <= self.in_progress[number].documents
        }
        if repeated:
            raise ValueError(f"chunk {min(repeated)} was counted before")
        self.sums.add(other.sums)
        self.stats.add(other.stats)
        self.in_progress.update(other.in_progress)
        self.completed |= other.completed
        self.failed -= other.completed
        for number in other.completed:
            self.in_progress.pop(number, None)
        self.batch_size = min(self.batch_size or other.batch_size, other.batch_size or self.batch_size)
        self.batch_size_note = other.batch_size_note or self.batch_size_note
        self.kernels.update(other.kernels)
        self.devices |= other.devices
        self.tf32 |= other.tf32
        for stage, seconds in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def to_json(self) -> dict[str, Any]:
        """Return everything but the sums and the chunks, as JSON can hold it."""
        return {
            "stats": self.stats.to_json(),
            "completed": list_ranges(self.completed),
            "in_progress": [[number, done.documents, f"{done.content:x}"] for number, done in self.in_progress.items()],
            "versions": list(self.versions.items()),
            "failed": sorted(self.failed),
            "skips_broken": self.skips_broken,
            "batch_size": self.batch_size,
            "batch_size_note": self.batch_size_note,
            "kernels": self.kernels,
            "devices": sorted(self.devices),
            "tf32": self.tf32,
            "seconds": self.seconds,
            "runs": self.runs,
        }

    @classmethod
    def from_json(cls, sums: Tally, values: dict[str, Any]) -> RunState:
        """Return the state that `to_json` described."""
        return cls(
            sums,
            stats=CorpusStats.from_json(values["stats"]),
            completed=expand_ranges(values["completed"]),
            in_progress={
                int(number): ChunkProgress(int(documents), int(content, 16))
                for number, documents, content in values["in_progress"]
            },
            versions={int(source): str(version) for source, version in values["versions"]},
            failed={int(number) for number in values["failed"]},
            skips_broken=bool(values["skips_broken"]),
            batch_size=int(values["batch_size"]),
            batch_size_note=str(values["batch_size_note"]),
            kernels={str(name): str(note) for name, note in values["kernels"].items()},
            devices={str(name) for name in values["devices"]},
            tf32=bool(values["tf32"]),
            seconds={str(stage): float(seconds) for stage, seconds in values["seconds"].items()},
            runs=int(values["runs"]),
        )


def list_ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Return numbers as ranges: first, and the one after the last.

    >>> list_ranges({3, 0, 1, 6})
    [[0, 2], [3, 4], [6, 7]]
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges


MAX_CHUNK_NUMBER = 10_000_000
"""more than any plan has; a damaged checkpoint must not fill the memory"""


def expand_ranges(ranges: list[list[int]]) -> set[int]:
    """Return the numbers that `list_ranges` described."""
    numbers: set[int] = set()
    for first, after in ranges:
        if not 0 <= int(first) < int(after) <= MAX_CHUNK_NUMBER:
            raise ValueError(f"not a range of chunks: {first}, {after}")
        numbers.update(range(int(first), int(after)))
    return numbers


@dataclass
class StageClock:
    """Seconds by stage, measured with a monotonic clock."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to a stage."""
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now

    def restart(self) -> None:
        """Leave out the time since the last lap."""
        self.last = time.monotonic()

    def pop_seconds(self) -> dict[str, float]:
        """Return the seconds by stage, and start again from zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def get_rounded(self) -> dict[str, float]:
        """Return the seconds by stage, to the millisecond."""
        return {stage: round(seconds, 3) for stage, seconds in self.seconds.items()}


def get_version(corpus: Corpus, chunk: Chunk) -> str:
    """Return a digest of the sizes and versions of the files of a chunk; empty where one of them has none."""
    stamps = [source.stamp for source in corpus.sources[chunk.first : chunk.after]]
    if any(stamp is None for stamp in stamps):
        return ""
    return hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()


def record_versions(corpus: Corpus, partial: RunState, state: RunState) -> None:
    """Remember which versions of the files the chunks of a partial result were read from."""
    for number in partial.completed | partial.in_progress.keys():
        chunk = state.chunks[number]
        if chunk.first not in state.versions:
            state.versions[chunk.first] = get_version(corpus, chunk)


def verify_unchanged(corpus: Corpus, state: RunState) -> None:
    """Refuse texts that are not the ones counted before.

    Files of the same size and version are trusted. Of others, everything that was counted is read again and compared
    by its content hash. Chunks that are not complete are compared when they are resumed, because they are read anyway.

    Raises:
        Changed: A document is not the one that was counted.
        CorpusError: A document that was counted cannot be read any more.
    """
    counted = sorted(state.completed | state.in_progress.keys())
    changed = [
        chunk
        for chunk in (state.chunks[number] for number in counted)
        if not (version := get_version(corpus, chunk)) or version != state.versions.get(chunk.first)
    ]
    if not any(chunk.number in state.completed for chunk in changed):
        for chunk in changed:  # the version from which it is resumed is recorded again
            state.versions.pop(chunk.first, None)
        return
    stats = CorpusStats()
    try:
        for chunk in changed:
            done = state.in_progress.get(chunk.number)
            for source, document in islice(corpus.read_chunk(chunk), None if done is None else done.documents):
                stats.add_document(document, source)
    except CorpusError as error:
        raise CorpusError(resolve_line_numbers(str(error))) from None
    for chunk in changed:
        for source in range(chunk.first, chunk.after):
            if stats.sources.get(source) != state.stats.sources.get(source):
                raise make_changed_error(corpus, chunk)
        if version := get_version(corpus, chunk):
            state.versions[chunk.first] = version


def make_changed_error(corpus: Corpus, chunk: Chunk) -> Changed:
    """Return the error for texts that are not the ones counted before."""
    sources = corpus.sources[chunk.first : chunk.after]
    dated = [source for source in sources if source.stamp is not None and source.stamp.version.isdecimal()]
    named = max(dated, key=lambda source: int(source.stamp.version if source.stamp else 0), default=sources[0]).name
    others = f" or one of {len(sources) - 1:,} files read with it" if len(sources) > 1 else ""
    return Changed(
        f"{named}{others}: not the texts that were counted before: they changed since this study began. Restore them, "
        "choose another folder with --output, or start again with --overwrite"
    )

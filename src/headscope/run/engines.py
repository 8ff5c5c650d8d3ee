"""Where chunks are counted: engines, the shares of several jobs, and the queue for the workers of a cluster.

Shares of a corpus: a study in parts, for instance by the jobs of a job array, which `Study.merge` joins.

Queue of the chunks still to be counted, and the tasks made from them. Independent of Ray.

A task holds several chunks, so that sums travel about twice a minute. Tasks become smaller towards the end, so that all
workers finish at about the same time. Chunks of a task that failed are tried again one by one, elsewhere if possible:
the one that is to blame fails again, and the others are counted.

A chunk that takes longer than a task (a compressed file, which can only be read from its beginning) returns to the
worker that counted the first part of it, because that has the file open at the right place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headscope.corpus.chunks import Chunk
from headscope.errors import StudyError
from headscope.run.state import ChunkProgress, RunState

ENGINES = ("local", "ray")
MAX_WORKERS = 100_000
WORKER_TIMEOUT = 900.0
"""seconds after which a worker of a cluster that returns no result is replaced"""

OnProgress = Callable[[int, int], None]
"""called with the texts and documents that an engine has counted and not yielded yet"""


def check_engine(engine: str, workers: int | None, address: str | None, worker_timeout: float = WORKER_TIMEOUT) -> None:
    """Refuse an unknown engine, and options that are for another one."""
    if engine not in ENGINES:
        raise StudyError(f"unknown engine {engine!r}; there are: {', '.join(ENGINES)}")
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise StudyError(f"workers is {workers}: from 1 to {MAX_WORKERS:,}")
    if not worker_timeout > 0:
        raise StudyError(f"worker_timeout is {worker_timeout} seconds: more than 0")
    if engine == "local" and (workers is not None or address is not None):
        raise StudyError("workers and an address are for a cluster: say --engine ray")


@dataclass
class PartialResult:
    """Sums of some chunks, and the chunks that cannot be read, with the reason."""

    state: RunState
    errors: dict[int, str] = field(default_factory=dict)


class Engine(Protocol):
    """Count chunks, and yield partial results in any order."""

    def count(
        self,
        chunks: Sequence[Chunk],
        in_progress: Mapping[int, ChunkProgress],
        on_progress: OnProgress,
        check: Callable[[], None],
    ) -> Generator[PartialResult]:
        """Count chunks.

        Args:
            chunks: What to count. A chunk is in one partial result, or its sections are in several, in their order.
            in_progress: What earlier runs counted of some of these chunks.
            on_progress: Called now and then, between partial results.
            check: Called while waiting; raises if the user wants to stop.
        """


WHOLE = "all"
MAX_SHARES = 1_000_000
Share = tuple[int, int]
"""which share of the chunks, from 1, and how many there are"""


def parse_share(text: str) -> Share:
    """Return a share from its notation.

    >>> parse_share("3/16")
    (3, 16)
    """
    number, slash, total = text.partition("/")
    is_number = slash and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in (number, total))
    if not (is_number and 1 <= int(number) <= int(total) <= MAX_SHARES):
        raise StudyError(f"share is {text!r}: write NUMBER/TOTAL, for instance 3/16 for the third of sixteen")
    return int(number), int(total)


def check_limit(share: Share | None, limit: int | None) -> None:
    """Refuse a share of the first documents of a corpus: these are one chunk, which cannot be shared."""
    if share is not None and limit is not None:
        raise StudyError("a share is of a whole corpus: leave --limit out, or --share")


def format_share(share: Share | None) -> str:
    """Return the notation of a share; "all" without one."""
    return WHOLE if share is None else f"{share[0]}/{share[1]}"


def parse_shares(text: str) -> list[Share]:
    """Return the shares in a study, from the notation in its manifest; none for one of the whole corpus."""
    return [] if text == WHOLE else [parse_share(part) for part in text.split(",")]


def format_shares(shares: Iterable[Share]) -> str:
    """Return the notation of the shares of a study; "all" where no share is missing.

    >>> format_shares([(3, 3), (1, 3)]), format_shares([(2, 2), (1, 2)])
    ('1/3,3/3', 'all')
    """
    ordered = sorted(shares)
    return WHOLE if not ordered or len(ordered) == ordered[0][1] else ",".join(map(format_share, ordered))


TASK_SECONDS, MIN_TASK_SECONDS = 30.0, 10.0
"""A task takes about so long; towards the end of a study less."""
RETRY_SECONDS = (10.0, 60.0)
"""How long a chunk waits after it failed by itself, for the first time and for the second: storage or a network may be
gone for a moment."""
MAX_ATTEMPTS = len(RETRY_SECONDS) + 1
"""times that a chunk may fail by itself"""
MAX_LOSSES = 10
"""times that a node may leave while it counts a chunk: more often, the chunk may be the reason"""
TASKS_PER_WORKER = 2
"""in flight: the next one waits at the worker, so that the worker never waits for the driver"""


@dataclass(frozen=True)
class Task:
    """Chunks that one worker counts."""

    chunks: tuple[Chunk, ...]
    in_progress: Mapping[int, ChunkProgress]
    """what is counted of them already"""
    seconds: float
    """the worker returns what it has at the first opportunity after so long"""
    number: int = 0
    """how many tasks there were before"""


class ChunkQueue:
    """The chunks of a run that no worker has completed."""

    def __init__(
        self,
        chunks: Iterable[Chunk],
        in_progress: Mapping[int, ChunkProgress],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._waiting = deque(chunks)
        self._in_progress = dict(in_progress)
        self._owners: dict[int, object] = {}
        """the workers that counted a part of a chunk, and have it open"""
        self._failures: dict[int, list[str]] = {}
        """the nodes on which a task with a chunk failed"""
        self._attempts: dict[int, int] = {}
        self._losses: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        """when chunks that failed may be tried again"""
        self._running = self._taken = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do or to wait for."""
        return not self._waiting and not self._running

    @property
    def is_drained(self) -> bool:
        """Whether no chunk waits for a worker."""
        return not self._waiting

    def take(
        self, worker: object, seconds_per_chunk: float | None, workers: int, can_run: Callable[[list[str]], bool]
    ) -> Task | None:
        """Return the next task for a worker, or None if there is none for it.

        Args:
            worker: The worker; any object that is the same for the same worker.
            seconds_per_chunk: How long this worker takes for a chunk; None if that is not known yet.
            workers: Number of workers.
            can_run: Whether this worker should get a chunk that failed on these nodes.
        """
        now = self._clock()
        first = next(
            (
                chunk
                for chunk in self._waiting
                if self._owners.get(chunk.number, worker) is worker
                and self._not_before.get(chunk.number, now) <= now
                and can_run(self._failures.get(chunk.number, []))
            ),
            None,
        )
        if first is None:
            return None
        self._waiting.remove(first)
        chunks = [first]
        if not self._should_run_alone(first):
            largest = 1 if not seconds_per_chunk else max(1, int(TASK_SECONDS / seconds_per_chunk))
            smallest = 1 if not seconds_per_chunk else max(1, int(MIN_TASK_SECONDS / seconds_per_chunk))
            fair = -(-(len(self._waiting) + 1) // (TASKS_PER_WORKER * max(1, workers)))
            size = min(largest, max(smallest, fair))
            while len(chunks) < size and self._waiting and not self._should_run_alone(self._waiting[0]):
                chunks.append(self._waiting.popleft())
        self._running += 1
        self._taken += 1
        return Task(
            tuple(chunks),
            {chunk.number: self._in_progress[chunk.number] for chunk in chunks if chunk.number in self._in_progress},
            TASK_SECONDS,
            self._taken,
        )

    def finish(
        self, worker: object | None, task: Task, done: Iterable[int], in_progress: Mapping[int, ChunkProgress]
    ) -> None:
        """Record what a worker counted. Chunks that it did not complete wait again.

        Args:
            worker: The worker; None if it is gone.
            done: Chunks that are complete, or cannot be read.
            in_progress: What is counted of chunks that are not complete.
        """
        self._running -= 1
        finished = set(done)
        for chunk in reversed(task.chunks):
            number = chunk.number
            if number in finished:
                self._in_progress.pop(number, None)
                self._owners.pop(number, None)
                continue
            self._waiting.appendleft(chunk)
            if number in in_progress:
                self._in_progress[number] = in_progress[number]
                for failures in (self._failures, self._attempts, self._losses):  # it can be counted after all
                    failures.pop(number, None)
                if worker is not None:
                    self._owners[number] = worker

    def release(self, worker: object) -> None:
        """Let other workers have the chunks that a worker counted in part: it is gone."""
        self._owners = {number: owner for number, owner in self._owners.items() if owner is not worker}

    def retry(self, task: Task, node: str, *, failed: bool = False, node_lost: bool = False) -> Chunk | None:
        """Have the chunks of a task wait again; return one that failed too often, if there is one.

        Args:
            failed: The task failed, and one of its chunks may be the reason.
            node_lost: Its node left the cluster while it ran.
        """
        self._running -= 1
        # At the end of the queue: what is sound is counted first.
        self._waiting.extend(task.chunks)
        for chunk in task.chunks:
            if node_lost:
                self._losses[chunk.number] = self._losses.get(chunk.number, 0) + 1
            if failed:
                self._failures.setdefault(chunk.number, []).append(node)
        if len(task.chunks) > 1:
            return None
        (chunk,) = task.chunks
        if failed:
            self._attempts[chunk.number] = attempts = self._attempts.get(chunk.number, 0) + 1
            if attempts >= MAX_ATTEMPTS:
                return chunk
            self._not_before[chunk.number] = self._clock() + RETRY_SECONDS[attempts - 1]
        return chunk if self._losses.get(chunk.number, 0) >= MAX_LOSSES else None

    def _should_run_alone(self, chunk: Chunk) -> bool:
        number = chunk.number
        return number in self._failures or number in self._in_progress or self._losses.get(number, 0) > 1

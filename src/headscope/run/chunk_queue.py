"""Queue of the chunks still to be counted, and the tasks made from them. Independent of Ray.

A task holds several chunks, so that sums travel about twice a minute. Tasks become smaller towards the end, so that all
workers finish at about the same time. Chunks of a task that failed are tried again one by one, elsewhere if possible:
the one that is to blame fails again, and the others are counted.

A chunk that takes longer than a task (a compressed file, which can only be read from its beginning) returns to the
worker that counted the first part of it, because that has the file open at the right place.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headscope.corpus.chunks import Chunk
from headscope.run.state import ChunkProgress

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

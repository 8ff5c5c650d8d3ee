"""Engines: where chunks are counted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
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

"""Ray actor that counts chunks, and the function that adds results on a node."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import ModelError
from headscope.run.engines import PartialResult

if TYPE_CHECKING:  # processes that only add sums start without torch
    from headscope.corpus.chunks import SourceSubset
    from headscope.corpus.documents import Corpus
    from headscope.model.model import Model
    from headscope.run.engines import Task
    from headscope.run.local_engine import LocalEngine
    from headscope.run.plan import RunPlan
    from headscope.run.state import ChunkProgress

MAX_OVERRUN = 2
"""A task of several chunks may take so many times longer than planned before it is cut short."""


@dataclass
class TaskResult(PartialResult):
    """Sums of the chunks of one task, or of several tasks."""

    seconds: tuple[float, ...] = ()
    """time that each task took"""
    processes: tuple[str, ...] = ()
    """which process counted it"""


@cache
def hash_package() -> str:
    """Return a digest of the code of headscope on this machine."""
    folder, digest = Path(__file__).parent.parent, hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Versions:
    """What must be the same on all nodes."""

    weights: str
    code: str

    @classmethod
    def of(cls, model: Model) -> Versions:
        """Return the versions on this node."""
        return cls(model.weight_hash, hash_package())

    def check(self, model: Model) -> None:
        """Refuse to count with other weights or other code than the driver has.

        Raises:
            ModelError: They differ.
        """
        here, node = Versions.of(model), socket.gethostname()
        if here.code != self.code:
            raise ModelError(f"{node} has another version of headscope than the driver: install the same on all nodes")
        if here.weights != self.weights:
            raise ModelError(
                f"{model.name}: {node} has other weights under this name ({here.weights[:12]}…, on the driver "
                f"{self.weights[:12]}…): put the same files on all nodes"
            )


class ChunkWorker:
    """Hold a model and count chunks with it.

    The model is loaded by the first call and not on construction: Ray would take an error there for a crash, start the
    worker again, and keep no more of the error than its text. A worker that Ray restarts loads its model again.

    Args:
        origin: The arguments of `headscope.load`.
        versions: Those of the driver. A worker that Ray restarts may find other files than before.
        corpus: The corpus without its sources; every task brings its own.
        folder: Where the command was given. Relative names of files are relative to it.
    """

    def __init__(
        self, origin: dict[str, Any], versions: Versions, corpus: Corpus, plan: RunPlan, threads: int, folder: str
    ) -> None:
        self.origin, self.versions, self.threads = origin, versions, threads
        self.corpus, self.plan = corpus, plan
        self.engine: LocalEngine | None = None
        self.open_chunks: dict[int, tuple[ChunkProgress, Generator[PartialResult]]] = {}
        """chunks that are counted in part, how far, and what counts the rest of them"""
        self.process = secrets.token_hex(8)
        with suppress(OSError):  # not every node has such a folder
            os.chdir(folder)

    def get_process(self) -> str:
        """Return a name of this process: it runs. If Ray restarts the worker, the name is another one."""
        return self.process

    def load(self) -> None:
        """Load the model."""
        self.get_engine()

    def get_engine(self) -> LocalEngine:
        """Return the engine of this process, with its model.

        Raises:
            ModelError: The model cannot be loaded, or is not that of the driver.
        """
        import torch

        from headscope.model.loading import load
        from headscope.run.local_engine import LocalEngine

        if self.engine is None:
            torch.set_num_threads(self.threads)
            model = load(**self.origin)
            self.versions.check(model)
            self.engine = LocalEngine(model, self.corpus, self.plan)
        return self.engine

    def count(self, task: Task, sources: SourceSubset) -> TaskResult:
        """Count the chunks of a task, or as much of them as can be counted in its time."""
        started = time.monotonic()
        # A single chunk can be left in the middle, and is continued. Of several, what was read ahead would be lost.
        limit = task.seconds if len(task.chunks) == 1 else MAX_OVERRUN * task.seconds
        results = self._open(task, sources)
        total = next(results)
        try:
            while time.monotonic() - started <= limit:
                partial = next(results)
                total.state.add(partial.state)
                total.errors.update(partial.errors)
        except StopIteration:
            pass
        self._keep_open(task, total, results)
        seconds = time.monotonic() - started
        return TaskResult(total.state, total.errors, (seconds,), (self.process,))

    def _open(self, task: Task, sources: SourceSubset) -> Generator[PartialResult]:
        """Return what counts the chunks of a task. It continues where the task before stopped in the same chunk."""
        engine, number = self.get_engine(), task.chunks[0].number
        progress, results = self.open_chunks.pop(number, (None, None))
        if results is not None:
            if len(task.chunks) == 1 and task.in_progress.get(number) == progress:
                engine.clock.restart()
                return results
            results.close()
        engine.corpus = replace(self.corpus, sources=sources)
        return engine.count(task.chunks, task.in_progress)

    def _keep_open(self, task: Task, total: PartialResult, results: Generator[PartialResult]) -> None:
        """Keep a chunk open that is counted in part, unless others follow it, which other workers may count."""
        number = task.chunks[0].number
        if len(task.chunks) == 1 and number in total.state.in_progress and number not in total.errors:
            self.open_chunks[number] = total.state.in_progress[number], results
        else:
            results.close()


def add_results(*results: TaskResult) -> TaskResult:
    """Add the sums of workers on the same node, so that the driver gets them as one."""
    first = results[0].state
    state = type(first).empty(first.sums.shape)
    errors: dict[int, str] = {}
    for result in results:
        state.add(result.state)
        errors.update(result.errors)
    seconds = tuple(seconds for result in results for seconds in result.seconds)
    processes = tuple(process for result in results for process in result.processes)
    return TaskResult(state, errors, seconds, processes)

"""Count chunks on a Ray cluster.

Every worker is a Ray actor on a fixed node, which holds the model and reads its chunks itself. Ray restarts a worker
that dies, and runs its tasks again. A task that fails for good (its node is gone, it fails again, or it hangs) goes
back to the queue and to another worker. A chunk counts when the driver has added its sums and recorded its number; a
result that never arrives has no effect, so no chunk is counted twice.

The sums of workers on the same node are added there, and reach the driver as one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any

from headscope.corpus.chunks import Chunk, SourceSubset
from headscope.corpus.documents import Corpus
from headscope.errors import Changed, HeadscopeError, ModelError, StudyError
from headscope.model.model import Model
from headscope.run.engines import (
    MAX_LOSSES,
    TASKS_PER_WORKER,
    WORKER_TIMEOUT,
    ChunkQueue,
    OnProgress,
    PartialResult,
    Task,
)
from headscope.run.plan import RunPlan
from headscope.run.ray_cluster import Node, Placement, RayCluster, get_first_line, place_workers
from headscope.run.ray_worker import ChunkWorker, TaskResult, Versions, add_results
from headscope.run.state import ChunkProgress

TASK_RETRIES = 2
"""how often Ray runs a task again whose worker died"""
MAX_STARTS = 3
"""times in a row that the model may fail to load on a node"""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 120.0
"""How long a node on which a second task in a row failed gets nothing to do; twice as long after each other one."""
NODE_SCAN_SECONDS = 10.0
"""how often to look for new nodes"""
REDUCE_SECONDS = 30.0
"""how long sums wait on a node for those of its other workers"""
WAIT_MESSAGE_SECONDS = 30.0
"""how long no worker may be running before the user is told, and told again"""
LOOP_SECONDS = 5.0
"""The driver looks at its workers at least so often, unless something else keeps it busy."""
MAX_NODES_NAMED = 3
"""in a message"""
MAX_SLOWDOWN = 4
"""A worker hangs only if it takes so many times longer than the slowest task so far."""


class WorkerStatus(Enum):
    """How far a worker is."""

    PENDING = auto()
    """Ray has not started its process: it may wait for free cores"""
    LOADING = auto()
    """it loads the model"""
    READY = auto()


@dataclass(eq=False)
class Worker:
    """A worker as the driver knows it."""

    actor: Any
    placement: Placement
    startup: Any
    """reference to the call that ends the present status; None: it is ready"""
    status: WorkerStatus = WorkerStatus.PENDING
    tasks: dict[Any, Task] = field(default_factory=dict)
    process: str = ""
    last_result: float = field(default_factory=time.monotonic)
    seconds_per_chunk: float | None = None

    @property
    def node(self) -> Node:
        """The node it is on."""
        return self.placement.node

    @property
    def is_busy(self) -> bool:
        """Whether a result is expected of it."""
        return self.status is WorkerStatus.LOADING or bool(self.tasks)


@dataclass
class NodeHealth:
    """What failed on a node since a task succeeded there."""

    failures: int = 0
    failed_starts: int = 0

    @property
    def pause(self) -> float:
        """Seconds until a worker is started there again."""
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.failures - 2)) if self.failures > 1 else 0.0


@dataclass
class NodeResults:
    """Results that wait on a node until they are added there."""

    results: list[tuple[Worker, Any, Task]] = field(default_factory=list)
    since: float = 0.0


class RayEngine:
    """Count chunks on a cluster.

    Args:
        workers: How many; by default one for each GPU or node, also for those that join later.
        timeout: Seconds after which a worker that returns no result is replaced.
        on_message: Called with messages for the user.
    """

    def __init__(
        self,
        cluster: RayCluster,
        model: Model,
        corpus: Corpus,
        plan: RunPlan,
        *,
        workers: int | None = None,
        timeout: float = WORKER_TIMEOUT,
        on_message: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.cluster, self.ray = cluster, cluster.ray
        self.model, self.corpus, self.plan = model, corpus, plan
        self.requested_workers, self.timeout, self.on_message = workers, timeout, on_message

    def count(
        self,
        chunks: Sequence[Chunk],
        in_progress: Mapping[int, ChunkProgress],
        on_progress: OnProgress = lambda texts, documents: None,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[PartialResult]:
        """Count chunks in any order; see `Engine`."""
        if not chunks:
            return
        self.queue = ChunkQueue(chunks, in_progress, time.monotonic)
        with self._start_workers():
            while not self.queue.is_done:
                check()
                self._adjust_workers()
                self._restart_workers()
                self._submit_tasks()
                self._replace_hung_workers()
                yield from self._collect_results()

    # Workers

    @contextmanager
    def _start_workers(self) -> Iterator[None]:
        self.workers: list[Worker] = []
        self.reducing: dict[Any, list[tuple[Worker, Any, Task]]] = {}
        self.node_results: dict[str, NodeResults] = {}
        self.health: dict[str, NodeHealth] = {}
        self.restarts: list[tuple[float, Placement]] = []
        """workers to start again, and when"""
        self.excluded_nodes: dict[str, HeadscopeError] = {}
        self.last_node_scan = self.last_wait_message = float("-inf")
        self.requested_from_cluster = 0
        self.slowest_task = 0.0
        self.last_hang_check = time.monotonic()
        self.versions = Versions.of(self.model)
        # Tasks bring the sources of their chunks: there may be hundreds of thousands in all.
        self.corpus_options = replace(self.corpus, sources=[])
        self.remote_worker = self.ray.remote(ChunkWorker)
        self.remote_add = self.ray.remote(num_cpus=0, max_retries=1)(add_results)
        try:
            yield
        finally:
            for worker in self.workers:
                with suppress(Exception):
                    self.ray.kill(worker.actor)
            if self.requested_from_cluster:
                with suppress(Exception):
                    self.cluster.request_workers(0)

    def _adjust_workers(self) -> None:
        """Start workers on nodes that have none, and forget those of nodes that are gone."""
        if time.monotonic() - self.last_node_scan < NODE_SCAN_SECONDS:
            return
        self.last_node_scan = time.monotonic()
        nodes = self.cluster.list_nodes()
        alive = {node.id for node in nodes}
        for worker in [worker for worker in self.workers if worker.node.id not in alive]:
            self._remove_lost_worker(worker)
        self.restarts = [(when, placement) for when, placement in self.restarts if placement.node.id in alive]
        occupied = {worker.node.id for worker in self.workers}
        occupied |= {placement.node.id for _, placement in self.restarts}
        free = [node for node in nodes if node.id not in occupied and node.id not in self.excluded_nodes]
        missing = (
            None if self.requested_workers is None else self.requested_workers - len(self.workers) - len(self.restarts)
        )
        placements = place_workers(free, missing, use_gpus=self.cluster.uses_gpus)
        for placement in placements:
            self._start_worker(placement)
        if placements:
            short = "" if not missing or len(placements) >= missing else f", of {self.requested_workers} requested"
            self.on_message(describe_workers([worker.placement for worker in self.workers]) + short)
        self._request_nodes()
        usable = [placement.node for placement in place_workers(nodes, None, use_gpus=self.cluster.uses_gpus)]
        if not occupied and not placements and usable and all(node.id in self.excluded_nodes for node in usable):
            raise self.excluded_nodes[usable[-1].id]
        self._report_waiting(just_started=bool(placements))

    def _report_waiting(self, *, just_started: bool) -> None:
        """Tell the user, every now and then, that no worker runs."""
        runs = any(worker.status is not WorkerStatus.PENDING for worker in self.workers)
        if just_started or runs or self.restarts:
            self.last_wait_message = time.monotonic()
        elif time.monotonic() - self.last_wait_message >= WAIT_MESSAGE_SECONDS:
            self.last_wait_message = time.monotonic()
            resource = "GPU" if self.cluster.uses_gpus else "core"
            if self.workers:
                names = ", ".join(sorted({worker.node.name for worker in self.workers})[:MAX_NODES_NAMED])
                self.on_message(f"no {resource} is free for a worker ({names}): waiting until others leave some")
            else:
                self.on_message(f"no node of the cluster has a {resource} for a worker: waiting for one")

    def _request_nodes(self) -> None:
        """Ask an autoscaling cluster for nodes."""
        present = len(self.workers) + len(self.restarts)
        total = self.requested_workers or max(1, present)
        if present < total and self.requested_from_cluster != total:
            self.requested_from_cluster = total
            with suppress(Exception):  # a cluster that cannot grow
                self.cluster.request_workers(total)

    def _restart_workers(self) -> None:
        """Start workers again whose time has come."""
        now = time.monotonic()
        due = [placement for when, placement in self.restarts if when <= now]
        self.restarts = [(when, placement) for when, placement in self.restarts if when > now]
        for placement in due:
            if placement.node.id not in self.excluded_nodes:
                self._start_worker(placement)

    def _start_worker(self, placement: Placement) -> None:
        origin = dict(self.model.origin or {})
        if placement.gpus:  # otherwise the worker chooses: on a Mac, `auto` is its GPU
            origin["device"] = "cuda"
        actor = self.remote_worker.options(
            num_cpus=placement.cpus,
            num_gpus=placement.gpus,
            max_restarts=-1,
            max_task_retries=TASK_RETRIES,
            scheduling_strategy=self.cluster.pin_to(placement.node.id),
        ).remote(origin, self.versions, self.corpus_options, self.plan, placement.threads, os.getcwd())
        self.workers.append(Worker(actor, placement, actor.get_process.remote()))

    def _remove_worker(self, worker: Worker) -> None:
        """End a worker for good. The caller decides what becomes of its tasks."""
        if worker in self.workers:
            self.workers.remove(worker)
        self.queue.release(worker)
        with suppress(Exception):
            self.ray.kill(worker.actor)

    def _remove_lost_worker(self, worker: Worker, task: Task | None = None) -> None:
        """Forget a worker whose node left the cluster; `task` is one that was taken from its tasks already."""
        self._remove_worker(worker)
        tasks = list_in_order(worker, task)
        worker.tasks.clear()
        self.on_message(f"{worker.node.name} left the cluster: what its worker had not returned is counted again")
        for number, lost in enumerate(tasks):  # only the first one was begun
            chunk = self.queue.retry(lost, worker.node.id, node_lost=number == 0)
            if chunk is not None:
                raise self._make_chunk_error(chunk, StudyError(f"{MAX_LOSSES} nodes left the cluster"))

    def _replace_hung_workers(self) -> None:
        limit = max(self.timeout, MAX_SLOWDOWN * self.slowest_task)
        # While the driver itself was busy, with a checkpoint on slow storage, results may have waited for it.
        now = time.monotonic()
        busy, self.last_hang_check = max(0.0, now - self.last_hang_check - LOOP_SECONDS), now
        for worker in list(self.workers):
            worker.last_result += busy
            if not worker.is_busy:
                worker.last_result = now
            elif now - worker.last_result > limit:
                error = StudyError(
                    f"it returned no result for {limit:,.0f} seconds; if it is only slow, choose a longer "
                    "--worker-timeout"
                )
                tasks = list_in_order(worker)
                self._replace_worker(worker, error, tasks, tasks[0] if tasks else None)

    def _replace_worker(
        self, worker: Worker, error: HeadscopeError, tasks: Sequence[Task], suspect: Task | None
    ) -> None:
        """Replace a worker that failed or hangs.

        Args:
            tasks: All tasks that it had.
            suspect: The one in which it failed.
        """
        self._remove_worker(worker)
        worker.tasks.clear()
        health = self.health.setdefault(worker.node.id, NodeHealth())
        health.failures += 1
        health.failed_starts += worker.status is not WorkerStatus.READY
        # Another try would not help against other weights, or a model that is not there.
        if isinstance(error, ModelError) or health.failed_starts >= MAX_STARTS:
            self._exclude(worker.node, error)
            suspect = None
        else:
            again = "Its chunks are counted again" if tasks else "It is started again"
            pause = f", after {health.pause:.0f} seconds" if health.pause else ""
            self.on_message(f"a worker on {worker.node.name} failed: {error}. {again}{pause}")
            self.restarts.append((time.monotonic() + health.pause, worker.placement))
        for task in tasks:
            self._retry(task, worker.node, error, failed=task is suspect)

    def _exclude(self, node: Node, error: HeadscopeError) -> None:
        if node.id not in self.excluded_nodes:
            self.excluded_nodes[node.id] = error
            self.on_message(f"{node.name} gets no more chunks: {error}")
        self.last_node_scan = float("-inf")

    def _retry(self, task: Task, node: Node, error: HeadscopeError, *, failed: bool) -> None:
        chunk = self.queue.retry(task, node.id, failed=failed)
        if chunk is not None:
            raise self._make_chunk_error(chunk, error)

    def _make_chunk_error(self, chunk: Chunk, error: HeadscopeError) -> HeadscopeError:
        names = [source.name for source in self.corpus.sources[chunk.first : chunk.after]]
        others = f" and {len(names) - 1:,} files read with it" if len(names) > 1 else ""
        part = f", from {chunk.start:,}" if chunk.start else ""
        return type(error)(f"{error} (in {names[0]}{others}{part}, on every worker that tried)")

    # Tasks

    def _submit_tasks(self) -> None:
        ready = [worker for worker in self.workers if worker.status is WorkerStatus.READY]
        nodes = {worker.node.id for worker in ready}
        # Round by round, so that every worker has a task before any has a second one.
        for count in range(TASKS_PER_WORKER):
            for worker in ready:
                if len(worker.tasks) > count:
                    continue
                if self.queue.is_drained:
                    return
                can_run = partial(_can_run, worker.node.id, nodes)
                task = self.queue.take(worker, worker.seconds_per_chunk, len(self.workers), can_run)
                if task is None:
                    continue
                if not worker.tasks:
                    worker.last_result = time.monotonic()
                sources = SourceSubset(self.corpus.sources, task.chunks)
                worker.tasks[worker.actor.count.remote(task, sources)] = task

    def _collect_results(self) -> Iterator[PartialResult]:
        """Wait for results for a moment; yield those that arrived."""
        references: dict[Any, Worker | None] = dict.fromkeys(self.reducing)
        counts = Counter(worker.node.id for worker in self.workers)
        for worker in self.workers:
            references |= dict.fromkeys(worker.tasks, worker)
            if worker.startup is not None:
                references[worker.startup] = worker
        if not references:
            yield from self._reduce_on_nodes(counts)
            time.sleep(0.2)
            return
        ready, _ = self.ray.wait(list(references), num_returns=len(references), timeout=0.0, fetch_local=False)
        if not ready:
            ready, _ = self.ray.wait(list(references), num_returns=1, timeout=1.0, fetch_local=False)
        for reference in ready:
            owner = references[reference]
            if owner is None:
                yield from self._collect_reduced(reference)
            elif owner not in self.workers:  # it was replaced meanwhile
                continue
            elif reference == owner.startup:
                self._advance_startup(owner, reference)
            elif counts[owner.node.id] > 1:
                self._queue_for_reduction(owner, reference, owner.tasks.pop(reference))
            else:
                yield from self._collect_result(owner, reference, owner.tasks.pop(reference))
        yield from self._reduce_on_nodes(counts)

    def _advance_startup(self, worker: Worker, reference: Any) -> None:
        """Have a worker load the model when its process runs; or use it when the model is loaded."""
        try:
            answer = self.ray.get(reference)
        except Exception as error:
            self._handle_failure(worker, error)
            return
        worker.last_result = time.monotonic()
        if worker.status is WorkerStatus.PENDING:
            worker.status, worker.process, worker.startup = WorkerStatus.LOADING, answer, worker.actor.load.remote()
            return
        worker.status, worker.startup = WorkerStatus.READY, None

    def _record_result(self, worker: Worker) -> None:
        """Remember when a worker returned a result, and how long that took."""
        now = time.monotonic()
        self.slowest_task = max(self.slowest_task, now - worker.last_result)
        worker.last_result = now

    def _queue_for_reduction(self, worker: Worker, reference: Any, task: Task) -> None:
        self._record_result(worker)
        waiting = self.node_results.setdefault(worker.node.id, NodeResults())
        if not waiting.results:
            waiting.since = time.monotonic()
        waiting.results.append((worker, reference, task))

    def _reduce_on_nodes(self, workers: Mapping[str, int]) -> Iterator[PartialResult]:
        """Have results added on their nodes: as many as a node has workers, or fewer after a while."""
        for node, waiting in self.node_results.items():
            is_late = time.monotonic() - waiting.since > REDUCE_SECONDS or self.queue.is_drained
            if not waiting.results or not (is_late or len(waiting.results) >= workers.get(node, 0)):
                continue
            results, waiting.results = waiting.results, []
            if len(results) == 1:
                yield from self._collect_result(*results[0])
                continue
            add = self.remote_add.options(scheduling_strategy=self.cluster.pin_to(node, soft=True))
            self.reducing[add.remote(*(result for _, result, _ in results))] = results

    def _collect_reduced(self, reference: Any) -> Iterator[PartialResult]:
        """Yield results that were added on a node; if that failed, yield them one by one."""
        results = self.reducing.pop(reference)
        try:
            total = self.ray.get(reference)
        except Exception:
            for worker, single, task in results:
                yield from self._collect_result(worker, single, task)
            return
        for number, (worker, _, task) in enumerate(results):
            self._finish_task(worker, task, total, number)
        yield total

    def _collect_result(self, worker: Worker, reference: Any, task: Task) -> Iterator[PartialResult]:
        try:
            result = self.ray.get(reference)
        except Exception as error:
            self._handle_failure(worker, error, task)
            return
        self._finish_task(worker, task, result, 0)
        yield result

    def _finish_task(self, worker: Worker, task: Task, result: TaskResult, number: int) -> None:
        self._record_result(worker)
        seconds, process = result.seconds[number], result.processes[number]
        if process != worker.process:
            self.on_message(f"a worker on {worker.node.name} was lost and restarted; its chunks were counted again")
            worker.process = process
        self.health.pop(worker.node.id, None)
        done = result.state.completed | result.errors.keys()
        counted = sum(chunk.number in done for chunk in task.chunks)
        if counted:
            worker.seconds_per_chunk = max(seconds / counted, 1e-3)
        self.queue.finish(worker if worker in self.workers else None, task, done, result.state.in_progress)

    def _handle_failure(self, worker: Worker, error: Exception, task: Task | None = None) -> None:
        """Give a task that failed to another worker; `None`: the worker could not be started."""
        exceptions = self.ray.exceptions
        if not isinstance(error, (exceptions.RayError, OSError)):
            raise error
        cause = error.cause if isinstance(error, exceptions.RayTaskError) else None
        if isinstance(cause, Changed):
            raise type(cause)(str(cause))
        if not any(node.id == worker.node.id for node in self.cluster.list_nodes()):
            if worker in self.workers:
                self._remove_lost_worker(worker, task)
            elif task is not None:
                self.queue.retry(task, worker.node.id)
            return
        reason = describe_failure(exceptions, error, cause)
        # An error is that of its task. A process that dies takes all tasks with it, of which the first one was begun.
        if worker in self.workers:
            tasks = list_in_order(worker, task)
            self._replace_worker(worker, reason, tasks, task if cause is not None else next(iter(tasks), None))
        elif task is not None:  # the worker was replaced after another task
            self._retry(task, worker.node, reason, failed=cause is not None)


def list_in_order(worker: Worker, task: Task | None = None) -> list[Task]:
    """Return the tasks of a worker, and one that was taken from them already, in the order in which they run."""
    return sorted([*worker.tasks.values(), *([] if task is None else [task])], key=lambda task: task.number)


def describe_failure(exceptions: Any, error: Exception, cause: Exception | None) -> HeadscopeError:
    """Return an error that says why a worker failed."""
    if isinstance(cause, HeadscopeError):
        return type(cause)(str(cause))
    if cause is not None:
        return StudyError(f"{type(cause).__name__}: {get_first_line(cause)}")
    if isinstance(error, exceptions.OutOfMemoryError):
        return StudyError("it ran out of memory")
    if isinstance(error, exceptions.RayActorError):
        return StudyError("its process died, perhaps for lack of memory")
    return StudyError(get_first_line(error))


def _can_run(node: str, nodes: set[str], failed_on: list[str]) -> bool:
    """Return whether a worker should get a chunk: not one that failed on its node, if there is another node."""
    return node not in failed_on or nodes <= set(failed_on)


def describe_workers(placements: Sequence[Placement]) -> str:
    """Return what workers get, in words, the smallest first: Ray lists its nodes in no fixed order.

    >>> nodes = [Node("b", "large", 64, 0), Node("a", "small", 8, 0)]
    >>> describe_workers(place_workers(nodes, None, use_gpus=False))
    '2 workers: 1 with 8 cores, 1 with 64 cores'
    """
    kinds: dict[str, int] = {}
    for cpus, gpus in sorted((placement.cpus, placement.gpus) for placement in placements):
        cores = f"{cpus:g} core" + ("s" if cpus != 1 else "")
        share = "" if not gpus else " and a GPU" if gpus == 1 else f" and {gpus:.2g} GPU"
        kinds[cores + share] = kinds.get(cores + share, 0) + 1
    count = f"{len(placements)} worker" + ("s" if len(placements) != 1 else "")
    if len(kinds) == 1:
        return f"{count}, {'each ' if len(placements) > 1 else ''}with {next(iter(kinds))}"
    return f"{count}: " + ", ".join(f"{number} with {kind}" for kind, number in kinds.items())

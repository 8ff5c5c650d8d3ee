"""Simulate a thousand workers on a Ray cluster, and measure how busy the driver is.

    python benchmarks/ray_driver.py [--workers 1000] [--per-node 8] [--minutes 5] [--shape 12x12] [--json FILE]

The engine, the main loop and the queue of chunks are the real ones; the cluster is `tests/helpers/fake_ray.py`, whose
clock is simulated. Workers take 2 to 4 s for a chunk. Some die, and some nodes leave. As with Ray, results are
unpickled in the driver, and their arrays lie in memory that it shares with the process that receives them. Busy is the
processor time of the driver, without what nodes and workers do, over the simulated time.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from tests.helpers.fake_ray import DIE, Actor, FakeRay, FakeTime

from headscope.corpus.chunks import Chunk, ChunkSize, Source
from headscope.corpus.documents import Corpus
from headscope.corpus.storage import Stamp
from headscope.run import ray_engine
from headscope.run.plan import RunPlan
from headscope.run.ray_cluster import RayCluster
from headscope.run.ray_engine import RayEngine
from headscope.run.ray_worker import TaskResult
from headscope.run.run import run_chunks
from headscope.run.state import CorpusStats, RunState
from headscope.settings import Settings
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from measuring.cost_tables import driver_table
from measuring.tables import machine, save

SECONDS_PER_CHUNK = 3.0
TOKENS = 2000
"""token values that are the most attended ones of some text of a task"""
DEATHS = 0.002
"""share of tasks in which the worker dies"""
NODES_LOST = 0.04
"""share of nodes that leave during the study"""


class SimulatedWorker:
    """Return the sums of a task without counting anything."""

    sums: Tally

    def __init__(self, *arguments: Any) -> None:
        self.process = str(id(self))

    def get_process(self) -> str:
        """Return a name of this process."""
        return self.process

    def load(self) -> str:
        """Return the hash of the weights."""
        return "weights"

    def count(self, task: Any, sources: Any) -> TaskResult:
        """Return sums in which the number of texts is the number of chunks."""
        arrays = dict(self.sums.arrays)
        arrays["texts"] = np.zeros_like(arrays["texts"])
        arrays["texts"][0] = len(task.chunks)
        numbers = {chunk.number for chunk in task.chunks}
        stats = CorpusStats(documents=len(numbers), content=sum(numbers))
        state = RunState(Tally(self.sums.shape, arrays, self.sums.most_attended), stats, numbers)
        return TaskResult(state, {}, (SECONDS_PER_CHUNK * len(task.chunks),), (self.process,))


class MeasuredRay(FakeRay):
    """A simulated cluster that measures what happens on its nodes, and pickles what travels to the driver."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.node_seconds = 0.0
        self.received = self.received_bytes = 0

    def wait(self, *arguments: Any, **options: Any) -> Any:
        started = time.process_time()
        result = super().wait(*arguments, **options)
        self.node_seconds += time.process_time() - started
        return result

    def get(self, reference: Any) -> Any:
        value = super().get(reference)
        if not isinstance(value, TaskResult):
            return value
        started, buffers = time.process_time(), list[pickle.PickleBuffer]()
        content = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self.node_seconds += time.process_time() - started
        self.received += 1
        self.received_bytes += len(content) + sum(buffer.raw().nbytes for buffer in buffers)
        return pickle.loads(content, buffers=buffers)

    def _start_function(self, function: Any) -> Any:
        start = super()._start_function(function)

        def measured(*references: Any) -> Any:
            started = time.process_time()
            result = start(*references)
            self.node_seconds += time.process_time() - started
            return result

        return measured


def make_sums(shape: Shape) -> Tally:
    """Return sums as large as those of a real task."""
    random = np.random.default_rng(0)
    sums = Tally.zeros(shape)
    for array in sums.arrays.values():
        array[...] = random.integers(0, 100, array.shape)
    sums.most_attended = {token: random.integers(0, 9, (20, shape.layers)) for token in range(TOKENS)}
    return sums


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Run a simulated study and return what was measured."""
    random = Random(0)
    layers, heads = map(int, options.shape.split("x"))
    shape = Shape(layers, heads, 128)
    SimulatedWorker.sums = make_sums(shape)
    nodes = {f"node {number}": {"CPU": 4.0 * options.per_node, "GPU": float(options.per_node)}
             for number in range(options.workers // options.per_node)}  # fmt: skip

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        if name != "count":
            return random.uniform(1, 20)
        if random.random() < DEATHS:
            return DIE
        return sum(random.uniform(2 / 3, 4 / 3) * SECONDS_PER_CHUNK for _ in arguments[0].chunks)

    ray = MeasuredRay(nodes, behave)
    for name in list(nodes)[: int(NODES_LOST * len(nodes))]:
        ray.at(random.uniform(30, 60 * options.minutes), lambda name=name: ray.remove_node(name))
    count = int(options.workers * options.minutes * 60 / SECONDS_PER_CHUNK)
    sources = [Source(f"{k}.jsonl", iter, str(k), stamp=Stamp(1, "1")) for k in range(count)]
    corpus, plan = Corpus("simulated", sources), RunPlan(Settings(), 0.05, ChunkSize(1000, 1000))
    model: Any = SimpleNamespace(origin={"device": "auto"}, name="model", weight_hash="weights")
    messages = list[str]()
    with (
        patch.object(ray_engine, "time", FakeTime(ray)),
        patch.object(ray_engine, "ChunkWorker", SimulatedWorker),
        patch.object(RayCluster, "pin_to", lambda self, node, soft=False: SimpleNamespace(node_id=node)),
        patch.object(RayCluster, "request_workers", lambda self, count: None),
    ):
        engine = RayEngine(RayCluster(ray), model, corpus, plan, on_message=messages.append)
        state = RunState.empty(shape)
        state.chunks = [Chunk(k, k, k + 1) for k in range(count)]
        started, wall = time.process_time(), time.perf_counter()
        run_chunks(engine, corpus, plan, state)
        seconds = time.process_time() - started - ray.node_seconds
    return {
        "kind": "ray-driver",
        "about": {"shape": options.shape, "seconds_per_chunk": SECONDS_PER_CHUNK, **machine("cpu")},
        "workers": options.workers,
        "nodes": len(nodes),
        "chunks": count,
        "simulated_seconds": ray.now,
        "driver_seconds": seconds,
        "busy": seconds / ray.now,
        "results": ray.received,
        "received_bytes_per_second": ray.received_bytes / ray.now,
        "workers_lost": sum("lost" in message or "left" in message for message in messages),
        "efficiency": count * SECONDS_PER_CHUNK / (options.workers * ray.now),
        "right": state.texts == count and state.completed == set(range(count))
        and state.stats.content == sum(range(count)),
        "wall_seconds": time.perf_counter() - wall,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run the simulation and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.0, help="of simulated time, about")
    parser.add_argument("--shape", default="12x12", metavar="LAYERSxHEADS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    result = simulate(options)
    print(driver_table([result]))
    if options.json:
        save(result, options.json)


if __name__ == "__main__":
    main()

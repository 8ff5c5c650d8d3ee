"""A Ray cluster: connecting to it in bounded time, its nodes, and how many workers each of them gets."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headscope.errors import StudyError
from headscope.interrupts import InterruptFlag, defer_interrupts

CONNECT_SECONDS = 10.0
"""in which something must answer at a cluster's address"""
SHUTDOWN_SECONDS = 30.0
"""in which Ray should shut down"""
RETRIES = "RAY_NUM_REDIS_GET_RETRIES"
"""how often Ray asks for a cluster, 40 seconds each; its own choice is 20"""
MAX_CPUS_PER_GPU = 4
"""cores that a worker with a GPU takes: for reading and tokenizing"""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with the resources that Ray may use."""

    id: str
    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Placement:
    """A worker on a node, and its share of the resources."""

    node: Node
    cpus: float
    gpus: float

    @property
    def threads(self) -> int:
        """Number of threads that the worker runs."""
        return max(1, int(self.cpus))


class RayCluster:
    """A connection to a cluster.

    Args:
        device: The device that was requested: `auto`, `cuda` or `cpu`. With `auto`, workers have GPUs if any node of
            the cluster has one, even if the node of the driver has none.
    """

    def __init__(self, ray: Any, device: str = "auto") -> None:
        self.ray = ray
        self.uses_gpus = device.startswith("cuda") or (
            device == "auto" and any(node.gpus >= 1 for node in self.list_nodes())
        )

    @property
    def device_type(self) -> str:
        """Type of the device on which workers count."""
        return "cuda" if self.uses_gpus else "cpu"

    def list_nodes(self) -> list[Node]:
        """Return the nodes that are alive."""
        return [
            Node(
                node["NodeID"], str(node.get("NodeManagerHostname") or node["NodeID"][:8]),
                float(node["Resources"].get("CPU", 0.0)), float(node["Resources"].get("GPU", 0.0)),
            )
            for node in self.ray.nodes()
            if node["Alive"]
        ]  # fmt: skip

    def pin_to(self, node: str, *, soft: bool = False) -> Any:
        """Return the scheduling strategy for a node; if `soft`, another node is used when that one is gone."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=soft)

    def request_workers(self, count: int) -> None:
        """Ask an autoscaling cluster for the resources of so many workers in all."""
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{"GPU": 1} if self.uses_gpus else {"CPU": 1}] * count)


def place_workers(nodes: Sequence[Node], requested: int | None, *, use_gpus: bool) -> list[Placement]:
    """Distribute workers over the nodes of a cluster.

    Without a requested number, every GPU has a worker, or every node if GPUs are not used. A requested number is
    distributed in proportion to the GPUs or cores of each node. The workers of a node divide its resources.

    >>> nodes = [Node("a", "small", 8, 0), Node("b", "large", 64, 0)]
    >>> [(worker.node.name, worker.cpus) for worker in place_workers(nodes, 2, use_gpus=False)]
    [('large', 32), ('large', 32)]
    >>> [(worker.node.name, worker.cpus) for worker in place_workers(nodes, None, use_gpus=False)]
    [('small', 8), ('large', 64)]
    """
    sizes = {node: node.gpus if use_gpus else math.floor(node.cpus) for node in nodes}
    sizes = {node: size for node, size in sizes.items() if size >= 1}
    if not sizes:
        return []
    if requested is None:
        counts = {node: int(size) if use_gpus else 1 for node, size in sizes.items()}
    else:
        counts = dict.fromkeys(sizes, 0)
        for _ in range(requested):
            free = [node for node in sizes if use_gpus or counts[node] < sizes[node]]
            if not free:
                break
            counts[max(free, key=lambda node: (sizes[node] / (counts[node] + 1), -counts[node]))] += 1
    return [placement for node, count in counts.items() for placement in _divide(node, count, use_gpus=use_gpus)]


def _divide(node: Node, count: int, *, use_gpus: bool) -> list[Placement]:
    if not count:
        return []
    cpus: float = math.floor(node.cpus / count)
    if not use_gpus:
        return [Placement(node, max(1, cpus), 0)] * count
    # More workers than cores share these; a node may have GPUs and no cores at all.
    cpus = min(cpus, MAX_CPUS_PER_GPU) or math.floor(100 * node.cpus / count) / 100
    # Ray divides single GPUs only, and each into equal parts.
    return [Placement(node, cpus, 1 if count <= node.gpus else 1 / math.ceil(count / node.gpus))] * count


def import_ray() -> Any:
    """Return the module ray, if it is installed."""
    os.environ.setdefault(RETRIES, "1")  # read when Ray is imported
    try:
        import ray
    except ImportError:
        raise StudyError("the engine ray needs the extra: pip install 'headscope[ray]'") from None
    return ray


@contextmanager
def connect(address: str | None, device: str = "auto") -> Iterator[RayCluster]:
    """Connect to a cluster, or start one on this machine, within this context. A connection that existed stays."""
    ray = import_ray()
    if ray.is_initialized():
        if address is not None:
            raise StudyError(
                "Ray is connected to a cluster already: leave the address out, or call ray.shutdown() first"
            )
        yield RayCluster(ray, device)
        return
    _check_answers(address or os.environ.get("RAY_ADDRESS", ""))
    with _initialize_ray(ray, address):
        yield RayCluster(ray, device)


@contextmanager
def _initialize_ray(ray: Any, address: str | None) -> Iterator[None]:
    """Call `ray.init`, and `ray.shutdown` on leaving, in a thread that lives as long as this context.

    In the main thread Ray would take the handling of signals over, and one that arrives while it connects would crash
    the process. The processes that Ray starts end with the thread that started them.
    """
    errors: list[Exception] = []
    connected, closing = threading.Event(), threading.Event()

    def hold_connection() -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Batch systems send SIGTERM to all processes at once. Those that Ray starts inherit that they do not get
            # it: they are needed until the study has stopped.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
        except Exception as error:  # Ray raises many kinds
            errors.append(error)
        connected.set()
        closing.wait()
        with suppress(Exception):
            ray.shutdown()

    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that this is not the main thread
    thread = threading.Thread(target=hold_connection, name="headscope: connection to Ray", daemon=True)
    try:
        with InterruptFlag() as interrupt:
            with suppress(KeyboardInterrupt), defer_interrupts():
                thread.start()
            while not connected.is_set():
                with suppress(KeyboardInterrupt):  # raised below: until it is connected, Ray cannot be shut down
                    connected.wait(0.2)
            interrupt.check()
        if errors:
            raise _make_cluster_error(address, get_first_line(errors[0]))
        yield
    finally:
        closing.set()
        thread.join(SHUTDOWN_SECONDS)


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens: Ray would ask there for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as reason:
        raise _make_cluster_error(address, getattr(reason, "strerror", None) or str(reason)) from None


def _make_cluster_error(address: str | None, reason: str) -> StudyError:
    return StudyError(
        f"no Ray cluster at {address or 'this machine'}: {reason}. Start one with `ray start --head`, or leave "
        "--address out to run on this machine"
    )


def get_first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

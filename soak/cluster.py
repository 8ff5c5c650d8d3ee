"""A cluster of two nodes on this machine, which loses workers and nodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runs import LONGEST, Folder, Row, Running, check

from headscope.studies.result import Study

WORKER = b"ray::ChunkWorker.count"
"""how the processes of our workers begin their titles while they count; before that, they load the model"""
FIRST_ACT = 2.0
"""seconds of counting before the first fault: the whole study may take less than a minute"""
RESTARTED, LEFT = "was lost and restarted", "left the cluster"
"""what a study says of workers that Ray started again, and of machines that are gone"""


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Two nodes with one core each, as they think."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    try:
        yield made
    finally:
        made.shutdown()


def _raylets(cluster: Any) -> set[int]:
    nodes = [cluster.head_node, *cluster.worker_nodes]
    return {held.process.pid for node in nodes for held in node.all_processes.get("raylet", [])}


def workers(cluster: Any) -> list[int]:
    """The processes of our workers on this cluster that count, and of no other."""
    raylets, found = _raylets(cluster), []
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if not (place / "cmdline").read_bytes().startswith(WORKER):
                continue
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets:
                found.append(int(place.name))
    return sorted(found)


def _disturb(running: Running, cluster: Any, every: float, act: Callable[[], None]) -> None:
    """Act soon after workers begin to count, and again every few seconds, until a run ends, which must end well."""
    running.until(lambda: bool(workers(cluster)))
    running.until(lambda: False, FIRST_ACT)
    end = time.monotonic() + LONGEST
    while running.alive and time.monotonic() < end:
        act()
        running.until(lambda: False, every)
    running.ended(0)


def workers_killed(folder: Folder, whole: Study, every: float) -> Row:
    """Every few seconds one of two workers is killed, in turn."""
    killed: list[int] = []

    with two_nodes() as cluster:

        def act() -> None:
            for number in [held for held in workers(cluster) if held not in killed][:1]:
                with suppress(OSError):
                    os.kill(number, signal.SIGKILL)
                    killed.append(number)

        running = folder.start("--engine", "ray", "--workers", "2", "--address", cluster.address)
        _disturb(running, cluster, every, act)
    check(bool(killed), "no worker was killed: the study was too short")
    check(RESTARTED in running.said, f"nothing said of lost workers: {running.said[-300:]}")
    note = f"every {every:.0f} s; restarted by Ray, {running.said.count(RESTARTED)} of them in the middle of a task"
    return folder.row("Ray: a worker killed again and again", len(killed), whole, note)


def nodes_replaced(folder: Folder, whole: Study, every: float) -> Row:
    """A node goes, and another comes."""
    removed = 0

    with two_nodes() as cluster:

        def act() -> None:
            nonlocal removed
            if not workers(cluster):
                return
            cluster.remove_node(next(iter(cluster.worker_nodes)))
            removed += 1
            time.sleep(1.0)
            cluster.add_node(num_cpus=1)

        running = folder.start("--engine", "ray", "--workers", "2", "--address", cluster.address)
        _disturb(running, cluster, every, act)
    check(removed > 0, "no node was removed: the study was too short")
    check(LEFT in running.said, f"nothing said of nodes that left: {running.said[-300:]}")
    note = f"every {every:.0f} s; workers that went with them and were replaced: {running.said.count(LEFT)}"
    return folder.row("Ray: a node removed, another added", removed, whole, note)

"""A study on a cluster, by Ray. Only the files here that are named for it know Ray.

Workers hold the model once and read their shards themselves; what travels is leases one way and sums the other. Lost
workers and nodes cost what they had not brought back, and are replaced while there is room on the cluster.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headscope.corpus.documents import Corpus
from headscope.engines.leases import Lease, Leases
from headscope.engines.ray_connection import connected, first_line, ray_module
from headscope.engines.ray_worker import Remote
from headscope.errors import CorpusError, HeadscopeError, ModelError, StudyError
from headscope.model.model import Model
from headscope.studies.checkpoint import Checkpoints
from headscope.studies.job import Job
from headscope.studies.known import check_unchanged
from headscope.studies.standing import Standing
from headscope.studies.undisturbed import undisturbed

LEASE_SECONDS = 20.0
"""What a worker does until its sums travel: so much is lost with it."""
BUSY = 0.25
"""of the driver's time may go into taking in sums: with many workers, leases are longer than that"""
DEATHS = 5
"""workers that may end one after the other, for each there is, and nothing was brought back in between"""
BROKEN = 3
"""portions that may hold broken documents before the whole study stops"""
IMPATIENT = 30.0
"""seconds without any worker, after which people are told"""


@dataclass
class _Hand:
    """A worker as the driver knows it."""

    actor: Any
    lease: Lease | None = None
    """None: it is still starting"""


class RayCluster:
    """The driver: lends portions, adds up what comes back."""

    def __init__(
        self,
        model: Model,
        corpus: Corpus,
        job: Job,
        *,
        workers: int | None = None,
        address: str | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        if model.origin is None:
            raise StudyError("on a cluster every worker loads the model itself: give its name or folder, not an object")
        if not corpus.anywhere:
            raise StudyError(f"{corpus.name}: only this process can read it: write it to a file, and give that")
        self.ray = ray_module()
        self.model, self.corpus, self.job = model, corpus, job
        self.wanted, self.address, self.say = workers, address, say
        self.standing = Standing.empty(job.shape(model), job.batch_size)
        self._hands: dict[Any, _Hand] = {}
        self._deaths, self._errors = 0, list[HeadscopeError]()
        self._seconds, self._taking = 0.0, 0.0
        """what a worker needs for a portion, and the driver to take in what it brings"""

    def run(self, standing: Standing, kept: Checkpoints | None, told: Callable[[int, int], None]) -> None:
        """Bring a study from how it stands to its end; `told` is told of the texts and documents that count."""
        self.standing = standing
        check_unchanged(self.corpus, standing.done, self.job.settings.cut)
        self.leases = Leases(len(self.corpus.shards), standing.done)
        try:
            if not self.leases.all_done:
                with connected(self.ray, self.address), self._workers():
                    self._work(kept, told)
        finally:
            if kept is not None:
                with undisturbed():
                    kept.write(self.standing)
        if self._errors:
            raise self._errors[0]

    # -- the cluster --------------------------------------------------------------------------------------------------

    @contextmanager
    def _workers(self) -> Iterator[None]:
        try:
            self._start()
            yield
        finally:
            for hand in self._hands.values():
                with suppress(Exception):
                    self.ray.kill(hand.actor)
            self._hands.clear()

    def _start(self) -> None:
        """Plan the workers, and start them."""
        ray = self.ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(sum(node.get("GPU", 0) for node in nodes)) if self.model.device.type == "cuda" else 0
        count = self.wanted or gpus or len(nodes)
        cpus = [node.get("CPU", 1.0) for node in nodes]
        share = max(1, min(math.floor(sum(cpus) / count), int(max(cpus))))
        if self.model.device.type == "cuda":
            share = min(share, 4)
        self._options = {
            "num_cpus": share,
            "num_gpus": min(1.0, gpus / count) if gpus else 0,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        self._device = "cuda" if gpus else "cpu"
        self._given = ray.put(self.corpus), ray.put(self.job)  # once for all workers
        self._class = ray.remote(Remote)
        self.say(f"{count} workers, each with {share} cores" + (" and a GPU" if gpus else ""))
        for _ in range(count):
            self._hire()

    def _hire(self) -> None:
        origin, threads = dict(self.model.origin or {}), int(self._options["num_cpus"])
        actor = self._class.options(**self._options).remote(origin, self._device, *self._given, threads, os.getcwd())
        self._hands[actor.ready.remote()] = _Hand(actor)

    # -- the work -----------------------------------------------------------------------------------------------------

    def _work(self, kept: Checkpoints | None, told: Callable[[int, int], None]) -> None:
        idle: list[Any] = []
        alone = time.monotonic()
        while not self.leases.all_done and len(self._errors) < BROKEN:
            for actor in list(idle):
                if self._lend(actor):
                    idle.remove(actor)
            ready, _ = self.ray.wait(list(self._hands), num_returns=1, timeout=1.0)
            for reference in ready:
                hand = self._hands.pop(reference)
                with undisturbed():  # the sums, and what is said of them, change together
                    if self._took(hand, reference):
                        idle.append(hand.actor)
                told(self.standing.texts, self.standing.account.read)
            if any(hand.lease for hand in self._hands.values()) or idle:
                alone = time.monotonic()
            elif time.monotonic() - alone > IMPATIENT:
                self.say("no worker has started yet: waiting for room on the cluster")
                alone = time.monotonic()
            if kept is not None and kept.due:
                with undisturbed():
                    kept.write(self.standing)

    def _lend(self, actor: Any) -> bool:
        seconds = max(LEASE_SECONDS, (len(self._hands) + 1) * self._taking / BUSY)
        most = int(seconds / self._seconds) if self._seconds else 1
        lease = self.leases.take(actor, most)
        if lease is None:
            return False
        self._hands[actor.work.remote(lease)] = _Hand(actor, lease)
        return True

    def _took(self, hand: _Hand, reference: Any) -> bool:
        """Take in what a worker brought; False if it is gone, and another was called in its place."""
        exceptions, began = self.ray.exceptions, time.monotonic()
        try:
            brought = self.ray.get(reference)
        except exceptions.RayTaskError as error:
            self._failed(hand, error)
            return True
        except (exceptions.RayError, OSError) as error:
            self._died(hand, error)
            return False
        if hand.lease is None:
            self._check_model(brought)
            return True
        made, seconds = brought
        portions = sum(after - first for runs in made.done.portions.values() for first, after in runs)
        if portions:
            self._seconds = max(seconds / portions, 1e-3)
        self.standing.add(made)
        self.leases.returned(hand.lease)
        self._deaths, self._taking = 0, time.monotonic() - began
        return True

    def _check_model(self, weight_hash: str) -> None:
        if weight_hash != self.model.weight_hash:
            raise ModelError(
                f"{self.model.name}: a worker found other weights under this name ({weight_hash[:12]}…, here "
                f"{self.model.weight_hash[:12]}…): have the same files on all machines"
            )

    def _failed(self, hand: _Hand, error: Any) -> None:
        """A worker lives, and says that its lease cannot be done."""
        cause = error.cause if isinstance(error.cause, Exception) else error
        if hand.lease is None or not isinstance(cause, CorpusError):
            if isinstance(cause, HeadscopeError):
                raise type(cause)(str(cause))
            raise StudyError(f"a worker failed: {type(cause).__name__}: {cause}")
        said = str(cause)
        known = any(said == str(before) for before in self._errors)
        if not self.leases.broken(hand.lease, again=known) and not known:
            self._errors.append(CorpusError(said))
            self.say(f"{said}\nThe other documents are studied meanwhile")

    def _died(self, hand: _Hand, error: Any) -> None:
        """A worker is gone: what it had is lent again, and another takes its place."""
        if getattr(error, "actor_init_failed", False):
            raise StudyError(f"no worker can be started: {first_line(error)}. Have headscope on all machines")
        if hand.lease is not None:
            self.leases.lost(hand.lease)
        self.leases.stop_reading(hand.actor)
        with suppress(Exception):
            self.ray.kill(hand.actor)
        self._deaths += 1
        if self._deaths > DEATHS * max(1, len(self._hands) + 1):
            raise StudyError(f"workers end again and again, the last one with: {first_line(error)}")
        self.say("a worker is gone; what it had is given to others")
        self._hire()

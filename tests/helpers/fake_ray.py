"""A simulated Ray cluster with a clock of its own: workers that are slow, fail, die, hang or leave, in known order.

It has the part of Ray's interface that `headscope.run.ray_engine` uses. Actors run their methods one after the other,
in this process, when their time has come. `FakeRay.behave` decides what a call does.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

RESTART_SECONDS = 5.0
DIE, HANG = "die", "hang"
"""what a call may do, besides taking some seconds or raising an error"""


class RayError(Exception):
    """As in Ray."""


class RayTaskError(RayError):
    """A call raised an error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class RayActorError(RayError):
    """The process of an actor is gone."""


class OutOfMemoryError(RayError):
    """Ray ended a process because memory ran short."""


@dataclass(eq=False)
class Reference:
    """The result of a call, once it is there."""

    value: Any = None
    error: Exception | None = None
    is_ready: bool = False


@dataclass(eq=False)
class Call:
    """A call of an actor's method."""

    reference: Reference
    name: str
    arguments: tuple[Any, ...]
    deaths: int = 0


@dataclass(eq=False)
class Actor:
    """A process on a node. `restarts` counts how often Ray started it again."""

    ray: FakeRay
    node: str
    kind: type
    arguments: tuple[Any, ...]
    retries: int
    calls: deque[Call] = field(default_factory=deque)
    restarts: int = 0
    is_dead: bool = False
    instance: Any = None
    process: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self.kind, name):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *arguments: self.ray.call(self, name, arguments))


Behavior = Callable[[Actor, str, tuple[Any, ...]], Any]


class FakeRay:
    """A cluster.

    Args:
        nodes: Resources of the nodes by name.
        behave: Called with an actor, the name of a method and its arguments; returns the seconds that it takes, an
            error that it raises, `DIE` or `HANG`.
    """

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        RayActorError=RayActorError,
        OutOfMemoryError=OutOfMemoryError,
    )

    def __init__(self, nodes: dict[str, dict[str, float]], behave: Behavior) -> None:
        self.resources, self.behave = dict(nodes), behave
        self.now = 0.0
        self.actors: list[Actor] = []
        self.running = ""
        """the node on which a method runs"""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)

    # What the engine calls

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": True, "Resources": resources}
            for name, resources in self.resources.items()
        ]

    def remote(self, kind: Any = None, **options: Any) -> Any:
        if kind is None:
            return self.remote
        return SimpleNamespace(options=lambda **chosen: SimpleNamespace(remote=self._find_remote(kind, chosen)))

    def wait(self, references: list[Reference], num_returns: int, timeout: float, fetch_local: bool) -> Any:
        until = self.now + timeout
        while not (ready := [reference for reference in references if reference.is_ready]):
            if not self._events or self._events[0][0] > until:
                self.now = until
                break
            self.run_next_event()
        return ready[:num_returns], [reference for reference in references if reference not in ready[:num_returns]]

    def get(self, reference: Reference) -> Any:
        while not reference.is_ready:
            self.run_next_event()
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, actor: Actor) -> None:
        self._end(actor, RayActorError("killed"))

    # What a scenario calls

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen at a time."""
        heapq.heappush(self._events, (seconds, next(self._numbers), act))

    def remove_node(self, name: str) -> None:
        """Have a node leave the cluster, and all that runs there."""
        del self.resources[name]
        for actor in self.actors:
            if actor.node == name:
                self._end(actor, RayActorError(f"{name} died"))

    def advance(self, seconds: float) -> None:
        """Let time pass on the cluster, while the driver does something else."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.run_next_event()
        self.now = until

    def run_next_event(self) -> None:
        """Advance the clock to the next event."""
        self.now, _, act = heapq.heappop(self._events)
        act()

    # Inside

    def _find_remote(self, kind: Any, options: dict[str, Any]) -> Callable[..., Any]:
        return self._start_actor(kind, options) if isinstance(kind, type) else self._start_function(kind)

    def _start_actor(self, kind: type, options: dict[str, Any]) -> Callable[..., Actor]:
        def start(*arguments: Any) -> Actor:
            node = options["scheduling_strategy"].node_id
            assert options["max_restarts"] == -1
            actor = Actor(self, node, kind, arguments, options["max_task_retries"])
            actor.process = next(self._numbers)
            self.actors.append(actor)
            return actor

        return start

    def _start_function(self, function: Any) -> Callable[..., Reference]:
        def start(*references: Reference) -> Reference:
            result = Reference(is_ready=True)
            errors = [reference.error for reference in references if reference.error is not None]
            if errors:
                result.error = errors[0]
            else:
                result.value = function(*(reference.value for reference in references))
            return result

        return start

    def call(self, actor: Actor, name: str, arguments: tuple[Any, ...]) -> Reference:
        reference = Reference()
        if actor.is_dead or actor.node not in self.resources:
            reference.error, reference.is_ready = RayActorError("dead"), True
            return reference
        actor.calls.append(Call(reference, name, arguments))
        if len(actor.calls) == 1:
            self._run_first(actor)
        return reference

    def _run_first(self, actor: Actor) -> None:
        if actor.is_dead or not actor.calls:
            return
        call = actor.calls[0]
        what = self.behave(actor, call.name, call.arguments)
        if what == DIE:
            self.at(self.now + RESTART_SECONDS, lambda: self._restart(actor))
        elif isinstance(what, Exception):
            self.at(self.now + 1.0, lambda: self._finish(actor, call, RayTaskError(what)))
        elif what != HANG:
            self.at(self.now + what, lambda: self._finish(actor, call, None))

    def _finish(self, actor: Actor, call: Call, error: Exception | None) -> None:
        if actor.is_dead or not actor.calls or actor.calls[0] is not call:
            return
        actor.calls.popleft()
        self.running = actor.node
        if error is None:
            try:
                if actor.instance is None:
                    actor.instance = actor.kind(*actor.arguments)
                call.reference.value = getattr(actor.instance, call.name)(*call.arguments)
            except Exception as raised:
                error = RayTaskError(raised)
        call.reference.error, call.reference.is_ready = error, True
        self._run_first(actor)

    def _restart(self, actor: Actor) -> None:
        if actor.is_dead:
            return
        actor.instance, actor.process = None, next(self._numbers)
        actor.restarts += 1
        for call in list(actor.calls):
            call.deaths += 1
            if call.deaths > actor.retries:
                actor.calls.remove(call)
                call.reference.error, call.reference.is_ready = RayActorError("died again"), True
        self._run_first(actor)

    def _end(self, actor: Actor, error: Exception) -> None:
        actor.is_dead = True
        for call in actor.calls:
            if not call.reference.is_ready:
                call.reference.error, call.reference.is_ready = error, True
        actor.calls.clear()


class FakeTime:
    """`time` as the engine uses it, by the clock of the cluster."""

    def __init__(self, ray: FakeRay) -> None:
        self.ray = ray

    def monotonic(self) -> float:
        return self.ray.now

    def sleep(self, seconds: float) -> None:
        self.ray.at(self.ray.now + seconds, lambda: None)
        self.ray.run_next_event()

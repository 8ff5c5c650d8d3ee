"""Test connecting to a Ray cluster: signals are deferred until Ray can be shut down, and errors give advice."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import Any

import pytest

from headscope.errors import StudyError
from headscope.interrupts import Terminated, raise_interrupts
from headscope.run import ray_cluster
from headscope.run.ray_cluster import connect

PATIENCE = 120.0


class SlowRay:
    """A module `ray` whose `init` calls a function first."""

    def __init__(self, before_init: Any = lambda: None, *, connected: bool = False) -> None:
        self.before_init, self.connected = before_init, connected
        self.calls: list[tuple[str, threading.Thread]] = []

    def is_initialized(self) -> bool:
        return self.connected

    def nodes(self) -> list[Any]:
        return []

    def init(self, **options: Any) -> None:
        self.before_init()
        self.calls.append(("init", threading.current_thread()))

    def shutdown(self) -> None:
        self.calls.append(("shutdown", threading.current_thread()))


def install(monkeypatch: pytest.MonkeyPatch, ray: SlowRay) -> SlowRay:
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return ray


def test_one_thread_connects_and_shuts_down(monkeypatch: pytest.MonkeyPatch):
    """Ray's processes end with the thread that started them."""
    ray = install(monkeypatch, SlowRay())
    with connect(None) as cluster:
        assert cluster.ray is ray
        ((name, thread),) = ray.calls
        assert name == "init"
        assert thread.is_alive()
    assert ray.calls == [("init", thread), ("shutdown", thread)]
    assert not thread.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM between processes")
@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_while_it_connects_is_raised_when_ray_can_be_shut_down(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, error: type[BaseException]
):
    received = threading.Event()

    def wait_for_signal() -> None:
        os.kill(os.getpid(), number)
        assert received.wait(PATIENCE)

    ray = install(monkeypatch, SlowRay(wait_for_signal))
    with raise_interrupts():
        handler = signal.getsignal(number)

        def handle(*arguments: Any) -> None:
            received.set()
            handler(*arguments)  # type: ignore[operator, misc]

        signal.signal(number, handle)
        with pytest.raises(error), connect(None):
            pytest.fail("it was entered")
    assert [name for name, _ in ray.calls] == ["init", "shutdown"]


def test_what_ray_raises_becomes_advice(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise ConnectionError("could not connect\nand many more lines")

    install(monkeypatch, SlowRay(fail))
    advice = r"no Ray cluster at this machine: could not connect\. Start one with `ray start --head`"
    with pytest.raises(StudyError, match=advice), connect(None):
        pytest.fail("it was entered")


def test_an_address_where_nothing_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    ray = install(monkeypatch, SlowRay())
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(StudyError, match=f"no Ray cluster at {address}"), connect(address):
            pytest.fail("it was entered")
    assert not ray.calls


def test_a_connection_of_the_caller_is_used_and_left(monkeypatch: pytest.MonkeyPatch):
    ray = install(monkeypatch, SlowRay(connected=True))
    with connect(None) as cluster:
        assert cluster.ray is ray
    assert not ray.calls
    with pytest.raises(StudyError, match="leave the address out"), connect("auto"):
        pytest.fail("it was entered")


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'headscope\[ray\]'"), connect(None):
        pytest.fail("it was entered")

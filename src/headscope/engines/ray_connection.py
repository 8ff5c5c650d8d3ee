"""Finding a Ray cluster, or starting one on this machine; in bounded time."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headscope.errors import StudyError

PATIENCE = 10.0
"""seconds in which something must answer at a cluster's address"""
RETRIES = "RAY_NUM_REDIS_GET_RETRIES"
"""how often Ray asks for a cluster, 40 seconds each; its own choice is 20"""


def ray_module() -> Any:
    """Ray, if it is installed."""
    os.environ.setdefault(RETRIES, "1")  # read when Ray is imported
    try:
        import ray
    except ImportError:
        raise StudyError("the engine ray needs the extra: pip install 'headscope[ray]'") from None
    return ray


@contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Within this context there is a cluster. One that was there before stays."""
    if ray.is_initialized():
        yield
        return
    _check_answers(address or os.environ.get("RAY_ADDRESS", ""))
    ending = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", include_dashboard=False)
    except Exception as error:  # Ray raises many kinds
        raise _none_at(address, first_line(error)) from None
    try:
        if threading.current_thread() is threading.main_thread() and ending is not None:
            signal.signal(signal.SIGTERM, ending)  # Ray puts its own there, which ends the process at once
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens: Ray would ask there for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as reason:
        raise _none_at(address, getattr(reason, "strerror", None) or str(reason)) from None


def _none_at(address: str | None, reason: str) -> StudyError:
    return StudyError(
        f"no Ray cluster at {address or 'this machine'}: {reason}. Start one with `ray start --head`, or leave "
        "--address out to run on this machine"
    )


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""Things that are done whole or not at all, although someone presses Ctrl-C or a batch system says that time is up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM: to be ended like by Ctrl-C, and soon."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within this context Ctrl-C waits, and SIGTERM: they take effect when all within is done.

    Only the main thread is ever interrupted. Where a signal is ignored, or is not Python's, it stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual: dict[signal.Signals, Callable[..., Any]] = {}
    pressed: list[tuple[int, FrameType | None]] = []
    try:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                usual[number] = handler
                signal.signal(number, lambda *received: pressed.append(received))
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if pressed:
            usual[signal.Signals(pressed[0][0])](*pressed[0])


@contextmanager
def terminable() -> Iterator[None]:
    """Within this context SIGTERM raises `Terminated` in the main thread, instead of ending the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    usual = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)

"""Handling of Ctrl-C and SIGTERM: end the process at once, raise an exception, or wait until something is complete.

A command begins with `exit_on_signals`: while modules are imported and a model is loaded nothing has to be cleaned up,
and an exception raised there may be lost or replaced by another one. Code with work to save uses `raise_interrupts`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
"""clears the progress line and shows the cursor, which the line hides"""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received: stop as on Ctrl-C, but quickly."""


def exit_on_signals() -> None:
    """From now on, end the process at once on Ctrl-C and SIGTERM, with one line and the usual exit code.

    Ignored signals stay ignored: a shell script makes processes that it starts with `&` ignore Ctrl-C.
    """
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _exit_now)


def _exit_now(number: int, frame: FrameType | None) -> None:
    try:
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
        os.write(2, b"headscope: terminated\n" if number == signal.SIGTERM else b"headscope: interrupted\n")
    finally:
        os._exit(128 + number)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the context is left. Of several signals, SIGTERM takes precedence.

    Only the main thread is ever interrupted, so in other threads this does nothing. Signals that are ignored,
    or handled outside Python, are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[signal.Signals, Callable[..., Any]] = {}
    received: list[tuple[int, FrameType | None]] = []
    try:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda *arguments: received.append(arguments))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            arguments = next((arguments for arguments in received if arguments[0] == signal.SIGTERM), received[0])
            handlers[signal.Signals(arguments[0])](*arguments)


class InterruptFlag:
    """Remember that Ctrl-C or SIGTERM was received, although the exception may have been lost.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor or in a callback of C code
    it is printed and dropped. A loop that calls `check` between its steps stops nevertheless. A nested flag starts
    with what the outer one has received.
    """

    def __init__(self) -> None:
        self.exception: type[KeyboardInterrupt] | None = None
        self._handlers: dict[signal.Signals, Callable[..., Any]] = {}

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._receive)
                    outer = getattr(handler, "__self__", None)
                    if isinstance(outer, InterruptFlag):
                        self.exception = self.exception or outer.exception
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.exception = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        self._handlers[signal.Signals(number)](number, frame)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise the exception of the signal that was received, if any."""
        if self.exception is not None:
            raise self.exception


@contextmanager
def raise_interrupts() -> Iterator[InterruptFlag]:
    """Raise KeyboardInterrupt on Ctrl-C and `Terminated` on SIGTERM, in the main thread; the flag remembers them.

    If Python has to drop such an exception, nothing is printed: the flag remembers it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield InterruptFlag()
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    print_unraisable = sys.unraisablehook

    def drop_interrupts(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            print_unraisable(unraisable)

    try:
        sys.unraisablehook = drop_interrupts
        for number, handler in before.items():
            if handler not in (signal.SIG_IGN, None):
                signal.signal(number, _raise_interrupt)
        with InterruptFlag() as flag:
            yield flag
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
        sys.unraisablehook = print_unraisable


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

"""Making things in a thread of their own, some steps ahead of whoever takes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds that a thread which waits for something outside is given to end by itself."""


class _End:
    """The last that comes: nothing more, or the error that ended it."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Ahead(Generic[T]):
    """A context within which `source` runs in a thread, at most `depth` things ahead; iterate to take them in order.

    An error of the source comes where its next thing would have come. On leaving, however that is, the thread ends and
    is waited for. Only where it hangs on something outside (`blocked` says so: a pipe into which nobody writes) it is
    left to itself: nothing can wake it, it ends with its next step or with the process.
    """

    def __init__(self, source: Generator[T], depth: int, blocked: Callable[[], bool] = lambda: False) -> None:
        self._source, self._blocked = source, blocked
        self._made: SimpleQueue[T | _End] = SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._make, name="headscope: texts ahead", daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether nobody takes anything any more."""
        return self._stopped.is_set()

    def _make(self) -> None:
        # A thread that is left to itself while it reads standard input holds it, else Python would close it under the
        # thread when the process ends, and abort.
        held = sys.stdin
        end = _End()
        try:
            while True:
                self._room.acquire()
                if self.stopped:
                    break
                self._made.put(next(self._source))
        except StopIteration:
            pass
        except BaseException as error:  # whatever it is, it belongs to the one who takes
            end = _End(error)
        finally:
            self._source.close()
            self._made.put(end)
            del held

    def __enter__(self) -> Ahead[T]:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[T]:
        while not isinstance(made := self._made.get(), _End):
            self._room.release()
            yield made
        self._made.put(made)  # who asks again is told the same
        if made.error is not None:
            raise made.error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._room.release()
        self._thread.join(PATIENCE)
        while self._thread.is_alive() and not self._blocked():
            self._thread.join(PATIENCE)

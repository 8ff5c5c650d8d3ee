"""One process for one output folder: a lock that the system takes back however the process ends."""

from __future__ import annotations

import errno
import importlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from headscope.errors import StudyError

FILE = ".headscope-lock"
BEHIND = 2**30
"""a byte behind all that the file holds"""


class Lock:
    """A context within which no other process holds the lock of this folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file: IO[str] | None = None

    def __enter__(self) -> Lock:
        while True:
            file = self._opened()
            if not _taken(file):
                holder = _holder(file)
                file.close()
                raise StudyError(
                    f"{self.path.parent} is in use: {holder} writes a study there. Wait for it, or choose another "
                    "folder with --out"
                )
            if _same(file, self.path):
                break
            file.close()  # its last holder removed it in the meantime
        self._file = file
        with suppress(OSError):  # who holds it is a courtesy: the disk may be full
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        return self

    def _opened(self) -> IO[str]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return open(self.path, "a+", encoding="utf-8")
        except OSError as reason:
            raise StudyError(
                f"{self.path.parent}: cannot write there: {reason.strerror or reason}. Choose another folder with --out"
            ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        removed = self._remove()  # while it is locked: nobody else's is removed
        if self._file is not None:
            with suppress(OSError):  # a full disk shows itself on closing
                self._file.close()
        if not removed:  # Windows removes no file that is open, and so none that another process has opened since
            self._remove()

    def _remove(self) -> bool:
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200).strip() or "another process"


def _same(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _taken(file: IO[str]) -> bool:
    """Take the lock of an open file; False if another has it."""
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:  # Windows
        return _taken_on_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        # Some network file systems know no locks: there, two processes cannot be told apart, and none is refused.
        return reason.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _taken_on_windows(file: IO[str]) -> bool:
    """Do the same with Windows' locks, which are for bytes of a file and keep others from reading these."""
    msvcrt = importlib.import_module("msvcrt")
    try:
        file.seek(BEHIND)  # the byte need not be there
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError as reason:
        return reason.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    finally:
        file.seek(0)
    return True

"""Lock an output folder for one process; the operating system releases the lock however the process ends."""

from __future__ import annotations

import errno
import importlib
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from headscope.errors import StudyError
from headscope.file_io import create_folder, make_folder_error

FILE = ".headscope-lock"
BEHIND = 2**30
"""position of the locked byte, beyond the content of the file"""


class Lock:
    """A context within which no other process holds the lock of this folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._file: IO[str] | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Lock:
        # Folders that are created for the lock, and still empty when it is released, are removed then.
        self._resources.enter_context(create_folder(self.path.parent, StudyError))
        try:
            self._acquire()
        except BaseException:
            self._resources.close()
            raise
        return self

    def _acquire(self) -> None:
        while True:
            file = self._open()
            if not _lock_file(file):
                holder = _read_holder(file)
                file.close()
                raise StudyError(
                    f"{self.path.parent} is in use: {holder} writes a study there. Wait for it, or choose another "
                    "folder with --output"
                )
            if _is_same_file(file, self.path):
                break
            file.close()  # the previous holder has removed it
        self._file = file
        with suppress(OSError):  # only informative, and the disk may be full
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()

    def _open(self) -> IO[str]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return open(self.path, "a+", encoding="utf-8")
        except OSError as reason:
            raise make_folder_error(self.path.parent, reason, StudyError) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        removed = self._remove()  # while it is locked, so that no other process's lock is removed
        if self._file is not None:
            with suppress(OSError):  # closing fails on a full disk
                self._file.close()
        if not removed:  # Windows cannot remove open files, so this removes none that another process has opened
            self._remove()
        self._resources.close()

    def _remove(self) -> bool:
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


def _read_holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200).strip() or "another process"


def _is_same_file(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one with this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _lock_file(file: IO[str]) -> bool:
    """Lock an open file; return False if another process holds the lock."""
    try:
        fcntl = importlib.import_module("fcntl")
    except ImportError:  # Windows
        return _lock_file_on_windows(file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        # Some network file systems do not support locks: there, concurrent processes are not detected.
        return reason.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _lock_file_on_windows(file: IO[str]) -> bool:
    """Lock a file on Windows, where locks are for bytes of a file and block reading these."""
    msvcrt = importlib.import_module("msvcrt")
    try:
        file.seek(BEHIND)  # the byte need not exist
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError as reason:
        return reason.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    finally:
        file.seek(0)
    return True

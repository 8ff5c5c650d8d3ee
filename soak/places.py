# ruff: noqa: D103
"""What happens to the output folder: full, removed, damaged, wanted by two."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runs import SLOWLY, Folder, Row, Running, check

from headscope.studies.result import Study

SMALL_DISK = "32m"
USED = "The one before it is used"


@contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    """A file system of little room at a place; False where none can be mounted."""
    place.mkdir(parents=True, exist_ok=True)
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(place)], capture_output=True, check=False
    )
    try:
        yield tried.returncode == 0
    finally:
        if tried.returncode == 0:
            subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place: Path) -> Path:
    """Take all room that is left."""
    path = place / "filler"
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def full(folder: Folder, whole: Study) -> Iterator[Row]:
    """A disk that is full for a while; and one that is full to the end."""
    name = "disk full"
    with small_disk(folder.out.parent) as mounted:
        if not mounted:
            yield Row(name, 0, 0, 0, note="not run: no small file system can be mounted here")
            return
        running = folder.start(hooks=SLOWLY)
        check(running.studies(), f"no checkpoint: {running.said[-300:]}")
        filler = fill(folder.out.parent)
        check(running.until(lambda: "no checkpoint could be written" in running.said), "nothing said of a full disk")
        filler.unlink()
        check(running.until(lambda: "can be written again" in running.said), "nothing said when there was room")
        running.ended(0)
        yield folder.row(f"{name} for a while", 1, whole, "said, continued, said when it could write again")
        shutil.rmtree(folder.out)
        folder.runs = 0
        running = folder.start(hooks=SLOWLY)
        check(running.studies(), f"no checkpoint: {running.said[-300:]}")
        filler = fill(folder.out.parent)
        check(running.ended() == 1, f"not exit code 1 on a full disk: {running.said[-300:]}")
        filler.unlink()
        folder.finish()
        yield folder.row(f"{name} to the end", 1, whole, "exit code 1; with room again, finished")


def removed(folder: Folder, whole: Study) -> Row:
    running = folder.start(hooks=SLOWLY)
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    for _ in range(3):
        shutil.rmtree(folder.out, ignore_errors=True)
        if not folder.out.exists():
            break
    running.ended(0)
    check("was removed, and is created again" in running.said, running.said[-300:])
    return folder.row("output folder removed", 1, whole, "said, and created again")


def _cut(folder: Folder) -> Running:
    """A run that is killed when there are two checkpoints of it."""
    running = folder.start(hooks=SLOWLY)
    running.until(lambda: running.fresh("checkpoint/last") and running.fresh("checkpoint/previous"))
    time.sleep(0.2)
    running.process.kill()
    running.ended()
    return running


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


DAMAGE = {
    "a bit flipped": flip,
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
}


def damaged(folder: Folder, whole: Study) -> list[Row]:
    for number, how in enumerate(DAMAGE.values()):
        running = _cut(folder)
        check(number == 0 or USED in running.said, running.said[-300:])
        how(folder.out / "checkpoint" / "last")
    running = folder.finish()
    check(USED in running.said, running.said[-300:])
    rows = [folder.row(f"last checkpoint damaged ({', '.join(DAMAGE)})", len(DAMAGE), whole, "the one before was used")]
    folder.runs = 0
    shutil.rmtree(folder.out)
    _cut(folder)
    for name in ("last", "previous"):
        flip(folder.out / "checkpoint" / name)
    running = folder.start()
    running.ended(1)
    check("start again with --overwrite" in running.said, running.said[-300:])
    folder.finish("--overwrite")
    return [*rows, folder.row("both checkpoints damaged", 1, whole, "refused; started again with --overwrite")]


def wanted_by_two(folder: Folder, whole: Study) -> Row:
    first = folder.start(hooks=SLOWLY)
    check(first.studies(), f"no checkpoint: {first.said[-300:]}")
    first.send(signal.SIGSTOP)  # it is not to finish before the second one has started
    second = folder.start()
    second.ended(1)
    first.send(signal.SIGCONT)
    check("is in use" in second.said, second.said[-300:])
    first.ended(0)
    return folder.row("a second process on the same folder", 1, whole, "refused; the first was not disturbed")

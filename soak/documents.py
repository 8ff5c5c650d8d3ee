# ruff: noqa: D103
"""What happens to texts, to the clock and to memory while a study runs, and between its runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runs import SLOWLY, Folder, Row, check, opened

from headscope.studies.result import Study

BROKEN = 15_001
"""the line that is no JSON; those of the first 2,000 documents are looked at before anything is counted"""


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    """A file holds something else for a while; then it is as it was, with its time."""
    held, stat = path.read_bytes(), path.stat()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(held)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def other_text(path: Path) -> bytes:
    others = path.read_bytes().splitlines(keepends=True)[1:]
    return b"".join([json.dumps({"text": "Not this one."}).encode() + b"\n", *others])


def broken_line(path: Path) -> bytes:
    lines = path.read_bytes().splitlines(keepends=True)
    number = BROKEN - 1
    # As long as the right one: where the chunks of the file begin depends on its bytes.
    return b"".join([*lines[:number], b"no JSON".ljust(len(lines[number]) - 1) + b"\n", *lines[number + 1 :]])


def vanished(folder: Folder, whole: Study, path: Path) -> Row:
    """A file goes away before it is read."""
    running, away = folder.start(hooks=SLOWLY), path.with_suffix(".away")
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    path.rename(away)
    try:
        running.ended(1)
        check(path.name in running.said, running.said[-300:])
    finally:
        away.rename(path)
    folder.finish()
    return folder.row("a file vanishes while it runs", 1, whole, "stopped, named; put back, finished")


def changed_while_read(folder: Folder, whole: Study, path: Path) -> Row:
    """It is written anew all the time, with what it held, so that this happens while it is read too."""
    running = folder.start(hooks=SLOWLY)
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    with changed(path, path.read_bytes()):
        while running.alive:
            os.utime(path)
            time.sleep(0.3)
        running.ended(1)
        check(f"{path.name}: changed since this study began" in running.said, running.said[-300:])
    folder.finish()
    return folder.row("a file changes while it is read", 1, whole, "stopped, named; put back, finished")


def changed_between(folder: Folder, whole: Study, path: Path) -> Row:
    running = folder.start(hooks=SLOWLY)
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    time.sleep(1.0)
    running.process.kill()
    running.ended()
    with changed(path, other_text(path)):
        refused = folder.start()
        refused.ended(1)
        check(path.name in refused.said and "not the texts" in refused.said, refused.said[-300:])
    folder.finish()
    return folder.row(
        "a text changes between two runs", 1, whole, "refused, with the name of the file; put back, finished"
    )


def broken(folder: Folder, skipping: Folder, whole: Study, path: Path) -> list[Row]:
    """A line that is no JSON, far behind: it is reached when much was studied."""
    with changed(path, broken_line(path)):
        running = folder.start()
        running.ended(1)
        check(f"{path.name}:{BROKEN}: not a JSON object" in running.said, running.said[-300:])
        skipping.finish("--skip-broken")
    folder.finish()
    rows = [folder.row("a broken line", 1, whole, "the other texts counted, file and line named; mended, finished")]
    made = opened(skipping.out)
    skipped = made.manifest["documents_skipped"]
    missing = whole.texts - made.texts
    right = missing in (0, 1) and made.manifest["documents_read"] == whole.manifest["documents_read"]
    note = f"skipped and counted: {json.dumps(skipped)}; {missing} text fewer, the broken one"
    return [*rows, Row("a broken line, --skip-broken", 1, 1, 1, max(0, missing - 1), max(0, -missing), note, right)]


def tokenizer(folder: Folder, whole: Study) -> Row:
    running = folder.start(hooks=("chunks", "blank", "tokenizer"))
    running.ended(1)
    check("e.jsonl:20: the tokenizer fails on it" in running.said, running.said[-300:])
    folder.finish()
    note = "the other texts counted, it is named; mended, finished"
    return folder.row("a document that breaks the tokenizer", 1, whole, note)


def clock(folder: Folder, whole: Study) -> Row:
    running = folder.start(hooks=("clock", *SLOWLY))
    running.until((folder.out / "checkpoint" / "previous").exists)
    check(running.alive, f"ended before it was to be killed: {running.said[-300:]}")
    running.process.kill()
    running.ended()
    folder.finish(hooks=("clock", "chunks", "blank"))
    note = "time.time() up to 400 days off at every call, in both runs; killed between them"
    return folder.row("the clock jumps", 1, whole, note)


def memory(folder: Folder, whole: Study) -> Row:
    folder.finish(hooks=("chunks", "blank", "memory"))
    note = opened(folder.out).manifest["batch_size_note"]
    check("halved" in note, f"the batch was not halved: {note!r}")
    return folder.row("out of memory in one batch", 1, whole, f"batch size {note}; reals to 1e-4", alike=True)

# ruff: noqa: D103
"""Asked to end: SIGTERM, Ctrl-C, and Ctrl-C again while what there is is drawn."""

from __future__ import annotations

import random
import signal
import time

from runs import SLOWLY, Folder, Row, check

from headscope.studies.result import Study

TERMINATED, INTERRUPTED = 143, 130


def terminated(folder: Folder, whole: Study, times: int) -> Row:
    chance, longest = random.Random(1), 0.0
    for _ in range(times):
        running = folder.start(hooks=SLOWLY)
        check(running.studies(), f"no checkpoint: {running.said[-300:]}")
        time.sleep(chance.uniform(0, 1))
        running.send(signal.SIGTERM)
        sent = time.monotonic()
        running.ended(TERMINATED)
        longest = max(longest, time.monotonic() - sent)
        check("Run the same command again to resume" in running.said, running.said[-300:])
    folder.finish()
    return folder.row("SIGTERM", times, whole, f"exit code 143 within {longest:.1f} s")


def interrupted(folder: Folder, whole: Study) -> Row:
    running = folder.start(hooks=SLOWLY)
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    running.send(signal.SIGINT)
    running.ended(INTERRUPTED)
    check("marked incomplete" in running.said, running.said[-300:])
    folder.finish()
    return folder.row("Ctrl-C", 1, whole, "exit code 130, what there was was drawn, marked incomplete")


def interrupted_twice(folder: Folder, whole: Study) -> Row:
    running = folder.start(hooks=("chunks", "slow"))
    check(running.studies(), f"no checkpoint: {running.said[-300:]}")
    running.send(signal.SIGINT)
    check(running.until(lambda: running.fresh("study.nc")), f"nothing was written: {running.said[-300:]}")
    time.sleep(0.5)
    running.send(signal.SIGINT)
    sent = time.monotonic()
    running.ended(INTERRUPTED)
    took = time.monotonic() - sent
    folder.finish()
    return folder.row("Ctrl-C, and again while it draws", 2, whole, f"exit code 130 within {took:.1f} s")

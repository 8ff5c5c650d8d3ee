# ruff: noqa: D103
"""kill -9, many times over one study, at moments that chance chooses."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

from runs import Folder, Row, Running, check

from headscope.studies.result import Study

SHARES = {"loading": 6, "studying": 9, "writing a checkpoint": 4, "drawing": 6}
"""where kills are meant to land, of 25"""

FIGURES = 30
"""files of figures, of all 36, after at most so many of which a kill lands"""


@dataclass
class Pace:
    """Seconds of the undisturbed study."""

    loading: float
    studying: float
    drawing: float


def paced(folder: Folder) -> Pace:
    """The undisturbed study, and how long its stages take."""
    running = folder.start()
    began = time.monotonic()
    check(running.studies(), f"no checkpoint: {running.said[-600:]}")
    loading = time.monotonic() - began
    running.until(lambda: running.fresh("study.nc"))
    studying = time.monotonic() - began - loading
    running.ended(0)
    return Pace(loading, studying, time.monotonic() - began - loading - studying)


def plan(count: int, chance: random.Random) -> list[str]:
    """Where each kill is meant to land: anywhere, in any order; only drawing comes when all is studied."""
    whole = sum(SHARES.values())
    meant = {stage: max(1, share * count // whole) for stage, share in SHARES.items()}
    meant["studying"] += count - sum(meant.values())
    before = [stage for stage, times in meant.items() if stage != "drawing" for _ in range(times)]
    chance.shuffle(before)
    return before + ["drawing"] * meant["drawing"]


def moment(stage: str, running: Running, pace: Pace, chance: random.Random) -> None:
    """Wait for a moment in a stage."""
    if stage == "loading":
        time.sleep(chance.uniform(0.05, pace.loading))
        return
    if stage == "drawing":  # after the first such kill, later runs find the study complete and only draw
        drawn = chance.randrange(1, FIGURES)
        running.until(lambda: _drawn(running) >= drawn)
        time.sleep(chance.uniform(0, 0.3))
        return
    running.studies()
    if stage == "studying":
        time.sleep(chance.uniform(0, pace.studying / 12))
    else:
        running.until((running.out / "checkpoint" / ".next").exists, 3.0, step=0.0005)


def _drawn(running: Running) -> int:
    """Figures that this run drew so far."""
    return sum(running.fresh(f"figures/{path.name}") for path in (running.out / "figures").glob("*"))


def landed(running: Running) -> str:
    """Where a run was when it was killed, by what it left: before its first checkpoint it counts as loading."""
    if running.fresh("checkpoint/.next"):  # one that an earlier run left stays until a checkpoint is written
        return "writing a checkpoint"
    if running.fresh("study.nc") or _drawn(running):
        return "drawing"
    return "studying" if running.fresh("checkpoint/last") else "loading"


def killed(folder: Folder, whole: Study, pace: Pace, count: int, seed: int = 0) -> Row:
    chance, where = random.Random(seed), Counter[str]()
    for stage in plan(count, chance):
        running = folder.start()
        moment(stage, running, pace, chance)
        check(running.alive, f"ended by itself, meant to be killed while {stage}: {running.said[-300:]}")
        running.process.kill()
        check(running.ended() == -signal.SIGKILL, "not killed")
        where[landed(running)] += 1
    folder.finish()
    note = "landed while " + ", ".join(f"{stage} {times}×" for stage, times in where.items())
    return folder.row("kill −9, many times in a row", sum(where.values()), whole, note)

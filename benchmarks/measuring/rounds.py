"""Taking turns: every way between two bare forward passes, in every round.

A ratio is a way's time over the mean of the two bare passes around it, so that a machine's moods touch both alike. The
median of the ratios is reported, with the lowest and the highest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

DRIFT = 0.1
"""Bare passes before and after a way that differ by more than this are worth a word."""


@dataclass
class Turns:
    """What one way took: seconds per text in each round, beside the bare passes before and after."""

    taken: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        rows = zip(self.taken, self.before, self.after, strict=True)
        return [taken / ((before + after) / 2) for taken, before, after in rows]

    @property
    def drifts(self) -> list[float]:
        """By how much the two bare passes of each round differ, relative to their mean."""
        rows = zip(self.before, self.after, strict=True)
        return [abs(before - after) / ((before + after) / 2) for before, after in rows]

    def summary(self) -> dict[str, Any]:
        median = statistics.median(self.taken)
        return {
            "ms": 1000 * median,
            "texts_per_second": 1 / median,
            "ratio": statistics.median(self.ratios),
            "ratio_low": min(self.ratios),
            "ratio_high": max(self.ratios),
            "rounds": len(self.taken),
            "unsteady_rounds": sum(drift > DRIFT for drift in self.drifts),
        }


def seconds(run: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Runner:
    """A way made ready: what to call, how many texts it does, in how many rounds it takes part."""

    run: Callable[[], None]
    texts: int
    rounds: int


def take_turns(
    bare: Runner, runners: dict[str, Runner], device: torch.device, say: Callable[[str], None] = lambda words: None
) -> tuple[dict[str, Turns], list[float]]:
    """Each way's turns, and the seconds per text of all bare passes."""
    for name, runner in {"bare": bare, **runners}.items():
        say(f"warming up: {name}")
        runner.run()

    def alone() -> float:
        return seconds(bare.run, device) / bare.texts

    turns: dict[str, Turns] = {name: Turns() for name in runners}
    bares = []
    for number in range(bare.rounds):
        say(f"round {number + 1} of {bare.rounds}")
        before = alone()
        bares.append(before)
        for name, runner in runners.items():
            if number >= runner.rounds:
                continue
            taken = seconds(runner.run, device) / runner.texts
            after = alone()
            bares.append(after)
            held = turns[name]
            held.taken.append(taken)
            held.before.append(before)
            held.after.append(after)
            before = after
    return turns, bares

# ruff: noqa: D103
"""Studies by the real command line, each a process of its own; and whether what they made is what it should be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import headscope
from headscope.errors import StudyError
from headscope.studies.result import Study

LONGEST = 900.0
"""seconds that one run may take"""
CHILD = Path(__file__).parent / "child.py"
SAME = ("corpus_hash", "documents_read", "documents_skipped", "excerpts", "sample", "complete")
STUDYING = ("--length", "32", "--sample", "0.3", "--checkpoint-interval", "0.5", "--device", "cpu", "--json")


QUICKLY, SLOWLY = ("chunks", "blank"), ("chunks", "blank", "slow")
"""hooks of child.py for a study of few texts, and for one that takes a while"""


class Wrong(Exception):
    """Something is not as it should be; says what."""


def check(right: bool, words: str) -> None:
    if not right:
        raise Wrong(words)


@dataclass
class Row:
    """A line of the table."""

    fault: str
    often: int
    runs: int
    finished: int
    lost: int | None = None
    twice: int | None = None
    """None: it was not compared with an undisturbed study"""
    note: str = ""
    right: bool = True


@dataclass
class Running:
    """A process that studies."""

    process: subprocess.Popen[bytes]
    errors: Path
    out: Path
    began: float = field(default_factory=time.time)
    peak: int = 0
    """bytes of memory, when it ended"""

    @property
    def said(self) -> str:
        return self.errors.read_text("utf-8", "replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def fresh(self, name: str) -> bool:
        """Whether a file of its folder was written by this run."""
        try:
            return (self.out / name).stat().st_mtime >= self.began
        except OSError:
            return False

    def until(self, condition: Callable[[], bool], seconds: float = LONGEST, step: float = 0.01) -> bool:
        """Wait for something; False where the process ended, or the time, before it."""
        end = time.monotonic() + seconds
        while self.alive and time.monotonic() < end:
            if condition():
                return True
            time.sleep(step)
        return condition()

    def studies(self) -> bool:
        """Wait until this run kept a first checkpoint."""
        return self.until(lambda: self.fresh("checkpoint/last"))

    def send(self, number: int) -> None:
        if self.alive:
            self.process.send_signal(number)

    def ended(self, code: int | None = None) -> int:
        """Wait for its end, and check how it ended."""
        self.until(lambda: False)
        if self.alive:
            self.process.kill()
            self.process.wait()
            raise Wrong(f"took more than {LONGEST:.0f} seconds: {self.said[-300:]}")
        found = self.process.wait()
        check(code is None or found == code, f"ended with {found}, not {code}: {self.said[-600:]}")
        check("Traceback" not in self.said, f"a traceback: {self.said[-600:]}")
        return found


@dataclass
class Folder:
    """One output folder, and the command for it, given again and again. `hooks` are those of child.py.

    The command is given in the folder `at`, by names in it: so texts have the same names wherever they are copied.
    """

    out: Path
    at: Path
    sources: Sequence[str]
    options: Sequence[str] = STUDYING
    hooks: Sequence[str] = ("blank",)
    runs: int = 0

    def start(self, *more: str, hooks: Sequence[str] | None = None) -> Running:
        hooks = self.hooks if hooks is None else hooks
        self.out.parent.mkdir(parents=True, exist_ok=True)
        begin = [sys.executable, str(CHILD), ",".join(hooks)] if hooks else [sys.executable, "-m", "headscope"]
        given = [*begin, "study", *self.sources, "--output", str(self.out), *self.options, *more]
        errors = self.out.parent.parent / f"{self.out.parent.name}-{self.out.name}-{time.monotonic_ns()}.err"
        self.runs += 1
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with open(errors, "wb") as said, open(errors.with_suffix(".out"), "wb") as told:
            process = subprocess.Popen(
                given, stderr=said, stdout=told, env=environment, start_new_session=True, cwd=self.at
            )
        return Running(process, errors, self.out)

    def finish(self, *more: str, hooks: Sequence[str] | None = None) -> Running:
        running = self.start(*more, hooks=hooks)
        running.ended(0)
        return running

    def row(self, fault: str, often: int, whole: Study, note: str = "", *, alike: bool = False) -> Row:
        """What came out, beside the undisturbed study. `alike`: batches were others, so reals may differ a little."""
        made = headscope.open_study(self.out)
        texts, read = made.texts - whole.texts, made.manifest["documents_read"] - whole.manifest["documents_read"]
        differs = differences(whole, made, alike=alike)
        left = [path.name for path in self.out.iterdir() if path.name in ("checkpoint", ".headscope-lock")]
        if left:
            differs.append(f"{', '.join(left)} left behind")
        missing, more = max(0, -texts, -read), max(0, texts, read)
        words = "; ".join([*([note] if note else []), *([f"DIFFERS in {', '.join(differs[:5])}"] if differs else [])])
        return Row(fault, often, self.runs, 1, missing, more, words, not differs)


def differences(whole: Study, made: Study, *, alike: bool = False) -> list[str]:
    """The names of all that is not the same: integers exactly, reals to 1e-12."""
    found = [name for name in SAME if whole.manifest[name] != made.manifest[name]]
    found += [str(name) for name in set(whole.data.variables) ^ set(made.data.variables)]
    room = 1e-4 if alike else 1e-12
    for name in set(whole.data.variables) & set(made.data.variables):
        one, other = whole.data[name].values, made.data[name].values
        if one.shape != other.shape:
            found.append(str(name))
        elif one.dtype.kind == "f":
            if not np.allclose(one, other, rtol=room, atol=room, equal_nan=True):
                found.append(str(name))
        elif alike and str(name).startswith("value_histogram"):  # a value at the edge of a bin may be in the next one
            if one.sum() != other.sum() or np.abs(one - other).sum() > 1e-4 * one.sum():
                found.append(str(name))
        elif not np.array_equal(one, other):
            found.append(str(name))
    return found


def opened(folder: Path) -> Study:
    try:
        return headscope.open_study(folder)
    except StudyError as error:
        raise Wrong(str(error)) from None

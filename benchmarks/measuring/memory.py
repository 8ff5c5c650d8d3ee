"""Peak memory of one way, in a process of its own: what it takes above the loaded model and its windows."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """The most memory that is taken from now on above what is held now."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 1e6
        else:
            forget_peak()
            self.before = resident("VmRSS")

    def megabytes(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() / 1e6 if self.cuda else resident("VmHWM")) - self.before


def peak_above(run: Callable[[], None], device: torch.device) -> float:
    """Megabytes that a run takes at its highest above what is held before it."""
    peak = Peak(device)
    run()
    return peak.megabytes()


def forget_peak() -> None:
    """Loading a model may have needed more than holding it: the system can be asked to count anew."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return


def resident(line: str) -> float:
    """VmRSS, what is held now, or VmHWM, the most that was held, in megabytes."""
    if STATUS.exists():
        found = re.search(rf"{line}:\s+(\d+) kB", STATUS.read_text())
        if found:
            return int(found.group(1)) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def in_own_process(script: Path, arguments: list[str]) -> dict[str, float] | None:
    """What a script prints as JSON in its last line when run with these arguments; None where it fails."""
    ran = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        print(ran.stderr[-2000:], file=sys.stderr)
        return None
    made: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return made

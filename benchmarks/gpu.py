"""Everything that is said of a GPU, tried and measured anew by one command, what matters most first.

    python benchmarks/gpu.py [--minutes 25] [--only tests,bfloat16-512] [--results FOLDER]

First the kernels are held against plain loops on this GPU, then the tables of docs/speed.md and docs/cluster.md are
measured, each into a file of its own as soon as it is known. A step is not begun that would not end in the minutes
given; a second command takes up those that are left with `--only`. At the end it says what was measured beside what
is aimed at. `benchmarks/speed.py --docs` and `benchmarks/cost.py --docs` then write the pages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SHAPE = "--shape 12x12x768 --device cuda"
SPEED = f"speed.py {SHAPE} --no-memory"
LONG = "--length 512 --batch 256"


@dataclass(frozen=True)
class Step:
    """One command: its name, about how many minutes it takes on an H200, and where its result goes, if it has one."""

    name: str
    minutes: float
    command: str
    file: str = ""


STEPS = (
    Step(
        "tests", 8, "-m pytest -q -x tests/tally/test_gpu.py tests/tally/test_kernels.py tests/run/test_kernel_trial.py"
    ),
    Step(
        "bfloat16-512", 1, f"{SPEED} --dtype bfloat16 {LONG} --texts 4096 --ways eager,triton-0,triton-0.05",
        "speed-gpu-bfloat16-512",
    ),
    Step("variants-512", 4, "variants.py", "variants-gpu-bfloat16-512"),
    Step("bfloat16", 1, f"{SPEED} --dtype bfloat16 --ways eager,triton-0,triton-0.05", "speed-gpu-bfloat16"),
    Step("float32", 2, f"{SPEED} --texts 8192 --ways eager,triton-0,triton-0.05", "speed-gpu-float32"),
    Step("float32-512", 2, f"{SPEED} {LONG} --texts 1024 --ways eager,triton-0", "speed-gpu-float32-512"),
    Step("job", 1, "job.py --device cuda", "job-gpu"),
    Step("job-bfloat16", 1, "job.py --device cuda --dtype bfloat16", "job-gpu-bfloat16"),
    Step("host", 1, "host.py", "host-gpu"),
    Step("variants-float32", 3, "variants.py --length 128 --texts 1024 --dtype float32", "variants-gpu-float32"),
    Step("variants", 3, "variants.py --length 128 --texts 1024", "variants-gpu-bfloat16"),
    Step("cost", 2, "cost.py --device cuda --texts 100000 --every 5", "cost-gpu"),
    Step("cost-bfloat16", 2, "cost.py --device cuda --texts 100000 --every 5 --dtype bfloat16", "cost-gpu-bf16"),
    Step("growth", 5, f"speed.py --growth {SHAPE} --growth-texts 2048 16384 131072", "growth-gpu"),
    Step(
        "others", 2, f"{SPEED} --texts 2048 --rounds 3 --ways torch-0,lens-heads,notebook",
        "speed-gpu-float32-others",
    ),
    Step(
        "memory", 2, f"speed.py {SHAPE} --texts 4096 --rounds 1 --ways triton-0,triton-0.05",
        "speed-gpu-float32-memory",
    ),
    Step("dtypes", 4, "dtypes.py --device cuda", "dtypes-gpu-minilm"),
)  # fmt: skip
MARKS = {
    "speed-gpu-float32": ("triton-0", 1.10),
    "speed-gpu-bfloat16": ("triton-0", 1.15),
    "speed-gpu-float32-512": ("triton-0", 1.25),
    "speed-gpu-bfloat16-512": ("triton-0", 1.25),
}
"""What is aimed at: how many times the bare forward pass a way may take at most."""


def run(step: Step, results: Path) -> int:
    """The exit status of a step, whose result is in its file then."""
    first, *rest = step.command.split()
    command = [sys.executable, first if first == "-m" else str(HERE / first), *rest]
    if step.file:
        command += ["--json", str(results / f"{step.file}.json")]
    print(f"== {step.name}: {' '.join(command[1:])}", flush=True)
    return subprocess.run(command, cwd=HERE.parent, check=False).returncode


def verdicts(results: Path) -> list[str]:
    """What was measured beside what is aimed at."""
    said = []
    for name, (key, mark) in MARKS.items():
        path = results / f"{name}.json"
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ways": []}
        (ratio,) = [way["ratio"] for way in held["ways"] if way["key"] == key and "ratio" in way] or [None]
        measured = "not measured" if ratio is None else f"{ratio:.2f}, {'met' if ratio <= mark else 'MISSED'}"
        said.append(f"{name}: at most {mark:.2f} × the bare forward: {measured}")
    return said


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="for all steps together")
    parser.add_argument("--only", help=f"these steps: {','.join(step.name for step in STEPS)}")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [step.name for step in STEPS]
    if unknown := [name for name in names if name not in {step.name for step in STEPS}]:
        sys.exit(f"no step {', '.join(unknown)}; there are: {', '.join(step.name for step in STEPS)}")
    options.results.mkdir(parents=True, exist_ok=True)
    ends, failed, left = time.monotonic() + 60 * options.minutes, [], []
    for step in STEPS:
        if step.name not in names:
            continue
        if time.monotonic() + 60 * step.minutes > ends:
            left.append(step.name)
        elif run(step, options.results):
            failed.append(step.name)
    print("\n".join(verdicts(options.results)))
    if left:
        print(f"left for want of time: --only {','.join(left)}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

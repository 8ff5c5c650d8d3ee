"""Compile the GPU kernels for GPUs that are not here: Triton's interpreter accepts code that the compiler would
reject."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compiling.py"
MOST_SPILLED = 2_000
"""bytes per thread. If the factors of a product do not fit into registers, four times as many are spilled."""


def run_script(*command: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("triton")
    path = os.pathsep.join([str(SCRIPT.parent), *sys.path])  # the headscope that is tested, wherever it is
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *command], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("asked", "cases"),
    [
        ("--architecture 90 --length 128 512", 2),
        ("--architecture 89 --dtype bfloat16 float32 --length 130 --width 256 --ragged", 2),
        ("--architecture 80 90 --dtype float32 --length 70 --ragged --causal", 2),
    ],
)
def test_kernels_compile_and_fit(asked: str, cases: int):
    process = run_script(str(SCRIPT), *asked.split())
    assert process.returncode == 0, process.stderr
    rows = [re.split(r"\s{2,}", row) for row in process.stdout.splitlines()[1:]]
    assert len(rows) == cases
    for case, kernels, shared, spilled, *_ in rows:
        assert int(kernels) >= 14, case
        assert int(shared) > 0, case
        assert int(spilled) < MOST_SPILLED, case


def test_what_does_not_fit_is_said():
    script = "import compiling; compiling.Case.room = 10_000; compiling.main(['--length', '40', '--dtype', 'float32'])"
    process = run_script("-c", script)
    assert process.returncode == 1
    assert "find_all needs more than 10,000 bytes of shared memory" in process.stderr

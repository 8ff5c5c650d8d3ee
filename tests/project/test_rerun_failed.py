"""Tests that failed beside others are run once more: what is flaky is said, and what fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "rerun_failed.py"
PASSING = "def test_passes():\n    pass\n"
ONCE = """
import pathlib, pytest
def fail_once(name):
    mark = pathlib.Path(name)
    if not mark.exists():
        mark.touch()
        raise OSError("only this time")
@pytest.fixture
def prepared():
    fail_once("prepared")
@pytest.fixture
def ended():
    yield
    fail_once("ended")
@pytest.mark.parametrize("case", ["a [b]"])
def test_flaky(case):
    fail_once("flaky")
def test_flaky_setup(prepared):
    pass
def test_flaky_end(ended):
    pass
"""
FLAKY = ["test_once.py::test_flaky[a [b]]", "test_once.py::test_flaky_setup", "test_once.py::test_flaky_end"]


def run(folder: Path, *arguments: str, **files: str) -> tuple[int, list[str], list[str]]:
    """Run the script on some files of tests: its exit code, all lines, and what it says of tests at the end."""
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content, "utf-8")
    command = [sys.executable, str(SCRIPT), "-p", "xdist", "-n", "2", *arguments]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # loading others takes most of the time
    ran = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=300, check=False)
    lines = ran.stdout.splitlines()
    told = list(takewhile(lambda line: line.startswith(("FLAKY ", "FAILED ", "BROKEN ")), reversed(lines[:-1])))
    return ran.returncode, lines, told[::-1]


def test_what_passes_the_second_time_is_named_and_does_not_fail_the_run(tmp_path: Path):
    code, lines, told = run(tmp_path, passing=PASSING, once=ONCE)
    assert (code, sorted(told)) == (0, sorted(f"FLAKY {test}" for test in FLAKY))
    assert "1 failed, 2 passed, 2 errors in " in lines[-1]
    assert any("3 passed in " in line for line in lines)  # the second time, and only these


def test_nothing_is_run_twice_that_passed(tmp_path: Path):
    code, lines, told = run(tmp_path, passing=PASSING)
    assert (code, told) == (0, [])
    assert "1 passed in " in lines[-1]
    assert sum(" passed in " in line for line in lines) == 2  # the line itself, and once more at the end


def test_what_fails_twice_fails_the_run(tmp_path: Path):
    failing = "def test_fails():\n    assert 0\n"
    error = "import pytest\n@pytest.fixture\ndef broken():\n    raise OSError\ndef test_error(broken):\n    pass\n"
    skipped = ONCE + "def test_skipped():\n    fail_once('skipped') or pytest.skip('no verdict')\n"
    code, lines, told = run(tmp_path, passing=PASSING, once=skipped, failing=failing, error=error)
    named = ["test_failing.py::test_fails", "test_error.py::test_error", "test_once.py::test_skipped"]
    wanted = [f"FLAKY {test}" for test in FLAKY] + [f"FAILED {test}" for test in named]
    assert (code, sorted(told)) == (1, sorted(wanted))
    assert "3 failed, 2 passed, 3 errors in " in lines[-1]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        ("import nothing_of_this_name\n", [], "test_odd.py could not be collected"),
        ("import os\ndef test_ends():\n    os._exit(0)\n", [], "crashed: Not properly terminated"),
        ("import pytest\ndef test_stops():\n    pytest.exit('enough')\n", [], "pytest ended with 2"),
        ("", ["--unknown-option"], "pytest ended with 4"),
        ("", ["-k", "nothing_of_this_name"], "pytest ended with 5"),
    ],
    ids=["collection", "crash", "stopped", "usage", "no tests"],
)
def test_a_run_that_does_not_get_through_fails_at_once(tmp_path: Path, content: str, arguments: list[str], said: str):
    code, lines, told = run(tmp_path, *arguments, passing=PASSING, once=ONCE, odd=content)
    assert code == 1
    assert any(line.startswith("BROKEN ") and said in line for line in told), told
    assert not any(line.startswith("FLAKY") or "once more" in line for line in lines)


def test_many_failures_are_no_accidents(tmp_path: Path):
    many = "import pytest\n@pytest.mark.parametrize('k', range(41))\ndef test_fails(k):\n    assert 0\n"
    code, lines, told = run(tmp_path, many=many)
    assert (code, told) == (1, [f"FAILED test_many.py::test_fails[{k}]" for k in range(41)])
    assert not any("once more" in line for line in lines)

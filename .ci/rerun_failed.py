#!/usr/bin/env python3
"""Run the tests in parallel, then rerun those that failed once, serially.

Tests that pass on the rerun are listed as FLAKY and do not fail the run; tests that fail twice are listed as FAILED. A
crashed worker, a collection error or an interrupt fails the run at once. Arguments go to the first pytest run. Start it
in the folder that holds the pytest settings.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

PARALLEL = ("-n", "3", "--dist", "loadfile", "--max-worker-restart", "0")
MAX_RERUNS = 40  # more failures than this have a common cause and are not rerun
CLOSING = re.compile(r"\bin \d+\.\d+s\b")


class Record:
    """pytest plugin that writes the outcome of all tests, of xdist workers too, to a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path, self.passed, self.failed, self.broken = path, list[str](), list[str](), list[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:  # a test may fail again in its teardown
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.broken += [f"{report.nodeid} could not be collected"] if report.failed else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.broken += [f"worker {node.gateway.id} crashed: {error}"] if error else []

    def pytest_unconfigure(self) -> None:
        self.path.write_text(json.dumps(self.__dict__, default=str), encoding="utf-8")


def run_tests(*arguments: str) -> tuple[dict[str, list[str]], str]:
    """Run pytest in a child process and show its output; return the recorded outcome and pytest's closing line."""
    with tempfile.TemporaryDirectory() as folder:
        path, closing = Path(folder) / "record.json", ""
        command = [sys.executable, __file__, "--record", str(path), *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                closing = line.rstrip("\n") if CLOSING.search(line) else closing
        if process.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not path.exists():
            return {"broken": [f"pytest ended with {process.returncode}"]}, closing
        return json.loads(path.read_text(encoding="utf-8")), closing


def main(arguments: list[str]) -> int:
    """Run the tests, rerun failures, print the verdicts and return the exit status."""
    outcome, closing = run_tests(*PARALLEL, *arguments)
    failed, flaky = outcome.get("failed", []), list[str]()
    if failed and not outcome["broken"] and len(failed) <= MAX_RERUNS:
        print(f"\n{len(failed)} failed; rerunning them serially", flush=True)
        again, _ = run_tests(*failed)
        flaky = [test for test in failed if test in again.get("passed", []) and test not in again["failed"]]
    lines = [f"BROKEN {reason}" for reason in outcome["broken"]] + [f"FLAKY {test}" for test in flaky]
    print(*lines, *(f"FAILED {test}" for test in failed if test not in flaky), closing, sep="\n")
    return 1 if outcome["broken"] or len(flaky) < len(failed) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
        sys.exit(pytest.main(sys.argv[3:], plugins=[Record(Path(sys.argv[2]))]))
    sys.exit(main(sys.argv[1:]))

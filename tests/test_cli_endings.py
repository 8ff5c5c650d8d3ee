"""However `headscope study` ends, what it computed is kept, people are told, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope import output
from headscope.errors import StudyError
from headscope.studies.crew import Crew
from headscope.studies.lock import Lock
from headscope.studies.result import open_study
from tests.cutting import assert_equal, files, saved_model

pytestmark = pytest.mark.usefixtures("one_figure", "small_portions")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def command(folder: Path, tmp_path: Path) -> list[str]:
    (made,) = files(tmp_path / "in", [60])
    more = ("--length", "24", "--batch-size", "3", "--checkpoint-every", "0", "--quiet", "--out", "out")
    return ["study", str(made), "--model", str(folder), *more]


@pytest.fixture
def whole(folder: Path, tmp_path: Path, command: list[str]) -> Any:
    return headscope.study(headscope.load(folder, device="cpu"), command[1], length=24, batch_size=3)


def at_batch(monkeypatch: pytest.MonkeyPatch, number: int, what: Any) -> None:
    """Have something happen at a batch."""
    observe, seen = Crew.observe, iter(range(10**6))

    def observed(self: Crew, *more: Any) -> None:
        if next(seen) == number:
            what()
        observe(self, *more)

    monkeypatch.setattr(Crew, "observe", observed)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "marked incomplete. Give the same command to go on."), (signal.SIGTERM, 143, "terminated.")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_keeps_what_was_studied_and_the_command_goes_on(
    headscope_command,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    whole: Any,
    tmp_path: Path,
    number,
    code,
    said,
):
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        at_batch(patched, 9, lambda: signal.raise_signal(number))
        ran = headscope_command(*command)
    assert ran.code == code, ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert (tmp_path / "out" / "checkpoint" / "last").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    ran = headscope_command(*command)
    assert ran.code == 0, ran.err
    assert "going on from" in ran.err
    assert_equal(whole, open_study(tmp_path / "out"))
    assert open_study(tmp_path / "out").manifest["runs"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(("check", "."))) == []


def test_a_second_ctrl_c_stops_the_drawing(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], whole: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        at_batch(patched, 9, lambda: signal.raise_signal(signal.SIGINT))
        patched.setattr(output, "draw_all", lambda study: signal.raise_signal(signal.SIGINT))
        ran = headscope_command(*command)
    assert ran.code == 130
    assert "interrupted. What was studied is kept in out. Give the same command to go on." in ran.err
    assert "Traceback" not in ran.err
    assert headscope_command(*command).code == 0
    assert_equal(whole, open_study(tmp_path / "out"))


def test_a_signal_while_a_finished_study_is_drawn(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], whole: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        patched.setattr(output, "draw_all", lambda study: signal.raise_signal(signal.SIGTERM))
        ran = headscope_command(*command)
    assert ran.code == 143
    with monkeypatch.context() as patched:  # nothing is computed again
        at_batch(patched, 0, lambda: pytest.fail("computed again"))
        assert headscope_command(*command).code == 0
    assert_equal(whole, open_study(tmp_path / "out"))


def test_a_signal_before_any_text(headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str]):
    with monkeypatch.context() as patched:
        at_batch(patched, 0, lambda: signal.raise_signal(signal.SIGINT))
        ran = headscope_command(*command)
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert headscope_command(*command).code == 0


def test_in_the_background_of_a_script_ctrl_c_is_ignored(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], whole: Any, tmp_path: Path
):
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's shell leaves it for what it starts with `&`
    try:
        at_batch(monkeypatch, 9, lambda: signal.raise_signal(signal.SIGINT))
        ran = headscope_command(*command)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, usual)
    assert ran.code == 0, ran.err
    assert_equal(whole, open_study(tmp_path / "out"))


def test_a_full_disk_at_the_end_loses_nothing(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], whole: Any, tmp_path: Path
):
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if "study.nc" in self.name:
            raise OSError(28, "No space left on device")
        return write(self, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        ran = headscope_command(*command)
    assert ran.code == 1
    assert "study.nc: cannot be written: No space left on device" in ran.err
    assert "What was studied is kept in out/checkpoint" in ran.err
    with monkeypatch.context() as patched:
        at_batch(patched, 0, lambda: pytest.fail("computed again"))
        assert headscope_command(*command).code == 0
    assert_equal(whole, open_study(tmp_path / "out"))


def test_another_command_is_refused_and_overwrite_begins_anew(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], whole: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        at_batch(patched, 9, lambda: signal.raise_signal(signal.SIGTERM))
        headscope_command(*command)
    ran = headscope_command(*command, "--theta", "0.5")
    assert ran.code == 1
    assert "What changed: theta (0.3 before, 0.5 now)" in ran.err
    assert (tmp_path / "out" / "checkpoint" / "last").exists()
    assert headscope_command(*command, "--theta", "0.5", "--overwrite").code == 0
    assert open_study(tmp_path / "out").manifest["theta"] == 0.5
    assert open_study(tmp_path / "out").manifest["runs"] == 1


def test_a_second_process_is_refused(headscope_command, command: list[str], tmp_path: Path):
    (tmp_path / "out").mkdir()
    with Lock(tmp_path / "out"):
        ran = headscope_command(*command)
        assert ran.code == 1
        assert f"out is in use: process {os.getpid()} on " in ran.err
        with pytest.raises(StudyError, match="is in use"), Lock(tmp_path / "out"):
            pass
    assert headscope_command(*command).code == 0


def test_a_lock_ends_with_its_process(tmp_path: Path):
    code = f"import os, signal; from headscope.studies.lock import Lock; from pathlib import Path; \
lock = Lock(Path({str(tmp_path)!r})).__enter__(); print('held', flush=True); signal.pause()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StudyError, match=f"process {holder.pid} on "), Lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with Lock(tmp_path):
        pass
    assert not (tmp_path / ".lock").exists()


def test_killed_at_any_moment(command: list[str], whole: Any, tmp_path: Path):
    """`make soak` does this with kills at random moments of a real study; here at some batches of a small one."""
    # A child in which a batch kills its own process, as kill −9 does; the next run gets one batch further.
    code = """
import os, sys
from headscope.corpus import shards
from headscope.studies.crew import Crew
shards.PORTION, shards.SHARD_BYTES = 7, 500
import headscope
model = headscope.load(sys.argv[1], device="cpu")
for stop in sys.argv[3:]:
    if os.fork() == 0:
        observe, seen = Crew.observe, iter(range(10**6))
        def observed(self, *more, stop=int(stop)):
            if next(seen) == stop:
                os.kill(os.getpid(), 9)
            observe(self, *more)
        Crew.observe = observed
        headscope.study(model, sys.argv[2], length=24, batch_size=3, checkpoints="out", every=0.0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    stops = ["0", "1", "3", "2", "999"]
    ran = subprocess.run(
        [sys.executable, "-c", code, command[3], command[1], *stops],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert [int(line) for line in ran.stdout.split()] == [-9] * 4 + [0], ran.stderr
    again = headscope.study(
        headscope.load(command[3], device="cpu"), command[1], length=24, batch_size=3, checkpoints=tmp_path / "out"
    )
    assert_equal(whole, again)
    assert 3 <= again.manifest["runs"] <= 6  # a run that was killed before its first checkpoint left no trace

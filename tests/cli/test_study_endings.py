"""However `headscope study` ends, what it counted is kept, a message says so, and the same command resumes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import headscope
from headscope import output_folder
from headscope.errors import StudyError
from headscope.run.checkpoint import Checkpoint
from headscope.run.executor import BatchExecutor
from headscope.run.lock import Lock
from headscope.studies.result import open_study
from tests.helpers.interrupting import assert_equal, files, save_tiny_model

pytestmark = pytest.mark.usefixtures("one_figure", "small_chunks")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def command(model_folder: Path, tmp_path: Path) -> list[str]:
    (path,) = files(tmp_path / "in", [60])
    options = ("--length", "24", "--batch-size", "3", "--checkpoint-interval", "0", "--quiet", "--out", "out")
    return ["study", str(path), "--model", str(model_folder), *options]


@pytest.fixture
def uninterrupted(model_folder: Path, tmp_path: Path, command: list[str]) -> Any:
    return headscope.study(headscope.load(model_folder, device="cpu"), command[1], length=24, batch_size=3)


def call_at_batch(monkeypatch: pytest.MonkeyPatch, number: int, action: Any) -> None:
    """Call a function before the batch of this number."""
    add, batches = BatchExecutor.add, iter(range(10**6))

    def add_batch(self: BatchExecutor, batch: Any) -> None:
        if next(batches) == number:
            action()
        add(self, batch)

    monkeypatch.setattr(BatchExecutor, "add", add_batch)


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "marked incomplete. Run the same command again to resume."),
        (signal.SIGTERM, 143, "terminated."),
    ],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_signal_keeps_what_was_counted_and_the_command_resumes(
    headscope_command,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    uninterrupted: Any,
    tmp_path: Path,
    number,
    code,
    message,
):
    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        call_at_batch(patched, 9, lambda: signal.raise_signal(number))
        result = headscope_command(*command)
    assert result.code == code, result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert (tmp_path / "out" / "checkpoint" / "last").exists()
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "out" / "report.html").exists() == (number == signal.SIGINT)  # after SIGTERM nothing is drawn
    result = headscope_command(*command)
    assert result.code == 0, result.err
    assert "resuming: " in result.err
    assert_equal(uninterrupted, open_study(tmp_path / "out"))
    assert open_study(tmp_path / "out").manifest["runs"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(("check", "."))) == []


def test_a_second_ctrl_c_stops_the_drawing(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        call_at_batch(patched, 9, lambda: signal.raise_signal(signal.SIGINT))
        patched.setattr(output_folder, "draw_all", lambda study: signal.raise_signal(signal.SIGINT))
        result = headscope_command(*command)
    assert result.code == 130
    assert (
        "interrupted. What was counted is kept in out/checkpoint. Run the same command again to resume." in result.err
    )
    assert "Traceback" not in result.err
    assert headscope_command(*command).code == 0
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


def test_a_signal_while_a_finished_study_is_drawn(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        patched.setattr(output_folder, "draw_all", lambda study: signal.raise_signal(signal.SIGTERM))
        result = headscope_command(*command)
    assert result.code == 143
    with monkeypatch.context() as patched:  # nothing is computed again
        call_at_batch(patched, 0, lambda: pytest.fail("computed again"))
        assert headscope_command(*command).code == 0
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


@pytest.mark.parametrize("out", ["out", "new/below/out"])
def test_a_signal_before_any_text_leaves_nothing_behind(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], tmp_path: Path, out: str
):
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        call_at_batch(patched, 0, lambda: signal.raise_signal(signal.SIGINT))
        result = headscope_command(*command[:-1], out)
    assert result.code == 130
    assert "Traceback" not in result.err
    assert sorted(tmp_path.rglob("*")) == before
    assert headscope_command(*command[:-1], out).code == 0


class SignalInDestructor:
    """Receives a signal where Python can only drop the exception."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def raise_wrapped(number: int) -> None:
    """Receive a signal in a library that turns it into another exception."""
    try:
        signal.raise_signal(number)
    except BaseException as error:
        raise ImportError("cannot import the kernel") from error


@pytest.mark.parametrize("receive", [SignalInDestructor, raise_wrapped], ids=["dropped", "wrapped"])
@pytest.mark.parametrize("place", ["headscope.run.plan.RunPlan.create", "headscope.run.local_engine.choose_backend"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_is_lost_ends_the_command(
    headscope_command,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    tmp_path: Path,
    receive: Any,
    place: str,
    number: signal.Signals,
):
    owner, _, name = place.rpartition(".")
    function = resolve_name(place)

    def raise_then_call(*arguments: Any, **options: Any) -> Any:
        receive(number)
        return function(*arguments, **options)

    monkeypatch.setattr(resolve_name(owner), name, raise_then_call)
    result = headscope_command(*command)
    assert result.code == 128 + number, result.err
    assert ("terminated" if number == signal.SIGTERM else "interrupted") in result.err
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("engine", [["--engine", "local"], ["--engine", "ray", "--address", "wrong:1"]], ids=" ".join)
def test_an_engine_that_does_not_start_leaves_nothing_behind(
    headscope_command,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    uninterrupted: Any,
    tmp_path: Path,
    engine: list[str],
):
    def fail(*arguments: Any, **options: Any) -> Any:
        raise StudyError("no cluster there")

    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr("headscope.studies.study._connect", fail)
        patched.setattr("headscope.studies.study.LocalEngine", fail)
        result = headscope_command(*command, *engine)
    assert result.code == 1
    assert result.err == "headscope: no cluster there\n"
    assert sorted(tmp_path.rglob("*")) == before
    assert headscope_command(*command).code == 0
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


def test_a_share_without_texts_is_an_error(headscope_command, command: list[str], tmp_path: Path):
    result = headscope_command(*command, "--share", "900/1000")
    assert result.code == 1
    assert "no text to study in share 900/1000: 0 documents read: choose fewer shares" in result.err
    assert not (tmp_path / "out").exists()


def test_shares_that_do_not_fit_are_not_merged(
    headscope_command, command: list[str], uninterrupted: Any, tmp_path: Path
):
    for share, out in (("1/3", "a"), ("2/3", "b"), ("3/3", "c"), ("1/2", "other")):
        result = headscope_command(*command[:-1], out, "--share", share)
        assert result.code == 0, result.err
        assert open_study(tmp_path / out).manifest["share"] == share
    for studies, message in (
        (("a", "b", "a"), "a: share 1/3 is in both"),
        (("a", "other"), "other: these shares are not of the same corpus cut in the same way: number of shares"),
    ):
        result = headscope_command("merge", *studies, "--out", "merged")
        assert result.code == 1
        assert message in result.err
        assert not (tmp_path / "merged").exists()
    result = headscope_command("merge", "c", "a", "--out", "part")
    assert result.code == 0, result.err
    assert "shares of the corpus in it: 1/3,3/3; the others are missing" in result.err
    result = headscope_command("merge", "part", "b", "--out", "merged")
    assert result.code == 0, result.err
    merged = open_study(tmp_path / "merged").manifest
    assert merged["share"] == "all"
    for name in ("corpus", "corpus_hash", "documents_read", "complete"):
        assert merged[name] == uninterrupted.manifest[name], name


def test_where_it_ran_is_not_part_of_what_is_resumed(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    """A run on a cluster could resume the checkpoint of a run here: their identities are equal."""
    identities: list[Any] = []
    check = Checkpoint._check_identity

    def check_identity(self: Checkpoint, header: dict[str, Any]) -> None:
        identities.append((header["identity"], self.identity))
        check(self, header)

    with monkeypatch.context() as patched:
        call_at_batch(patched, 9, lambda: signal.raise_signal(signal.SIGTERM))
        headscope_command(*command, "--checkpoint-interval", "7")
    monkeypatch.setattr(Checkpoint, "_check_identity", check_identity)
    result = headscope_command(*command, "--device", "cpu")
    assert result.code == 0, result.err
    ((before, now),) = identities
    assert before == now
    assert not {"engine", "workers", "address", "device"} & now.keys()
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


def test_in_the_background_of_a_script_ctrl_c_is_ignored(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's shell leaves it for what it starts with `&`
    try:
        call_at_batch(monkeypatch, 9, lambda: signal.raise_signal(signal.SIGINT))
        result = headscope_command(*command)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
    assert result.code == 0, result.err
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


def test_a_full_disk_at_the_end_loses_nothing(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    write = Path.write_bytes

    def fail_on_study(self: Path, content: bytes) -> int:
        if "study.nc" in self.name:
            raise OSError(28, "No space left on device")
        return write(self, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", fail_on_study)
        result = headscope_command(*command)
    assert result.code == 1
    assert "study.nc: cannot be written: No space left on device" in result.err
    assert "What was counted is kept in out/checkpoint" in result.err
    with monkeypatch.context() as patched:
        call_at_batch(patched, 0, lambda: pytest.fail("computed again"))
        assert headscope_command(*command).code == 0
    assert_equal(uninterrupted, open_study(tmp_path / "out"))


def test_another_command_is_refused_and_overwrite_starts_again(
    headscope_command, monkeypatch: pytest.MonkeyPatch, command: list[str], uninterrupted: Any, tmp_path: Path
):
    with monkeypatch.context() as patched:
        call_at_batch(patched, 9, lambda: signal.raise_signal(signal.SIGTERM))
        headscope_command(*command)
    result = headscope_command(*command, "--theta", "0.5")
    assert result.code == 1
    assert "What changed: theta (0.3 before, 0.5 now)" in result.err
    assert (tmp_path / "out" / "checkpoint" / "last").exists()
    assert headscope_command(*command, "--theta", "0.5", "--overwrite").code == 0
    assert open_study(tmp_path / "out").manifest["theta"] == 0.5
    assert open_study(tmp_path / "out").manifest["runs"] == 1


def test_a_second_process_is_refused(headscope_command, command: list[str], tmp_path: Path):
    (tmp_path / "out").mkdir()
    with Lock(tmp_path / "out"):
        result = headscope_command(*command)
        assert result.code == 1
        assert f"out is in use: process {os.getpid()} on " in result.err
        with pytest.raises(StudyError, match="is in use"), Lock(tmp_path / "out"):
            pass
    assert headscope_command(*command).code == 0


def test_a_lock_ends_with_its_process(tmp_path: Path):
    code = f"import os, signal; from headscope.run.lock import Lock; from pathlib import Path; \
lock = Lock(Path({str(tmp_path)!r})).__enter__(); print('locked', flush=True); signal.pause()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StudyError, match=f"process {holder.pid} on "), Lock(tmp_path):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with Lock(tmp_path):
        pass
    assert not (tmp_path / ".headscope-lock").exists()


def test_killed_at_any_moment(command: list[str], uninterrupted: Any, tmp_path: Path):
    """`make soak` does this with kills at random moments of a real study; here at some batches of a small one."""
    # A child in which a batch kills its own process, as kill −9 does; the next run gets one batch further.
    code = """
import os, sys
import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.run import local_engine, plan
from headscope.run.checkpoint import Checkpoint
from headscope.run.executor import BatchExecutor
plan.choose_chunk_size = lambda *more: ChunkSize(documents=4, bytes=300)
local_engine.FLUSH_SECONDS = 0.0
model = headscope.load(sys.argv[1], device="cpu")
for stop in sys.argv[3:]:
    if os.fork() == 0:
        add, batches = BatchExecutor.add, iter(range(10**6))
        def add_batch(self, batch, stop=int(stop)):
            if next(batches) == stop:
                os.kill(os.getpid(), 9)
            add(self, batch)
        BatchExecutor.add = add_batch
        headscope.study(model, sys.argv[2], length=24, batch_size=3, checkpoint_dir="out", checkpoint_interval=0.0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    stops = ["0", "1", "3", "2", "999"]
    result = subprocess.run(
        [sys.executable, "-c", code, command[3], command[1], *stops],
        cwd=tmp_path, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert [int(line) for line in result.stdout.split()] == [-9] * 4 + [0], result.stderr
    resumed = headscope.study(
        headscope.load(command[3], device="cpu"), command[1], length=24, batch_size=3, checkpoint_dir=tmp_path / "out"
    )
    assert_equal(uninterrupted, resumed)
    assert 3 <= resumed.manifest["runs"] <= 6  # a run that was killed before its first checkpoint left no trace

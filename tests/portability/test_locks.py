"""Locks, and everything else that only POSIX has, on a simulated Windows."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headscope.errors import StudyError
from headscope.run.lock import FILE, Lock
from tests.helpers.portability import run_python


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Windows: `msvcrt` locks bytes, and open files cannot be removed."""
    holders: dict[tuple[int, int], int] = {}

    def lock(descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > status.st_size  # others could not read who holds it
        name, holder = (status.st_dev, status.st_ino), holders.get((status.st_dev, status.st_ino))
        if holder not in (None, descriptor) and is_open(holder, name):  # numbers are used again
            raise PermissionError(errno.EACCES, "Permission denied")
        holders[name] = descriptor

    def is_open(descriptor: int, name: tuple[int, int]) -> bool:
        try:
            status = os.fstat(descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == name

    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        status = path.stat()
        name = status.st_dev, status.st_ino
        if name in holders and is_open(holders[name], name):
            raise PermissionError(errno.EACCES, "it is open")
        real(path, missing_ok)

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=lock, LK_NBLCK=2))
    monkeypatch.setattr(Path, "unlink", unlink)


@pytest.mark.usefixtures("windows_locks")
def test_a_folder_is_locked_on_windows(tmp_path: Path) -> None:
    for _ in range(2):
        with Lock(tmp_path):
            with pytest.raises(StudyError, match=f"process {os.getpid()} on .* writes a study there"), Lock(tmp_path):
                pass
            assert (tmp_path / FILE).read_text(encoding="utf-8").startswith("process")
        assert not (tmp_path / FILE).exists()


def test_a_folder_created_for_a_lock_is_removed_if_empty(tmp_path: Path) -> None:
    with Lock(tmp_path / "new" / "deep"):
        assert (tmp_path / "new" / "deep" / FILE).exists()
    assert not list(tmp_path.iterdir())
    with Lock(tmp_path / "new" / "deep"):
        (tmp_path / "new" / "deep" / "mine").write_text("mine")
    assert [path.name for path in (tmp_path / "new" / "deep").iterdir()] == ["mine"]
    with Lock(tmp_path / "new"):  # it was there before
        pass
    assert (tmp_path / "new").exists()


WINDOWS = """
import os, signal, sys
from types import SimpleNamespace

# What others' packages need of the system is their own affair.
import h5netcdf, h5py, matplotlib.pyplot, numba, pandas, rich.console, torch, transformers.modeling_utils, typer
from transformers import AutoModel, AutoTokenizer, BertModel

for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty"):
    sys.modules[name] = None
sys.modules["msvcrt"] = SimpleNamespace(locking=lambda *_: None, LK_NBLCK=2)
for module, names in (
    (os, "fork getuid geteuid getgid uname sched_getaffinity sysconf killpg setsid mkfifo nice fchmod chown link"),
    (signal, "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGCHLD SIGTSTP alarm setitimer pthread_sigmask"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

import headscope
from headscope import cli

model, out = sys.argv[1:]
made = headscope.study(headscope.load(model), ["a b c. the d.", "the e f. a b"], length=16, checkpoint_dir=out + "/api")
made.save(out + "/api.nc")
assert headscope.open_study(out + "/api.nc").texts == 2
with open(out + "/texts.txt", "w", encoding="utf-8") as file:
    file.write("a b c. the d.\\r\\nthe e f. a b\\r\\n")
from matplotlib.figure import Figure
from headscope import output_folder

output_folder.draw_all = lambda study: {"11b": Figure(figsize=(1, 1))}  # all figures take most of the time
options = ["--format", "lines", "--model", model, "--length", "16", "--out", out + "/cli"]
sys.argv = ["headscope", "study", out + "/texts.txt", *options]
try:
    cli.main()
except SystemExit as ended:
    assert not ended.code, ended.code
assert headscope.open_study(out + "/cli").texts == 2
"""


def test_a_study_without_what_only_posix_has(model_folder: Path, tmp_path: Path) -> None:
    ran = run_python(WINDOWS, model_folder, tmp_path, environment={"HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.rglob(FILE))

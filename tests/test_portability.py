"""Test other platforms by simulation: Windows, macOS, unusual terminals, no home folder, Apple GPUs."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import headscope
from headscope import cli, devices, folders
from headscope.atomic_io import write_atomically
from headscope.cli import options
from headscope.corpus import storage
from headscope.corpus.documents import documents
from headscope.errors import CorpusError, ModelError, StudyError
from headscope.model.loading import load, select_device
from headscope.model.model import Model
from headscope.pruning.rankings import TEXT_RULES, score_heads
from headscope.pruning.removal import remove
from headscope.run import checkpoint
from headscope.run.batch_size import choose_batch_size
from headscope.run.lock import FILE, Lock
from headscope.segmentation import background as backgrounds
from headscope.settings import Settings
from headscope.studies.head_table import as_csv
from headscope.studies.head_types import head_types
from headscope.tally import backends
from tests.helpers import tiny

TEXTS = ["a b c. the d e f a b!", "the c d a. b c d e f the a", "a the b c d. e f g"]
LENGTH = 32
ENCODINGS = ("ascii", "latin-1", "cp1252")


def make_model() -> Model:
    return load(tiny.network("bert"), tiny.tokenizer())


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    headscope.study(make_model(), TEXTS, length=LENGTH).save(folder / "study.nc")
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def windows_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate Windows: only files open for writing can be flushed, and folders cannot be opened."""
    import fcntl

    real_fsync, real_open = os.fsync, os.open

    def fsync(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(descriptor)

    def open_file(path: Any, *args: Any, **options: Any) -> int:
        if not isinstance(path, int) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, *args, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "open", open_file)


@pytest.mark.usefixtures("windows_files")
def test_result_files_are_written_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content in (b"first", b"second"):
        write_atomically(path, content, StudyError)
        assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.usefixtures("windows_files")
def test_a_study_with_checkpoints_is_written_on_windows(tmp_path: Path) -> None:
    messages: list[str] = []
    study = headscope.study(
        make_model(), TEXTS, length=LENGTH, checkpoint_dir=tmp_path, checkpoint_interval=0, on_message=messages.append
    )
    assert (tmp_path / checkpoint.LAST).is_file()
    assert not messages
    assert headscope.open_study(study.save(tmp_path / "study.nc")).texts == len(TEXTS)


def test_tables_have_the_same_line_ends_everywhere(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = head_types(headscope.open_study(study_folder))
    monkeypatch.setattr(os, "linesep", "\r\n")
    assert "\r" not in as_csv(table)


def test_a_pruned_folder_has_the_same_line_ends_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def write_as_windows(path: Path, text: str, encoding: str, errors: str | None = None, newline: Any = None) -> int:
        return real(path, text, encoding, errors, newline="\r\n" if newline is None else newline)

    monkeypatch.setattr(Path, "write_text", write_as_windows)
    headscope.prune(make_model(), "L0H1").save(tmp_path / "pruned")
    ours = [path for path in (tmp_path / "pruned").iterdir() if path.name in ("pruning.json", "pruned_heads.py")]
    assert len(ours) == 2
    assert not any(b"\r" in path.read_bytes() for path in ours)


def test_names_of_a_pattern_are_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["texts\\a\\z.txt", "texts\\aB.txt"]
    for name in names:
        Path(name).write_text("a", encoding="utf-8")  # one name here, folders there
    monkeypatch.setattr(storage.glob, "glob", lambda pattern, recursive: names)
    monkeypatch.setattr(storage.os, "sep", "\\")
    kind, listed = storage.list_files("texts/*")
    assert kind == "pattern"
    assert [name for name, _ in listed] == ["texts/a/z.txt", "texts/aB.txt"]


@pytest.mark.parametrize("source", ["C:\\texts\\a.jsonl", "C:/texts/a.jsonl", "c://texts", "d:a.txt"])
def test_a_drive_is_no_url(source: str) -> None:
    assert not storage.is_url(source)
    assert storage.strip_query(source) == source.lower()
    with pytest.raises(CorpusError, match="no such file or folder"):
        documents([source])


def test_line_ends_of_documents_are_what_is_in_the_file(tmp_path: Path) -> None:
    model, token_ids = make_model(), []
    for ends in (b"\n", b"\r\n"):
        path = tmp_path / "a.txt"
        path.write_bytes(ends.join([b"a b c.", b"the d", b""]))
        (document,) = documents([path])
        assert document.text.encode() == path.read_bytes()
        token_ids.append(model.windows(document, Settings(length=LENGTH).cut)[0].ids.tolist())
    assert token_ids[0] == token_ids[1]


# -- locks ------------------------------------------------------------------------------------------------------------


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


def run_python(
    code: str, *arguments: object, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> Any:
    inherited = {name: os.environ[name] for name in ("PATH", "OMP_NUM_THREADS") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def test_a_study_without_what_only_posix_has(model_folder: Path, tmp_path: Path) -> None:
    ran = run_python(WINDOWS, model_folder, tmp_path, environment={"HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert not list(tmp_path.rglob(FILE))


# -- terminals --------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_encoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `headscope …` with stdout and stderr in an encoding and returns what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(encoding: str, *arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, "strict") for _ in range(2))
        monkeypatch.setattr(sys, "argv", ["headscope", *map(str, arguments)])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), encoding))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            out.flush()
            err.flush()
        printed = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))
        return int(ended.value.code or 0), *printed  # type: ignore[return-value]

    return run


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "arguments", [("--help",), ("study", "--help"), ("paper", "--help"), ("models",)], ids=" ".join
)
def test_help_in_any_encoding(in_encoding: Any, encoding: str, arguments: tuple[str, ...]) -> None:
    code, out, err = in_encoding(encoding, *arguments)
    assert code == 0
    assert len(out) > 100
    assert not err


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", ["findings", "heads"])
def test_tables_and_json_in_any_encoding(in_encoding: Any, study_folder: Path, encoding: str, command: str) -> None:
    code, table, _ = in_encoding(encoding, command, study_folder)
    assert code == 0
    assert len(table) > 100
    code, escaped, _ = in_encoding(encoding, command, study_folder, "--json")
    assert code == 0
    assert escaped.isascii()
    plain = in_encoding("utf-8", command, study_folder, "--json")[1]
    assert json.loads(escaped) == json.loads(plain)


@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
def test_json_is_escaped_only_where_it_must_be(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    content = {"café": "θ 😀"}
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    options.show_json(json.dumps(content, ensure_ascii=False))
    printed = sys.stdout.buffer.getvalue()
    assert json.loads(printed) == content
    assert printed.isascii() == (encoding != "utf-8")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_markdown_in_any_encoding(in_encoding: Any, study_folder: Path, encoding: str) -> None:
    code, out, _ = in_encoding(encoding, "findings", study_folder, "--markdown")
    assert code == 0
    assert "?" in out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_segments_and_errors_in_any_encoding(in_encoding: Any, model_folder: Path, encoding: str) -> None:
    command = ("segment", "-", "--level", "fine", "--model", model_folder, "--length", LENGTH, "--quiet")
    text = "a café θ b. the 雨 d e 😀 f."
    code, out, _ = in_encoding(encoding, *command, stdin=text.encode())
    assert code == 0
    assert "caf" + "é".encode(encoding, "replace").decode(encoding) in out
    code, out, _ = in_encoding(encoding, *command, "--json", stdin=text.encode())
    assert "".join(segment["text"] for segment in json.loads(out)["segments"]).strip() == text
    code, _, err = in_encoding(encoding, "study", "雨.txt")
    assert code == 1
    assert "no such file" in err


@pytest.mark.parametrize("command", ["segment", "read"])
def test_stdin_is_in_the_encoding_that_is_said(in_encoding: Any, model_folder: Path, command: str) -> None:
    options = ("--length", LENGTH, "--model", model_folder, "--json", "--quiet")
    arguments = (command, "-", *options, *(("--level", "fine") if command == "segment" else ()))
    raw = "a café b. the d e.".encode("latin-1")
    code, out, _ = in_encoding("ascii", *arguments, "--encoding", "latin-1", stdin=raw)
    assert code == 0
    assert json.loads(out)
    code, out, err = in_encoding("ascii", *arguments, stdin=raw)
    assert (code, out) == (1, "")
    assert "not utf-8 text (byte 0xe9 at position 5)" in err
    assert "--encoding" in err


def test_a_real_process_in_ascii() -> None:
    code = "import sys; sys.argv = ['headscope', 'study', '--help']; from headscope.cli import main; main()"
    ran = run_python(code, environment={"PYTHONIOENCODING": "ascii", "HOME": "/"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()
    assert "--theta" in ran.stdout
    assert not ran.stderr


@pytest.mark.parametrize(
    ("encoding", "errors", "expected"),
    [
        ("utf-8", "strict", "replace"),
        ("utf-8", "surrogateescape", "surrogateescape"),
        ("ascii", "surrogateescape", "replace"),
        ("ascii", "backslashreplace", "backslashreplace"),
    ],
)
def test_who_chose_a_way_to_print_keeps_it(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, expected: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", None)
    cli._replace_unencodable()
    assert stream.errors == expected


# -- folders ----------------------------------------------------------------------------------------------------------

NO_HOME = """
import sys
sys.modules["pwd"] = None  # as for a user number that no list of users has
from headscope.cli import main
sys.argv = ["headscope", *sys.argv[1:]]
main()
"""


def test_models_without_a_home(tmp_path: Path) -> None:
    ran = run_python(NO_HOME, "models", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "minilm" in ran.stdout


def test_segments_without_a_home(model_folder: Path, tmp_path: Path) -> None:
    text = "a b c. the d e f. " * 5
    ran = run_python(NO_HOME, "segment", text, "--model", model_folder, "--quiet", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "a b c" in ran.stdout
    assert ran.stderr.count("there is no home folder") == 1
    assert "XDG_CACHE_HOME" in ran.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_compiled_is_kept_without_a_home(tmp_path: Path) -> None:
    code = """
        import os, sys
        sys.modules["pwd"] = None
        from numba.core import caching

        def refuse(*_):
            raise OSError("read-only")

        os.access = lambda *_: False
        caching.InTreeCacheLocator.ensure_cache_path = caching.InTreeCacheLocatorFsAgnostic.ensure_cache_path = refuse
        from headscope.tally.numba_backend import softmax
    """
    for variables in ({}, {"XDG_CACHE_HOME": str(tmp_path / "cache")}):
        ran = run_python(code, environment=variables, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert [path.name for path in tmp_path.iterdir()] == (["cache"] if variables else [])


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # root may write to any folder, but not into a file
    monkeypatch.setattr(backgrounds, "measure_background", lambda model, done: measured)
    contrast = SimpleNamespace(gain=np.ones(2), noise=np.ones((2, 2)))
    measured: Any = SimpleNamespace(maps=np.ones((2, 1, 1)), mean=np.ones((2, 1)), contrast=contrast)
    model: Any = SimpleNamespace(weight_hash="0", architecture=SimpleNamespace(stack="encoder"), dtype="float32")
    backgrounds._warn.cache_clear()
    for _ in range(2):
        assert backgrounds.load_background(model) is measured
    assert len(caplog.messages) == 1
    assert "not kept" in caplog.messages[0]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/headscope"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/x/headscope"),
        ("win32", {"XDG_CACHE_HOME": "/x", "LOCALAPPDATA": "/local"}, "/x/headscope"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/headscope"),
        ("win32", {}, "/home/me/.cache/headscope"),
        ("darwin", {"LOCALAPPDATA": "/local"}, "/home/me/Library/Caches/headscope"),
        ("linux", {"XDG_CACHE_HOME": "", "LOCALAPPDATA": "/local"}, "/home/me/.cache/headscope"),
    ],
)
def test_cache_folders(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(folders, "sys", SimpleNamespace(platform=platform))
    assert folders.find_cache_folder() == Path(expected)


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_the_device_that_is_chosen(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert select_device("auto").type == expected


@pytest.mark.parametrize(
    ("wanted", "gpus", "message"),
    [
        ("cuda", 0, "there is none. Available: cpu, or auto"),
        ("mps", 0, "there is none. Available: cpu, or auto"),
        ("gpu", 0, "it is no name of a device. Available: cpu, or auto"),
        ("gpu", 2, "it is no name of a device. Available: cpu, cuda:0, cuda:1, or auto"),
        ("cuda:7", 2, "GPUs are counted from 0. Available: cpu, cuda:0, cuda:1, or auto"),
        ("abacus", 0, "Available: cpu, or auto"),
    ],
)
def test_what_is_available_is_named(monkeypatch: pytest.MonkeyPatch, wanted: str, gpus: int, message: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ModelError, match=re.escape(message)) as raised:
        load("minilm", device=wanted)
    assert str(raised.value).startswith(f"device {wanted!r} cannot be used here: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wanted", ["mps", "mps:0", "cuda:99", "hpu", "vulkan", "abacus", "meta", "", "cpu:x"])
def test_a_device_that_is_not_there(wanted: str) -> None:
    if wanted.startswith("mps") and torch.backends.mps.is_available():
        pytest.skip("there is one")
    with pytest.raises(ModelError, match=f"device '{wanted}' cannot be used here: ") as raised:
        select_device(wanted)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_the_cpu_does_what_apple_gpus_cannot() -> None:
    code = """
        import os, sys
        from headscope import cli
        assert "torch" not in sys.modules
        sys.argv = ["headscope", "--version"]
        try:
            cli.main()
        except SystemExit:
            print(os.environ["PYTORCH_ENABLE_MPS_FALLBACK"])
    """
    assert run_python(code, environment={"HOME": "/"}).stdout.splitlines()[-1] == "1"
    code = "import os, headscope.model.loading; print(os.environ['PYTORCH_ENABLE_MPS_FALLBACK'])"
    for chosen in ("1", "0"):
        environment = {"HOME": "/"} | ({} if chosen == "1" else {"PYTORCH_ENABLE_MPS_FALLBACK": chosen})
        assert run_python(code, environment=environment).stdout.split() == [chosen]


MPS = torch.device("mps:0")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnMps(torch.Tensor):
    """A tensor on a simulated Apple GPU, with its data on the CPU.

    It refuses what such a device refuses: double precision, and operations with tensors of another device. For torch's
    own code its device is `meta`, which all builds of torch support.
    """

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, on_cpu: torch.Tensor) -> OnMps:
        if on_cpu.dtype in (torch.float64, torch.complex128):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype: the MPS framework has none")
        layout: Any = {"strides": on_cpu.stride(), "storage_offset": on_cpu.storage_offset(), "dtype": on_cpu.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, on_cpu.shape, device="meta", requires_grad=on_cpu.requires_grad, **layout
        )
        tensor.on_cpu = on_cpu
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return MPS

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        copied = OnMps(self.on_cpu.detach().clone())
        return torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU, and return the result on the device that it would have."""
    tensors = [tensor for tensor in pytree.tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
    on_mps = [tensor for tensor in tensors if isinstance(tensor, OnMps)]
    if on_mps and func not in COPIES and any(tensor.dim() for tensor in tensors if not isinstance(tensor, OnMps)):
        raise RuntimeError(f"Expected all tensors to be on the same device, in {func}")
    target = kwargs.get("device")
    stays = bool(on_mps) if target is None else torch.device(target).type == "mps"
    if func is torch.ops.aten.copy_.default:
        stays = isinstance(args[0], OnMps)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = pytree.tree_map_only(OnMps, lambda tensor: tensor.on_cpu, (args, kwargs))
    result = func(*args, **kwargs)
    in_place = {id(tensor.on_cpu): tensor for tensor in on_mps}  # what is changed in place stays the tensor that it was
    wrap = lambda tensor: in_place[id(tensor)] if id(tensor) in in_place else OnMps(tensor)  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, wrap, result) if stays else result


class Dispatched(TorchDispatchMode):
    """Support creating tensors on the simulated device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Called(TorchFunctionMode):
    """Support `torch.tensor` on the simulated device, which queries the device itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is torch.tensor and options.get("device") == MPS:
            del options["device"]
            return torch.tensor(*args, **options).to(MPS)
        return func(*args, **options)


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A model on a simulated Apple GPU, usable within this fixture."""
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # tensors like these cannot be made in it
    network = tiny.network("bert")
    with Dispatched(), Called():
        network.to(MPS)
        yield load(network, tiny.tokenizer())


def test_the_simulated_device_is_strict(mps: Model) -> None:
    assert mps.device == MPS
    tensor = torch.zeros(3, device=MPS)
    with pytest.raises(TypeError, match="float64"):
        tensor.double()
    with pytest.raises(TypeError, match="float64"):
        torch.zeros(3, dtype=torch.float64, device=MPS)
    with pytest.raises(RuntimeError, match="same device"):
        tensor + torch.zeros(3)
    assert (tensor + 1).cpu().tolist() == [1, 1, 1]
    assert devices.to_float64(tensor).device.type == "cpu"


@pytest.mark.parametrize("kernel", ["auto", "compiled", "vectorized", "reference"])
def test_a_study_without_double_precision(mps: Model, kernel: str) -> None:
    study = headscope.study(mps, TEXTS, length=LENGTH, kernel=kernel)
    expected = headscope.study(make_model(), TEXTS, length=LENGTH, kernel=kernel)
    assert study.manifest["device"] == "mps:0"
    assert study.manifest["kernel"] == expected.manifest["kernel"]
    assert "on the CPU: mps has no double precision" in study.manifest["kernel_note"]
    for name, values in expected.data.items():
        if values.dtype.kind == "i":
            np.testing.assert_array_equal(study.data[name], values, err_msg=str(name))
        elif values.dtype.kind == "f":
            np.testing.assert_allclose(study.data[name], values, rtol=1e-5, atol=1e-6, err_msg=str(name))


def test_a_study_asks_for_no_double_precision_by_itself(mps: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify the test above: the same study fails on a device that wrongly claims double precision."""
    monkeypatch.setattr(backends, "supports_float64", lambda device: True)
    with pytest.raises(TypeError, match="float64"):
        headscope.study(mps, TEXTS, length=LENGTH, kernel="vectorized")


def test_kernels_of_other_devices_are_refused(mps: Model) -> None:
    with pytest.raises(StudyError, match=r"the kernel triton cannot do this: .* the model is on mps"):
        headscope.study(mps, TEXTS, length=LENGTH, kernel="triton")


def test_readings_and_segments_without_double_precision(mps: Model) -> None:
    for compute_values in (
        lambda model: headscope.read(model, TEXTS[0], length=LENGTH).outputs.values,
        lambda model: backgrounds.measure_background(model).contrast.gain,
    ):
        np.testing.assert_allclose(compute_values(mps), compute_values(make_model()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", TEXT_RULES)
def test_rankings_without_double_precision(mps: Model, rule: str) -> None:
    def rank_heads(model: Model) -> Any:
        cut = Settings(length=LENGTH).cut
        windows = [window for text in TEXTS for window in model.windows(headscope.Document(text, "text"), cut)]
        return score_heads(model, rule, windows)  # type: ignore[arg-type]

    np.testing.assert_allclose(rank_heads(mps), rank_heads(make_model()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_ablations_without_double_precision(mps: Model, by: Any) -> None:
    actual, expected = (headscope.ablate(model, TEXTS, length=LENGTH, by=by).data for model in (mps, make_model()))
    np.testing.assert_allclose(actual["change"], expected["change"], rtol=1e-4, atol=1e-6)


def test_heads_are_taken_out_in_double_precision_elsewhere(mps: Model) -> None:
    actual, expected = remove(mps, "L0H1"), remove(make_model(), "L0H1")
    assert actual.expected.dtype == torch.float64
    assert actual.difference == pytest.approx(expected.difference, abs=1e-12)
    assert next(iter(actual.network.parameters())).device == MPS


def test_memory_of_apple_gpus_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))

    model, observe, failed = make_model(), Model.observe, list[str]()
    assert model.ignores_padding  # which runs the model

    def observe_once_short_of_memory(self: Model, *arguments: Any) -> None:
        if not failed:
            failed.append("")
            raise RuntimeError("MPS backend out of memory (MPS allocated: 18.13 GB)")
        observe(self, *arguments)

    monkeypatch.setattr(Model, "observe", observe_once_short_of_memory)
    study = headscope.study(model, TEXTS, length=LENGTH, kernel="vectorized")
    assert study.texts == len(TEXTS)
    assert emptied == ["mps"]


def test_texts_at_once(mps: Model) -> None:
    assert choose_batch_size(mps, LENGTH) == choose_batch_size(make_model(), LENGTH)

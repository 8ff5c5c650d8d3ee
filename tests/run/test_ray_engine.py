"""Test studies on a real Ray cluster of two nodes: results are those of one process, also if workers are lost.

Starting a worker takes seconds, so there are few tests here; `test_ray_failures.py` simulates all kinds of failures.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.corpus.chunks import Source
from headscope.corpus.document import Document
from headscope.corpus.documents import Corpus
from headscope.errors import Stopped, StudyError
from headscope.model.model import Model
from headscope.run import ray_cluster
from headscope.run.ray_cluster import Node, Placement, place_workers
from headscope.studies.result import Study
from tests.helpers import tiny
from tests.helpers.interrupting import OPTIONS, assert_equal, files, save_tiny_model, stop_after, texts
from tests.helpers.study_equality import assert_same_sums

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.usefixtures("small_chunks"),
    pytest.mark.skipif(sys.platform == "win32", reason="no SIGALRM, no SIGKILL"),
]

LIMIT = 600
"""seconds for one test, on a machine that has other things to do"""
GATED_FILES, DOCUMENTS_PER_FILE = 6, 20


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def fail(number: int, frame: object) -> None:
        raise TimeoutError(f"this test took more than {LIMIT} seconds")

    handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return headscope.load(folder, device="cpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, with two and four cores."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # 15 unless told: beside other tests they would hardly ever run
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # else Ray ends workers when others take the memory
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        nodes.add_node(num_cpus=4)
    ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def run_on_ray(model: Model, documents: Any, workers: int | None, **options: Any) -> Study:
    return headscope.study(model, documents, engine="ray", workers=workers, **{**OPTIONS, **options})


# Where workers are placed


SMALL, LARGE = Node("a", "small", 8, 0), Node("b", "large", 64, 0)
GPUS, HEAD = Node("c", "gpus", 32, 4), Node("d", "head", 4, 0)


@pytest.mark.parametrize(
    ("nodes", "wanted", "use_gpus", "expected"),
    [
        ([SMALL, LARGE], None, False, [Placement(SMALL, 8, 0), Placement(LARGE, 64, 0)]),
        ([SMALL, LARGE], 1, False, [Placement(LARGE, 64, 0)]),
        ([SMALL, LARGE], 9, False, [Placement(SMALL, 8, 0), *[Placement(LARGE, 8, 0)] * 8]),
        ([HEAD], 9, False, [Placement(HEAD, 1, 0)] * 4),
        ([HEAD, GPUS], None, True, [Placement(GPUS, 4, 1)] * 4),
        ([HEAD, GPUS], 2, True, [Placement(GPUS, 4, 1)] * 2),
        ([HEAD, GPUS], 8, True, [Placement(GPUS, 4, 0.5)] * 8),
        ([HEAD], None, True, []),
        ([Node("e", "head without cores", 0, 0)], None, False, []),
        ([Node("f", "few cores", 2, 4)], None, True, [Placement(Node("f", "few cores", 2, 4), 0.5, 1)] * 4),
    ],
)
def test_workers_are_placed_per_node(nodes: list[Node], wanted: int | None, use_gpus: bool, expected: list[Placement]):
    assert place_workers(nodes, wanted, use_gpus=use_gpus) == expected


# Refusals that need no worker


def test_an_unknown_engine_is_refused_by_name(model: Model):
    with pytest.raises(StudyError, match=r"unknown engine 'spark'; there are: local, ray"):
        headscope.study(model, ["the cat sat."], engine="spark", **OPTIONS)


def test_there_is_at_least_one_worker(model: Model):
    with pytest.raises(StudyError, match=r"workers is 0: from 1"):
        run_on_ray(model, ["the cat sat."], workers=0)


def test_workers_are_for_a_cluster(model: Model):
    with pytest.raises(StudyError, match=r"are for a cluster: say --engine ray"):
        headscope.study(model, ["the cat sat."], workers=2, **OPTIONS)


def test_without_ray_it_says_what_to_install(model: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'headscope\[ray\]'"):
        run_on_ray(model, ["the cat sat."], workers=1)


def test_a_model_object_is_refused():
    with pytest.raises(StudyError, match=r"give its name or folder, not an object"):
        run_on_ray(tiny.model("bert"), ["the cat sat."], workers=1)


def test_what_only_this_process_can_read_is_refused(model: Model):
    with pytest.raises(StudyError, match=r"-: only this process can read it: write it to a file"):
        run_on_ray(model, headscope.documents("-"), workers=1)
    with pytest.raises(StudyError, match=r"texts given in Python: only this process can read it"):
        run_on_ray(model, (text for text in ["the cat sat."]), workers=1)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_refused_soon(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
):
    connect, timeouts = socket.create_connection, list[float]()

    def connect_once(address: tuple[str, int], timeout: float) -> socket.socket:
        timeouts.append(timeout)
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect_once)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked, which takes minutes"))
    with socket.socket() as bound:  # so that nobody else gets it, and not listening
        bound.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(StudyError, match=f"no Ray cluster at {address}: .*leave --address out"):
            run_on_ray(model, ["the cat sat."], workers=1, address=address, checkpoint_dir=tmp_path / "checkpoint")
    assert timeouts == [ray_cluster.CONNECT_SECONDS]
    assert not (tmp_path / "checkpoint").exists()  # nothing that blocks the corrected command


def test_an_error_of_ray_on_connecting_is_told_in_one_sentence(model: Model, monkeypatch: pytest.MonkeyPatch):
    def init(**options: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify the one to connect to.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        StudyError, match=r"no Ray cluster at auto: Could not find any running Ray instance\."
    ) as caught:
        run_on_ray(model, ["the cat sat."], workers=1, address="auto")
    assert "\n" not in str(caught.value)


# The same numbers


@pytest.mark.soak
def test_one_two_and_five_workers_give_the_same_study(cluster: Any, model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path / "in", [60, 30, 0, 20, 100, 5]))
    expected = headscope.study(model, corpus, **OPTIONS)
    for workers in (1, 2, 5):
        messages = list[str]()
        assert_equal(expected, run_on_ray(model, corpus, workers, on_message=messages.append))
        assert messages[0].startswith(f"{workers} worker")


@pytest.mark.soak
def test_interrupted_here_and_finished_there(
    cluster: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Names of files are relative to where the study is started.
    monkeypatch.chdir(files(tmp_path / "in", [60, 30, 0, 20, 100, 5])[0].parent)
    corpus = headscope.documents([f"{k:02}.jsonl" for k in range(6)])
    expected = headscope.study(model, corpus, **OPTIONS)
    with pytest.raises(Stopped):
        headscope.study(model, corpus, checkpoint_dir=tmp_path, progress=stop_after(9), **OPTIONS)
    messages, reports = list[str](), list[Any]()
    again = run_on_ray(model, corpus, 1, checkpoint_dir=tmp_path, on_message=messages.append, progress=reports.append)
    assert_equal(expected, again)
    assert again.manifest["runs"] == 2
    assert messages[0].startswith("resuming: ")
    assert 0 < reports[0].texts_before < expected.texts == reports[-1].texts


@dataclass
class Gate:
    """A corpus of many files; each reader notes its process and node, and waits until the gate is open."""

    folder: Path

    def make_corpus(self) -> Corpus:
        sources = [self._make_source(number, self.folder) for number in range(GATED_FILES)]
        return Corpus("gated texts", sources, size=GATED_FILES * DOCUMENTS_PER_FILE)

    @staticmethod
    def _make_source(number: int, folder: Path) -> Source:
        contents = texts(DOCUMENTS_PER_FILE, number)

        def read() -> Iterator[Document]:  # is pickled with all it needs
            import os
            import time

            import ray

            if ray.is_initialized():
                node = ray.get_runtime_context().get_node_id()
                (folder / f"{os.getpid()}.{node}.reads").touch()
                for _ in range(20 * LIMIT):
                    if (folder / "open").exists():
                        break
                    time.sleep(0.05)
            for k, text in enumerate(contents):
                yield Document(text, f"{number}:{k}")

        return Source(f"gated {number}", read)

    def list_readers(self) -> list[tuple[int, str]]:
        """Return the processes that read, and their nodes."""
        split = [path.name.split(".") for path in sorted(self.folder.glob("*.reads"))]
        return [(int(number), node) for number, node, _ in split if int(number) != os.getpid()]

    def act_when(self, readers: int, act: Callable[[], None]) -> threading.Thread:
        """When so many processes wait, do something, and open the gate."""

        def wait() -> None:
            until = time.monotonic() + LIMIT
            while len(self.list_readers()) < readers and time.monotonic() < until:
                time.sleep(0.05)
            try:
                act()
            finally:
                (self.folder / "open").touch()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def count_gated(gate: Gate, model: Model) -> tuple[Corpus, Study]:
    """Return a gated corpus, and its study made in this process."""
    corpus = gate.make_corpus()
    (gate.folder / "open").touch()
    expected = headscope.study(model, corpus, **OPTIONS)
    for path in gate.folder.iterdir():
        path.unlink()
    return corpus, expected


def test_a_worker_that_is_killed_costs_nothing(cluster: Any, model: Model, gate: Gate):
    corpus, expected = count_gated(gate, model)
    messages = list[str]()
    killing = gate.act_when(2, lambda: os.kill(gate.list_readers()[0][0], signal.SIGKILL))
    again = run_on_ray(model, corpus, 2, on_message=messages.append)
    killing.join()
    assert_equal(expected, again)
    assert messages[0].startswith("2 workers")
    assert [message for message in messages if "was lost and restarted" in message]


@pytest.mark.soak
def test_the_command_gives_the_same_study(cluster: Any, model: Model, folder: Path, tmp_path: Path):
    paths = [str(path) for path in files(tmp_path / "in", [60, 30])]
    expected = headscope.study(model, headscope.documents(paths), length=24, sample=0.5)
    # Drawing takes longer than all the rest, and is not what is tested here.
    blank = (
        "from matplotlib.figure import Figure; from headscope import cli, output_folder; "
        "output_folder.draw_all = lambda study: {'11b': Figure(figsize=(1, 1))}; cli.main()"
    )
    command = [sys.executable, "-c", blank, "study", *paths, "--model", str(folder), "--out", str(tmp_path / "out")]
    options = ["--length", "24", "--sample", "0.5", "--device", "cpu", "--engine", "ray", "--workers", "2"]
    result = subprocess.run(
        [*command, *options, "--address", cluster.address], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "2 workers: 1 with 2 cores, 1 with 4 cores" in result.stderr
    # The command has chunks of the usual size, so that texts share other batches, and reals differ by rounding.
    assert_same_sums(expected, headscope.open_study(tmp_path / "out"))


@pytest.mark.soak
def test_sigterm_ends_a_study_on_a_cluster_with_a_checkpoint(cluster: Any, folder: Path, tmp_path: Path):
    (path,) = files(tmp_path / "in", [4000])
    command = [sys.executable, "-m", "headscope", "study", str(path), "--model", str(folder), "--out", "out"]
    options = ["--length", "24", "--device", "cpu", "--engine", "ray", "--workers", "1", "--address", cluster.address]
    errors = open(tmp_path / "errors", "w+", encoding="utf-8")  # noqa: SIM115
    with (
        errors,
        subprocess.Popen([*command, *options, "--checkpoint-interval", "0"], cwd=tmp_path, stderr=errors) as process,
    ):
        until = time.monotonic() + LIMIT
        while not (tmp_path / "out" / "checkpoint" / "last").exists() and time.monotonic() < until:
            assert process.poll() is None, Path(errors.name).read_text("utf-8")
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 143
    message = Path(errors.name).read_text("utf-8")
    assert "Run the same command again to resume." in message
    assert not (tmp_path / "out" / "report.html").exists()


# Last, because it takes a node away


@pytest.mark.soak
def test_a_node_that_leaves_costs_nothing(cluster: Any, model: Model, gate: Gate):
    corpus, expected = count_gated(gate, model)
    (leaving,) = cluster.worker_nodes
    messages = list[str]()
    removing = gate.act_when(2, lambda: cluster.remove_node(leaving))
    again = run_on_ray(model, corpus, 2, on_message=messages.append)
    removing.join()
    assert_equal(expected, again)
    assert [message for message in messages if "left the cluster" in message]
    assert len({node for _, node in gate.list_readers()}) == 2

"""Studies on a cluster of two nodes, which lose workers and nodes on the way: the numbers are those of one process.

Starting a worker takes seconds, so each test asks several things of the few it starts.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.corpus import shards
from headscope.corpus.documents import Corpus
from headscope.corpus.formats import Document
from headscope.corpus.shards import Source
from headscope.engines import ray_cluster, ray_connection
from headscope.errors import CorpusError, ModelError, Stopped, StudyError
from headscope.model.model import Model
from headscope.studies import job
from headscope.studies.result import Study
from tests import tiny
from tests.cutting import OPTIONS, assert_equal, files, saved_model, stopping, texts

ray = pytest.importorskip("ray")

LIMIT = 600
"""seconds for one test, on a machine that has other things to do"""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"this test took more than {LIMIT} seconds")

    usual = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return headscope.load(folder, device="cpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with two cores each, as they think."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # 15 unless told: beside other tests they would hardly ever run
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # else Ray ends workers when others take the memory
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


def on_ray(model: Model, documents: Any, workers: int | None, **options: Any) -> Study:
    return headscope.study(model, documents, engine="ray", workers=workers, **{**OPTIONS, **options})


# -- refusals that need no worker -------------------------------------------------------------------------------------


def test_an_unknown_engine_is_refused_by_name(model: Model):
    with pytest.raises(StudyError, match=r"unknown engine 'spark'; there are: local, ray"):
        headscope.study(model, ["the cat sat."], engine="spark", **OPTIONS)


def test_there_is_at_least_one_worker(model: Model):
    with pytest.raises(StudyError, match=r"workers is 0: at least 1"):
        on_ray(model, ["the cat sat."], workers=0)


def test_workers_are_for_a_cluster(model: Model):
    with pytest.raises(StudyError, match=r"are for a cluster: say --engine ray"):
        headscope.study(model, ["the cat sat."], workers=2, **OPTIONS)


def test_without_ray_it_says_what_to_install(model: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r"pip install 'headscope\[ray\]'"):
        on_ray(model, ["the cat sat."], workers=1)


def test_a_model_object_is_refused():
    with pytest.raises(StudyError, match=r"give its name or folder, not an object"):
        on_ray(tiny.model("bert"), ["the cat sat."], workers=1)


def test_what_only_this_process_can_read_is_refused(model: Model):
    with pytest.raises(StudyError, match=r"-: only this process can read it: write it to a file"):
        on_ray(model, headscope.documents("-"), workers=1)
    with pytest.raises(StudyError, match=r"texts given in Python: only this process can read it"):
        on_ray(model, (text for text in ["the cat sat."]), workers=1)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_does_not_answer_is_refused_soon(model: Model, monkeypatch: pytest.MonkeyPatch, scheme: str):
    connect, patience = socket.create_connection, list[float]()

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        patience.append(timeout)
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connected)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked, which takes minutes"))
    with socket.socket() as held:  # bound, so that nobody else gets it, and not listening
        held.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(StudyError, match=f"no Ray cluster at {address}: .*leave --address out"):
            on_ray(model, ["the cat sat."], workers=1, address=address)
    assert patience == [ray_connection.PATIENCE]


def test_what_ray_says_of_a_cluster_that_is_none_is_told_in_one_sentence(model: Model, monkeypatch: pytest.MonkeyPatch):
    def init(**options: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify the one to connect to.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        StudyError, match=r"no Ray cluster at auto: Could not find any running Ray instance\."
    ) as caught:
        on_ray(model, ["the cat sat."], workers=1, address="auto")
    assert "\n" not in str(caught.value)


# -- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_begun_here_and_finished_there(cluster: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(files(tmp_path / "in", [60, 30, 0, 20, 100, 5])[0].parent)  # names are those of where we are
    made = headscope.documents([f"{k:02}.jsonl" for k in range(6)])
    whole = headscope.study(model, made, **OPTIONS)
    with pytest.raises(Stopped):
        headscope.study(model, made, checkpoints=tmp_path, progress=stopping(9), **OPTIONS)
    said, told = list[str](), list[Any]()
    again = on_ray(model, made, 1, checkpoints=tmp_path, every=0.0, say=said.append, progress=told.append)
    assert_equal(whole, again)
    assert again.manifest["runs"] == 2
    assert said[0].startswith("going on from ")
    assert 0 < told[0].texts_before < whole.texts == told[-1].texts
    # All is there: a third run has nothing to do, and calls no worker.
    assert_equal(whole, on_ray(model, made, 1, checkpoints=tmp_path, address="127.0.0.1:1"))


@pytest.mark.soak
def test_a_broken_document_is_named_the_others_are_studied_and_mended_it_is_finished_here(
    cluster: Any, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job, "SMALL_CORPUS", 10)  # in a small corpus it is found before anything is studied
    made = files(tmp_path / "in", [40, 60, 30, 0, 50, 20])
    whole = headscope.study(model, headscope.documents(made), **OPTIONS)
    right = made[1].read_text("utf-8")
    lines = right.splitlines(keepends=True)
    made[1].write_text("".join([*lines[:31], "no JSON\n", *lines[32:]]), "utf-8")
    said = list[str]()
    with pytest.raises(Stopped, match=r"01\.jsonl:32: not a JSON object") as caught:
        on_ray(model, headscope.documents(made), 3, checkpoints=tmp_path, say=said.append)
    assert caught.value.study is not None
    assert caught.value.study.manifest["documents_read"] == 40 + 30 + 50 + 20
    assert "3 workers, each with 1 cores" in said
    assert len([words for words in said if "01.jsonl:32" in words]) == 1
    made[1].write_text(right, "utf-8")
    assert_equal(whole, headscope.study(model, headscope.documents(made), checkpoints=tmp_path, **OPTIONS))


@dataclass
class Gate:
    """A corpus of many files, at each of which its reader says who it is, and waits until it may pass."""

    folder: Path

    def corpus(self, count: int) -> Corpus:
        return Corpus("gated texts", [self._source(k, self.folder) for k in range(count)])

    @staticmethod
    def _source(number: int, folder: Path) -> Source:
        held = texts(20, number)

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
            for k, text in enumerate(held):
                yield Document(text, f"{number}:{k}")

        return Source(f"gated {number}", read)

    def readers(self) -> list[tuple[int, str]]:
        """Processes that read, and their nodes."""
        split = [path.name.split(".") for path in sorted(self.folder.glob("*.reads"))]
        return [(int(number), node) for number, node, _ in split if int(number) != os.getpid()]

    def when(self, readers: int, act: Callable[[], None]) -> threading.Thread:
        """When so many processes are at their gates, do something, and open the gates."""

        def wait() -> None:
            until = time.monotonic() + LIMIT
            while len(self.readers()) < readers and time.monotonic() < until:
                time.sleep(0.05)
            try:
                act()
            finally:
                (self.folder / "open").touch()

        made = threading.Thread(target=wait)
        made.start()
        return made


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def gated(gate: Gate, model: Model, count: int) -> tuple[Corpus, Study]:
    """A corpus, and its study made here."""
    corpus = replace(gate.corpus(count), size=20 * count)
    (gate.folder / "open").touch()
    whole = headscope.study(model, corpus, **OPTIONS)
    for path in gate.folder.iterdir():
        path.unlink()
    return corpus, whole


def test_a_worker_killed_at_work_costs_nothing(cluster: Any, model: Model, gate: Gate):
    corpus, whole = gated(gate, model, 6)
    said = list[str]()
    killed = gate.when(2, lambda: os.kill(gate.readers()[0][0], signal.SIGKILL))
    again = on_ray(model, corpus, 2, say=said.append)
    killed.join()
    assert_equal(whole, again)
    assert said[0] == "2 workers, each with 2 cores"
    assert [words for words in said if "gone" in words] == ["a worker is gone; what it had is given to others"]


@pytest.mark.soak
def test_the_command_gives_the_same_study(cluster: Any, model: Model, folder: Path, tmp_path: Path):
    given = [str(path) for path in files(tmp_path / "in", [60, 30])]
    whole = headscope.study(model, headscope.documents(given), length=24, sample=0.5)
    # Drawing takes longer than all the rest, and is not what is asked here.
    blank = (
        "from matplotlib.figure import Figure; from headscope import cli, output; from headscope.corpus import shards; "
        "shards.SHARD_BYTES = 500; output.draw_all = lambda study: {'11b': Figure(figsize=(1, 1))}; cli.main()"
    )
    command = [sys.executable, "-c", blank, "study", *given, "--model", str(folder), "--out", str(tmp_path / "out")]
    asked = ["--length", "24", "--sample", "0.5", "--device", "cpu", "--engine", "ray", "--workers", "2"]
    ran = subprocess.run(
        [*command, *asked, "--address", cluster.address], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "2 workers, each with 2 cores" in ran.stderr
    assert_equal(whole, headscope.open_study(tmp_path / "out"))


# -- what a worker finds ----------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_other_weights_on_a_worker_are_refused(cluster: Any, model: Model):
    with pytest.raises(
        ModelError, match=r"a worker found other weights under this name \(.*same files on all machines"
    ):
        on_ray(replace(model, weight_hash="0" * 64), ["the cat sat."] * 9, workers=1)


@pytest.mark.soak
def test_a_model_that_a_worker_cannot_load_is_said_once(cluster: Any, model: Model, tmp_path: Path):
    elsewhere = replace(model, origin={**(model.origin or {}), "name": str(tmp_path / "nowhere")})
    said = list[str]()
    with pytest.raises((ModelError, StudyError), match="nowhere"):
        on_ray(elsewhere, ["the cat sat."] * 9, workers=1, say=said.append)
    assert not [words for words in said if "gone" in words]


@pytest.mark.soak
def test_workers_that_end_again_and_again_end_the_study(cluster: Any, model: Model, monkeypatch: pytest.MonkeyPatch):
    class Ending(ray_cluster.Remote):
        def ready(self) -> str:
            import os

            os._exit(1)

    monkeypatch.setattr(ray_cluster, "Remote", Ending)
    monkeypatch.setattr(ray_cluster, "DEATHS", 1)
    with pytest.raises(StudyError, match=r"workers end again and again, the last one with: "):
        on_ray(model, ["the cat sat."] * 9, workers=1)


# -- last, because it takes a node away -------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_node_that_goes_costs_nothing(cluster: Any, model: Model, gate: Gate):
    corpus, whole = gated(gate, model, 6)
    (leaving,) = cluster.worker_nodes
    said = list[str]()
    removed = gate.when(2, lambda: cluster.remove_node(leaving))
    again = on_ray(model, corpus, 2, say=said.append)
    removed.join()
    assert_equal(whole, again)
    assert "a worker is gone; what it had is given to others" in said
    assert len({node for _, node in gate.readers()}) == 2


@pytest.mark.soak
def test_nothing_of_a_corpus_that_cannot_be_opened_there_is_counted(cluster: Any, model: Model, tmp_path: Path):
    made = files(tmp_path / "in", [20])
    corpus = headscope.documents(made)
    _ = corpus.shards
    counted = replace(corpus, size=20)
    made[0].unlink()
    with pytest.raises(CorpusError, match=r"00\.jsonl"):
        on_ray(model, counted, workers=1)

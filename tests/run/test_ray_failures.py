"""Test the Ray engine on a simulated cluster where workers fail, die, hang or leave: every chunk counts once."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import headscope
from headscope.corpus import chunks
from headscope.errors import CorpusError, ModelError, Stopped, StudyError
from headscope.model import loading
from headscope.model.model import Model
from headscope.run import engines, local_engine, plan, ray_cluster, ray_engine, ray_worker
from headscope.run.engines import MAX_ATTEMPTS
from headscope.run.ray_cluster import RayCluster
from headscope.studies.result import Study
from tests.helpers.fake_ray import DIE, HANG, Actor, Behavior, FakeRay, FakeTime
from tests.helpers.interrupting import OPTIONS, SMALL, assert_equal, files, save_tiny_model

pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("small_chunks")

COUNTS = [60, 30, 0, 20, 100, 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return headscope.load(save_tiny_model(tmp_path_factory.mktemp("model")), device="cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return headscope.documents(files(tmp_path_factory.mktemp("corpus"), COUNTS))


@pytest.fixture(scope="module")
def expected(model: Model, corpus: Any) -> Study:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan, "choose_chunk_size", lambda *more: SMALL)
        return headscope.study(model, corpus, **OPTIONS)


@pytest.fixture(autouse=True)
def one_process(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run all workers of a simulated cluster in this process, with one shared model."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(loading, "load", lambda **origin: model)
    yield
    torch.set_num_threads(threads)


class Scenario:
    """A simulated cluster, and the study on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Model, nodes: dict[str, Any], behave: Behavior) -> None:
        self.ray, self.model, self.messages = FakeRay(nodes, behave), model, list[str]()
        monkeypatch.setattr(ray_engine, "time", FakeTime(self.ray))
        # A call takes its seconds of the simulated clock, whatever it takes of the real one.
        clock = FakeTime(self.ray)
        monkeypatch.setattr(ray_worker, "time", clock)

        @contextmanager
        def connect(address: str | None, device: str) -> Iterator[RayCluster]:
            yield RayCluster(self.ray, device)

        monkeypatch.setattr(ray_cluster, "connect", connect)
        monkeypatch.setattr(RayCluster, "pin_to", lambda _, node, soft=False: SimpleNamespace(node_id=node))
        self.requests = list[int]()
        monkeypatch.setattr(RayCluster, "request_workers", lambda _, count: self.requests.append(count))

    def run(self, corpus: Any, **options: Any) -> Study:
        return headscope.study(
            self.model, corpus, engine="ray", on_message=self.messages.append, **{**OPTIONS, **options}
        )


def find_messages(scenario: Scenario, words: str) -> list[str]:
    return [message for message in scenario.messages if words in message]


def node(cpus: float, gpus: float = 0) -> dict[str, float]:
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


def first_times(count: int, method: str, what: Any, seconds: float = 2.0) -> Behavior:
    """Return a behavior that does something the first times that a method is called."""
    times = iter(range(count))

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        return what if name == method and next(times, None) is not None else seconds

    return behave


@pytest.mark.parametrize("workers", [None, 1, 2, 5])
def test_any_number_of_workers_gives_the_same_study(monkeypatch, model, corpus, expected, workers: int | None):
    scenario = Scenario(monkeypatch, model, {"a": node(2), "b": node(4)}, lambda *call: 3.0)
    assert_equal(expected, scenario.run(corpus, workers=workers))
    assert len(scenario.ray.actors) == (workers or 2)
    assert all(actor.is_dead for actor in scenario.ray.actors)  # nothing is left on the cluster


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_dies_is_restarted_by_ray(monkeypatch, model, corpus, expected, times: int):
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, first_times(times, "count", DIE))
    assert_equal(expected, scenario.run(corpus))
    restarts = [actor.restarts for actor in scenario.ray.actors]
    assert sum(restarts) == times
    assert find_messages(scenario, "was lost and restarted; its chunks were counted again")


def test_a_task_that_fails_is_given_to_another_worker(monkeypatch, model, corpus, expected):
    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        fails = name == "count" and actor.node == "a"
        return RuntimeError("CUDA error: unspecified launch failure") if fails else 20.0

    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    assert_equal(expected, scenario.run(corpus))
    assert find_messages(scenario, "a worker on a failed: RuntimeError: CUDA error")


def test_a_node_on_which_everything_fails_pauses_longer_and_longer(monkeypatch, model, corpus, expected):
    times = list[float]()

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        if name != "count" or actor.node != "a":
            return 40.0
        times.append(scenario.ray.now)
        return RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(ray_engine, "TASKS_PER_WORKER", 1)
    monkeypatch.setattr(engines, "MIN_TASK_SECONDS", 0.0)
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    assert_equal(expected, scenario.run(corpus))
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) >= 3
    assert pauses == sorted(set(pauses))
    assert find_messages(scenario, "a worker on a failed: RuntimeError: CUDA error")[1].endswith("after 5 seconds")


def test_a_failure_of_all_nodes_for_a_minute_ends_nothing(monkeypatch, model, corpus, expected):
    """Such as storage or a network that is gone."""

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        fails = name == "count" and 20.0 < scenario.ray.now < 80.0
        return RuntimeError("no route to host") if fails else 10.0

    monkeypatch.setattr(engines, "TASK_SECONDS", 0.0)  # one chunk in each
    nodes = {name: node(2) for name in "abcd"}
    scenario = Scenario(monkeypatch, model, nodes, behave)
    assert_equal(expected, scenario.run(corpus, workers=8))
    assert {actor.node for actor in scenario.ray.actors} == set(nodes)
    assert scenario.ray.now < 300.0


def test_a_single_error_does_not_end_a_study_with_one_worker(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(2)}, first_times(1, "count", RuntimeError("once")))
    assert_equal(expected, scenario.run(corpus, workers=1))


@pytest.mark.parametrize("what", [RuntimeError("broken"), DIE], ids=["error", "death"])
def test_a_chunk_that_fails_everywhere_ends_the_study_and_is_named(
    monkeypatch, model, corpus, expected, tmp_path, what
):
    attempts = list[str]()

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "count" and any(chunk.first == 4 and chunk.start == 0 for chunk in arguments[0].chunks):
            attempts.append(actor.node)
            return what
        return 2.0

    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    named = r"(?s)(broken|its process died).*\(in .*04\.jsonl, on every worker that tried\)"
    with pytest.raises(Stopped, match=named) as caught:
        scenario.run(corpus, checkpoint_dir=tmp_path / "checkpoint")
    assert len(attempts) >= MAX_ATTEMPTS
    assert set(attempts) == {"a", "b"}
    assert caught.value.study is not None
    counted = caught.value.study.manifest["documents_read"]
    assert counted > 60 + 30 + 20  # the other chunks were not lost
    # When the reason is gone, the same call counts the rest.
    healthy = Scenario(monkeypatch, model, {"a": node(1)}, lambda *call: 2.0)
    assert_equal(expected, healthy.run(corpus, checkpoint_dir=tmp_path / "checkpoint"))


def test_a_worker_that_hangs_is_replaced(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, first_times(1, "count", HANG))
    assert_equal(expected, scenario.run(corpus, worker_timeout=300.0))
    assert scenario.ray.now >= 300.0
    assert find_messages(scenario, "it returned no result for 300 seconds")


def test_a_worker_that_hangs_while_it_loads_the_model_does_not_hold_up_the_others(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, first_times(1, "load", HANG))
    assert_equal(expected, scenario.run(corpus))
    assert scenario.ray.now < 300.0


def test_a_worker_for_which_there_is_no_room_yet_does_not_hold_up_the_others(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, first_times(1, "get_process", HANG))
    assert_equal(expected, scenario.run(corpus, worker_timeout=10.0))
    assert not find_messages(scenario, "failed")


def test_a_slow_worker_is_not_taken_for_one_that_hangs(monkeypatch, model, corpus, expected):
    """The first task shows how slow workers are here; later ones may take four times as long."""
    seconds = iter([250.0, 250.0])
    scenario = Scenario(
        monkeypatch, model, {"a": node(1)}, lambda actor, name, _: next(seconds, 900.0) if name == "count" else 1.0
    )
    assert_equal(expected, scenario.run(corpus, worker_timeout=300.0))
    assert not find_messages(scenario, "failed")


def test_workers_do_not_hang_because_the_driver_is_busy(monkeypatch, model, corpus, expected):
    """Writing a checkpoint takes longer than a worker may take; results wait for the driver meanwhile."""
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, lambda *call: 20.0)

    def write_slowly(_: Any) -> None:
        scenario.ray.advance(500.0)

    assert_equal(expected, scenario.run(corpus, worker_timeout=300.0, progress=write_slowly))
    assert not find_messages(scenario, "failed")


def test_that_no_worker_can_start_is_said(monkeypatch, model, corpus, expected):
    """Others have all the cores: Ray starts the process of a worker when some are free."""

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        return 200.0 if name == "get_process" else 2.0

    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    assert_equal(expected, scenario.run(corpus, worker_timeout=10.0))
    messages = find_messages(scenario, "no core is free for a worker (a, b): waiting until others leave some")
    assert len(messages) == 6  # every 30 seconds


@pytest.mark.parametrize("dies", [False, True])
def test_a_file_that_takes_many_tasks_is_read_once(monkeypatch, model, tmp_path, dies: bool):
    """It stays open at its worker between tasks; only another worker has to read it again up to where it was."""
    path, read = files(tmp_path / "in", [300])[0], list[int]()
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    corpus = headscope.documents(packed)
    with monkeypatch.context() as patched:
        patched.setattr(plan, "choose_chunk_size", lambda *more: SMALL)
        expected = headscope.study(model, corpus, **OPTIONS)
    monkeypatch.setattr(engines, "TASK_SECONDS", -1.0)
    open_file = chunks._read_source
    monkeypatch.setattr(chunks, "_read_source", lambda *source: read.append(1) or open_file(*source))
    monkeypatch.setattr(local_engine, "FLUSH_SECONDS", 0.0)
    deaths = iter([None] * 4 + [DIE]) if dies else iter([])
    scenario = Scenario(
        monkeypatch, model, {"a": node(1), "b": node(1)},
        lambda actor, name, _: next(deaths, None) or 400.0 if name == "count" else 1.0,
    )  # fmt: skip
    assert_equal(expected, scenario.run(corpus))
    assert scenario.ray.now > 4 * 400.0
    assert len(read) == (2 if dies else 1)
    assert not find_messages(scenario, "failed")


def test_a_node_that_leaves_costs_nothing(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(3)}, lambda *call: 5.0)
    scenario.ray.at(17.0, lambda: scenario.ray.remove_node("b"))
    assert_equal(expected, scenario.run(corpus, workers=3))
    assert find_messages(scenario, "b left the cluster")


def test_nodes_that_join_get_workers(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"head": node(0)}, lambda *call: 5.0)
    scenario.ray.at(90.0, lambda: scenario.ray.resources.update(spot=node(2)))
    assert_equal(expected, scenario.run(corpus))
    assert find_messages(scenario, "no node of the cluster has a core for a worker: waiting for one")
    assert scenario.requests == [1, 0]  # asked for, and given back


def test_nodes_that_come_and_go(monkeypatch, model, corpus, expected):
    monkeypatch.setattr(engines, "TASK_SECONDS", 0.0)  # one chunk in each
    scenario = Scenario(monkeypatch, model, {"a0": node(1)}, lambda *call: 4.0)
    for number in range(1, 12):
        scenario.ray.at(20.0 * number, lambda number=number: scenario.ray.resources.update({f"a{number}": node(1)}))
        scenario.ray.at(20.0 * number + 7, lambda number=number: scenario.ray.remove_node(f"a{number - 1}"))
    assert_equal(expected, scenario.run(corpus))
    assert len({actor.node for actor in scenario.ray.actors if actor.instance is not None}) > 1


def test_gpu_nodes_are_used_although_the_driver_has_none(monkeypatch, model, corpus, expected):
    monkeypatch.setitem(model.origin, "device", "auto")
    scenario = Scenario(monkeypatch, model, {"head": node(4), "gpus": node(8, 2)}, lambda *call: 5.0)
    scenario.run(corpus)
    assert [actor.node for actor in scenario.ray.actors] == ["gpus", "gpus"]
    assert [actor.arguments[0]["device"] for actor in scenario.ray.actors] == ["cuda", "cuda"]
    assert "2 workers, each with 4 cores and a GPU" in scenario.messages


def test_gpus_are_left_alone_if_the_cpu_was_asked_for(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"head": node(4), "gpus": node(8, 2)}, lambda *call: 5.0)
    assert_equal(expected, scenario.run(corpus))
    assert [actor.arguments[0]["device"] for actor in scenario.ray.actors] == ["cpu", "cpu"]


@pytest.mark.parametrize("what", ["weights", "code"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_node_with_other_weights_or_code_is_left_out(monkeypatch, model, corpus, expected, what: str, restarts: bool):
    """Also if a worker that Ray restarts finds them, because files were replaced."""
    versions = ray_worker.Versions
    loaded = list[str]()

    def load(**origin: Any) -> Any:
        loaded.append(scenario.ray.running)
        is_other = scenario.ray.running == "a" and (not restarts or loaded.count("a") > 1)
        monkeypatch.setattr(ray_worker, "hash_package", lambda: "other" if is_other and what == "code" else "same")
        weights = "other" if is_other and what == "weights" else model.weight_hash
        monkeypatch.setattr(versions, "of", classmethod(lambda kind, model: kind(weights, ray_worker.hash_package())))
        return model

    behave = first_times(1, "count", DIE) if restarts else lambda *call: 2.0
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    monkeypatch.setattr(versions, "of", classmethod(lambda kind, model: kind(model.weight_hash, "same")))
    monkeypatch.setattr(loading, "load", load)
    assert_equal(expected, scenario.run(corpus))
    (message,) = find_messages(scenario, "a gets no more chunks")
    assert ("has other weights under this name" if what == "weights" else "has another version of headscope") in message


def test_a_model_that_is_not_loaded_at_first(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(1)}, first_times(2, "load", OSError("hub: 503")))
    assert_equal(expected, scenario.run(corpus))
    assert find_messages(scenario, "a worker on a failed: OSError: hub: 503. It is started again")


def test_a_model_that_is_never_loaded_ends_the_study(monkeypatch, model, corpus):
    scenario = Scenario(monkeypatch, model, {"a": node(1)}, first_times(99, "load", OSError("hub: 503")))
    with pytest.raises(StudyError, match="hub: 503"):
        scenario.run(corpus)


def test_a_chunk_that_takes_its_nodes_down_ends_the_study_and_is_named(monkeypatch, model, corpus):
    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "count" and any(chunk.first == 4 and chunk.start == 0 for chunk in arguments[0].chunks):
            number = len(scenario.ray.resources) + scenario.removed
            scenario.removed += 1
            scenario.ray.at(scenario.ray.now + 1.0, lambda: scenario.ray.remove_node(actor.node))
            scenario.ray.at(scenario.ray.now + 2.0, lambda: scenario.ray.resources.update({f"n{number}": node(1)}))
            return HANG
        return 2.0

    scenario = Scenario(monkeypatch, model, {"n0": node(1)}, behave)
    scenario.removed = 0
    with pytest.raises(Stopped, match=r"nodes left the cluster \(in .*04\.jsonl"):
        scenario.run(corpus)
    assert scenario.removed < 30


def test_innocent_chunks_are_not_blamed_for_a_process_that_dies(monkeypatch, model, corpus, expected):
    """Both tasks of a worker fail when its process dies, in any order; the first one was running."""
    blamed = list[int]()
    retry = engines.ChunkQueue.retry

    def record(self: Any, task: Any, node: str, **why: bool) -> Any:
        if why.get("failed"):
            blamed.append(task.number)
        return retry(self, task, node, **why)

    def behave(actor: Actor, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "count" and arguments[0].number == 1 and actor.restarts < 3:
            return DIE
        return 2.0

    monkeypatch.setattr(engines.ChunkQueue, "retry", record)
    wait = FakeRay.wait

    def wait_backwards(self: FakeRay, references: list[Any], **options: Any) -> Any:
        return wait(self, references[::-1], **options)

    monkeypatch.setattr(FakeRay, "wait", wait_backwards)
    scenario = Scenario(monkeypatch, model, {"a": node(1)}, behave)
    assert_equal(expected, scenario.run(corpus))
    assert blamed == [1]


def test_a_model_that_no_worker_can_load_ends_the_study(monkeypatch, model, corpus, tmp_path):
    behave = first_times(99, "load", ModelError("nowhere: there is no such folder"))
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, behave)
    with pytest.raises(ModelError, match="nowhere: there is no such folder"):
        scenario.run(corpus, checkpoint_dir=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()  # nothing blocks the corrected command


def test_a_document_that_cannot_be_read_is_named_and_the_others_are_counted(monkeypatch, model, tmp_path):
    monkeypatch.setattr(plan, "MAX_SMALL_CORPUS", 10)  # in a small corpus it is found before anything is counted
    paths = files(tmp_path / "in", COUNTS)
    corpus = headscope.documents(paths)
    expected = headscope.study(model, corpus, **OPTIONS)
    content = paths[4].read_text("utf-8")
    lines = content.splitlines(keepends=True)
    broken = "{" + lines[50][1:-2] + "]\n"
    assert len(broken) == len(lines[50])
    paths[4].write_text("".join([*lines[:50], broken, *lines[51:]]), "utf-8")
    corpus = headscope.documents(paths)
    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, lambda *call: 2.0)
    with pytest.raises(Stopped, match=r"04\.jsonl:51: not a JSON object") as caught:
        scenario.run(corpus, checkpoint_dir=tmp_path / "checkpoint", sample=0.5)
    assert isinstance(caught.value.__cause__, CorpusError)
    counted = caught.value.study.manifest["documents_read"]
    assert sum(COUNTS) - 20 < counted < sum(COUNTS)
    paths[4].write_text(content, "utf-8")
    healed = headscope.study(model, headscope.documents(paths), checkpoint_dir=tmp_path / "checkpoint", **OPTIONS)
    assert_equal(expected, healed)


def test_a_file_that_is_replaced_during_the_run_is_an_error(monkeypatch, model, tmp_path):
    paths = files(tmp_path / "in", COUNTS)
    scenario = Scenario(monkeypatch, model, {"a": node(1)}, lambda *call: 2.0)

    def replace_file() -> None:
        paths[4].write_text(paths[4].read_text("utf-8").replace("cat", "dog"), "utf-8")
        os.utime(paths[4], (1e9, 1e9))

    scenario.ray.at(9.0, replace_file)
    with pytest.raises(Stopped, match=r"04\.jsonl: changed since this study began"):
        scenario.run(headscope.documents(paths))


def test_the_sums_of_a_node_travel_together(monkeypatch, model, corpus, expected):
    sizes = list[int]()
    add = ray_engine.add_results

    def add_and_count(*results: Any) -> Any:
        sizes.append(len(results))
        return add(*results)

    monkeypatch.setattr(ray_engine, "add_results", add_and_count)
    scenario = Scenario(monkeypatch, model, {"a": node(4)}, lambda *call: 3.0)
    assert_equal(expected, scenario.run(corpus, workers=4))
    assert max(sizes) == 4


def test_results_are_taken_one_by_one_if_adding_them_on_their_node_fails(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(2)}, lambda *call: 3.0)
    start = scenario.ray._start_function
    failed = list[int]()

    def start_failing(function: Any) -> Any:
        def run(*references: Any) -> Any:
            result = start(lambda *results: None)(*references)
            result.error = result.error or scenario.ray.exceptions.RayActorError("no memory")
            failed.append(len(references))
            return result

        return run

    monkeypatch.setattr(scenario.ray, "_start_function", start_failing)
    assert_equal(expected, scenario.run(corpus, workers=2))
    assert failed


def test_ctrl_c_ends_the_workers_and_keeps_what_they_handed_over(monkeypatch, model, corpus, tmp_path, expected):
    reports = iter(range(3))

    def stop(_: Any) -> None:
        if next(reports, None) is None:
            raise KeyboardInterrupt

    scenario = Scenario(monkeypatch, model, {"a": node(1), "b": node(1)}, lambda *call: 2.0)
    with pytest.raises(Stopped):
        scenario.run(corpus, progress=stop, checkpoint_dir=tmp_path)
    assert all(actor.is_dead for actor in scenario.ray.actors)
    again = headscope.study(model, corpus, checkpoint_dir=tmp_path, **OPTIONS)  # resumed by this process
    assert_equal(expected, again)
    assert again.manifest["runs"] == 2


def test_workers_without_room_are_asked_of_the_cluster(monkeypatch, model, corpus, expected):
    scenario = Scenario(monkeypatch, model, {"a": node(2)}, lambda *call: 2.0)
    assert_equal(expected, scenario.run(corpus, workers=5))
    assert "2 workers, each with 1 core, of 5 requested" in scenario.messages
    assert scenario.requests == [5, 0]


def test_unknown_options_are_refused(model, corpus):
    with pytest.raises(StudyError, match="worker_timeout"):
        headscope.study(model, corpus, engine="ray", worker_timeout=0.0, **OPTIONS)

"""Test the Ray worker: it counts tasks within their time, without reading anything twice."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import headscope
from headscope.corpus import chunks
from headscope.corpus.chunks import SourceSubset
from headscope.corpus.documents import Corpus
from headscope.errors import CorpusError
from headscope.model import loading
from headscope.model.model import Model
from headscope.run import local_engine, ray_worker
from headscope.run.engines import Task
from headscope.run.plan import RunPlan
from headscope.run.ray_worker import ChunkWorker, Versions, add_results
from headscope.run.state import RunState
from headscope.settings import Settings
from tests.helpers import tiny
from tests.helpers.interrupting import SMALL, files, make_gz

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


@pytest.fixture
def plan(model: Model, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    monkeypatch.setattr(local_engine, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(loading, "load", lambda **origin: model)
    return RunPlan(Settings(length=24), 0.5, SMALL, batch_size=3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the chunks that are opened, in their order."""
    numbers, read = list[int](), chunks._read_source
    monkeypatch.setattr(
        chunks, "_read_source", lambda source, chunk: numbers.append(chunk.number) or read(source, chunk)
    )
    return numbers


def make_worker(model: Model, corpus: Corpus, plan: RunPlan) -> ChunkWorker:
    return ChunkWorker({}, Versions.of(model), corpus, plan, 1, ".")


def tick(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let `seconds` pass whenever the worker reads the clock."""
    clock = itertools.count()
    monkeypatch.setattr(ray_worker, "time", SimpleNamespace(monotonic=lambda: seconds * next(clock)))


@pytest.mark.parametrize(("seconds", "counted"), [(1.0, 5), (6.0, 5), (15.0, 3)])
def test_a_task_of_several_chunks_is_cut_short_only_if_it_takes_twice_its_time(
    model: Model, plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, counted: int
):
    corpus = headscope.documents(files(tmp_path, [60]))
    task = Task(tuple(corpus.plan_chunks(SMALL)[:5]), {}, 16.0)
    tick(monkeypatch, seconds)
    worker = make_worker(model, corpus, plan)
    result = worker.count(task, SourceSubset(corpus.sources, task.chunks))
    assert result.state.completed == set(range(counted))
    assert not worker.open_chunks


def test_a_long_chunk_is_continued_where_it_was_left(
    model: Model, plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[int]
):
    corpus = headscope.documents([make_gz(tmp_path), *files(tmp_path / "in", [3])])
    long, short = corpus.plan_chunks(SMALL)
    sources = SourceSubset(corpus.sources, [long, short])
    tick(monkeypatch, 100.0)
    worker, state = make_worker(model, corpus, plan), RunState.empty(plan.get_shape(model))
    parts = 0
    while long.number not in state.completed:
        state.add(worker.count(Task((long,), dict(state.in_progress), 16.0), sources).state)
        parts += 1
        if parts == 3:  # another task in between
            state.add(worker.count(Task((short,), {}, 16.0), sources).state)
    assert parts > 5
    assert opened == [long.number, short.number]
    assert state.stats.documents == 63
    assert not worker.open_chunks


def test_a_task_that_is_run_again_starts_where_it_started(
    model: Model, plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[int]
):
    """Ray runs a task again whose result was lost, also at a worker that is further by now."""
    corpus = headscope.documents(make_gz(tmp_path))
    (long,) = corpus.plan_chunks(SMALL)
    sources = SourceSubset(corpus.sources, [long])
    tick(monkeypatch, 100.0)
    worker = make_worker(model, corpus, plan)
    first = worker.count(Task((long,), {}, 16.0), sources).state
    again = worker.count(Task((long,), {}, 16.0), sources).state
    assert first.in_progress == again.in_progress
    assert (first.sums["pairs"] == again.sums["pairs"]).all()
    assert opened == [long.number] * 2


def test_errors_and_results_of_several_tasks_are_added(model: Model, plan: RunPlan, tmp_path: Path):
    paths = files(tmp_path, [60, 60])
    lines = paths[0].read_bytes().splitlines(keepends=True)
    paths[0].write_bytes(b"".join([*lines[:30], b"#" * (len(lines[30]) - 1) + b"\n", *lines[31:]]))
    corpus = headscope.documents(paths)
    planned = corpus.plan_chunks(SMALL)
    worker, sources = make_worker(model, corpus, plan), SourceSubset(corpus.sources, planned)
    half = len(planned) // 2
    parts = [planned[:half], planned[half:]]
    result = add_results(*(worker.count(Task(tuple(part), {}, 60.0), sources) for part in parts))
    (number,) = result.errors
    assert "00.jsonl:31: not a JSON object" in result.errors[number]
    assert result.state.completed == {chunk.number for chunk in planned} - {number}
    assert (len(result.seconds), set(result.processes)) == (2, {worker.get_process()})
    with pytest.raises(CorpusError):
        list(corpus.read_chunk(planned[number]))

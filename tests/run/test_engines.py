"""Test the chunk queue: every chunk is counted once, whatever happens to tasks and in which order they end."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.corpus.chunks import Chunk
from headscope.run.engines import (
    MAX_ATTEMPTS,
    MAX_LOSSES,
    MIN_TASK_SECONDS,
    RETRY_SECONDS,
    TASK_SECONDS,
    ChunkQueue,
    Task,
)
from headscope.run.state import ChunkProgress

NODES = ["a", "b", "c"]


def make_chunks(count: int) -> list[Chunk]:
    return [Chunk(number, number, number + 1) for number in range(count)]


def take(queue: ChunkQueue, seconds_per_chunk: float | None = None, workers: int = 1) -> Task:
    task = queue.take("a worker", seconds_per_chunk, workers, lambda failed_on: True)
    assert task is not None
    return task


def finish(queue: ChunkQueue, task: Task, done: list[int], in_progress: dict[int, ChunkProgress] | None = None) -> None:
    queue.finish("a worker", task, done, in_progress or {})


def numbers_of(task: Task) -> list[int]:
    return [chunk.number for chunk in task.chunks]


@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 2**32))
def test_every_chunk_is_counted_once(count: int, workers: int, seed: int):
    random = Random(seed)
    clock = itertools.count()
    queue = ChunkQueue(make_chunks(count), {}, lambda: float(next(clock)))
    running, counted = list[tuple[int, Task]](), list[int]()
    for _ in range(10_000):
        if queue.is_done:
            break
        worker = random.randrange(workers)
        task = queue.take(worker, random.choice([None, 0.1, 5.0, 100.0]), workers, lambda failed_on: True)
        if task is not None:
            running.append((worker, task))
        if not running or (task is not None and random.random() < 0.5):
            continue
        worker, task = running.pop(random.randrange(len(running)))
        what = random.random()
        if what < 0.3:
            queue.retry(task, random.choice(NODES), failed=random.random() < 0.5, node_lost=random.random() < 0.1)
            queue.release(worker)
            continue
        done = numbers_of(task)[: random.randint(0, len(task.chunks))]
        counted += done
        rest = numbers_of(task)[len(done) :]
        queue.finish(worker, task, done, {rest[0]: ChunkProgress(1, 2)} if rest else {})
    assert queue.is_done
    assert sorted(counted) == list(range(count))


def test_tasks_take_about_half_a_minute_and_become_smaller_towards_the_end():
    queue = ChunkQueue(make_chunks(100), {})
    assert numbers_of(take(queue)) == [0]  # how fast the worker is, is not known yet
    assert numbers_of(take(queue, seconds_per_chunk=5.0, workers=2)) == [1, 2, 3, 4, 5, 6]
    assert len(take(queue, seconds_per_chunk=2 * TASK_SECONDS, workers=2).chunks) == 1
    sizes = []
    while not queue.is_drained:
        sizes.append(len(take(queue, seconds_per_chunk=1.0, workers=2).chunks))
    assert sizes[0] > MIN_TASK_SECONDS
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert min(sizes[:-1]) == MIN_TASK_SECONDS  # shorter ones would only make more traffic


def test_what_is_counted_of_a_chunk_is_not_counted_again():
    progress = ChunkProgress(5, 77)
    queue = ChunkQueue(make_chunks(3), {1: progress})
    first = take(queue, 1.0)
    assert (numbers_of(first), first.in_progress) == ([0], {})
    task = take(queue, 1.0)
    assert (numbers_of(task), task.in_progress) == ([1], {1: progress})
    finish(queue, task, [], {1: ChunkProgress(6, 78)})
    assert take(queue, 1.0).in_progress == {1: ChunkProgress(6, 78)}


def test_a_chunk_that_is_counted_in_part_returns_to_the_worker_that_has_it_open():
    queue, anywhere = ChunkQueue(make_chunks(2), {}), lambda failed_on: True
    task = queue.take("first", None, 2, anywhere)
    assert task is not None
    queue.finish("first", task, [], {0: ChunkProgress(6, 78)})
    other = queue.take("second", None, 2, anywhere)
    assert other is not None
    assert numbers_of(other) == [1]
    assert queue.take("second", None, 2, anywhere) is None
    again = queue.take("first", None, 2, anywhere)
    assert again is not None
    assert numbers_of(again) == [0]
    queue.finish("first", again, [], {0: ChunkProgress(7, 79)})
    queue.release("first")  # it is gone
    taken = queue.take("second", None, 2, anywhere)
    assert taken is not None
    assert taken.in_progress == {0: ChunkProgress(7, 79)}


def test_chunks_of_a_task_that_failed_are_tried_one_by_one_on_another_node():
    queue = ChunkQueue(make_chunks(12), {})
    task = take(queue, 10.0)
    assert numbers_of(task) == [0, 1, 2]
    assert queue.retry(task, "a", failed=True) is None
    order = []
    while (task := queue.take("a worker", 10.0, 1, lambda failed_on: "a" not in failed_on)) is not None:
        order += numbers_of(task)
        finish(queue, task, numbers_of(task))
    assert order == list(range(3, 12))
    for number in range(3):
        assert numbers_of(take(queue, 10.0)) == [number]


def test_a_chunk_that_fails_too_often_by_itself_is_returned():
    now = [0.0]
    queue = ChunkQueue(make_chunks(1), {}, lambda: now[0])
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert queue.retry(take(queue), "a", node_lost=True) is None  # that is hardly the chunk's fault
        chunk = queue.retry(take(queue), "a", failed=True)
        assert (chunk is not None) == (attempt == MAX_ATTEMPTS)
        if attempt < MAX_ATTEMPTS:
            now[0] += RETRY_SECONDS[attempt - 1] - 0.1
            assert queue.take("a worker", None, 1, lambda failed_on: True) is None
            now[0] += 0.2


def test_a_chunk_that_makes_progress_may_fail_again():
    now = [0.0]
    queue = ChunkQueue(make_chunks(1), {}, lambda: now[0])
    for documents in range(1, 10):
        assert queue.retry(take(queue), "a", failed=True) is None
        now[0] += RETRY_SECONDS[0]
        finish(queue, take(queue), [], {0: ChunkProgress(documents, 7)})


def test_a_chunk_whose_nodes_all_leave_is_returned():
    queue = ChunkQueue(make_chunks(3), {})
    lost = [queue.retry(take(queue, 1.0), "a", node_lost=True) for _ in range(2)]
    assert lost == [None, None]
    chunks = dict.fromkeys(range(3), 2)
    while True:  # from now on each of them runs alone
        task = take(queue, 1.0)
        (number,) = numbers_of(task)
        chunk = queue.retry(task, "a", node_lost=True)
        chunks[number] += 1
        if chunk is not None:
            break
    assert chunks[chunk.number] == MAX_LOSSES


def test_a_chunk_of_a_worker_that_is_gone_is_for_any_other():
    queue = ChunkQueue(make_chunks(1), {})
    queue.finish(None, take(queue), [], {0: ChunkProgress(6, 78)})
    assert queue.take("another worker", None, 1, lambda failed_on: True) is not None


def test_chunks_that_cannot_be_read_are_done():
    queue = ChunkQueue(make_chunks(2), {})
    finish(queue, take(queue, 1.0), [0])
    finish(queue, take(queue, 1.0), [1])
    assert queue.is_done
    assert queue.take("a worker", 1.0, 1, lambda failed_on: True) is None


@pytest.mark.parametrize("workers", [1, 8, 1000])
def test_with_many_workers_every_one_gets_something(workers: int):
    queue = ChunkQueue(make_chunks(4 * workers), {})
    tasks = [take(queue, MIN_TASK_SECONDS / 2, workers) for _ in range(workers)]
    assert {len(task.chunks) for task in tasks} == {2}

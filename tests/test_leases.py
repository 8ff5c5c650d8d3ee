"""Portions lent to workers that answer in any order and die at any moment: the sums are those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus import shards
from headscope.corpus.documents import Corpus
from headscope.corpus.formats import Document
from headscope.corpus.windows import Cut
from headscope.engines.leases import MOST, Lease, Leases
from headscope.engines.local import Local
from headscope.engines.worker import Worker
from headscope.errors import CorpusError
from headscope.model.model import Model
from headscope.studies.done import Done, UnderWay
from headscope.studies.job import Job
from headscope.studies.settings import Settings
from headscope.studies.standing import Standing
from tests import tiny
from tests.test_checkpoints import files


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PORTION", 7)
    monkeypatch.setattr(shards, "SHARD_BYTES", 500)


def job_of(model: Model, corpus: Corpus, windows: str = "first") -> Job:
    asked = Settings(length=24, sample=0.5, windows=windows)
    return Job.of(model, corpus, asked, batch_size=3, kernel="auto", tf32=False)


def local(model: Model, corpus: Corpus, job: Job, cut: int | None = None) -> Standing:
    """How a study stands that one process made, to its end or until it was cut after so many steps."""
    steps = 0

    def told(texts: int, documents: int) -> None:
        nonlocal steps
        if steps == cut:
            raise KeyboardInterrupt
        steps += 1

    engine = Local(model, corpus, job)
    try:
        engine.run(Standing.empty(job.shape(model), job.batch_size), None, told)
    except KeyboardInterrupt:
        assert cut is not None
    return engine.standing


class Driver:
    """What the driver of a cluster does, in one process and in an order that chance decides."""

    def __init__(self, model: Model, corpus: Corpus, job: Job, standing: Standing, chance: Random) -> None:
        self.given, self.standing, self.chance = (model, corpus, job), standing, chance
        self.leases = Leases(len(corpus.shards), standing.done)
        self.errors: list[str] = []
        self.brought: list[tuple[int, int]] = []

    def run(self, workers: int, deaths: int = 0, answers: int | None = None) -> None:
        """To the end, or until so many answers came; of the workers at work then nothing is known."""
        idle, busy = [Worker(*self.given) for _ in range(workers)], list[tuple[Worker, Lease]]()
        while not self.leases.all_done and answers != 0:
            self.chance.shuffle(idle)
            for worker in list(idle):
                lease = self.leases.take(worker, self.chance.choice([0, 1, 1, 2, 5, 1000]))
                if lease is not None:
                    busy.append((worker, lease))
                    idle.remove(worker)
            assert busy, "nobody works, and it is not done"
            worker, lease = busy.pop(self.chance.randrange(len(busy)))
            if deaths and self.chance.random() < 0.4:
                deaths -= 1
                if self.chance.random() < 0.5:
                    with suppress(CorpusError):
                        worker.work(lease)  # it dies with its sums
                self.leases.lost(lease)
                self.leases.stop_reading(worker)
                idle.append(Worker(*self.given))
                continue
            self._take(worker, lease)
            idle.append(worker)
            answers = None if answers is None else answers - 1

    def _take(self, worker: Worker, lease: Lease) -> None:
        try:
            made = worker.work(lease)
        except CorpusError as error:
            known = str(error) in self.errors
            if not self.leases.broken(lease, again=known) and not known:
                self.errors.append(str(error))
            return
        for shard, runs in made.done.portions.items():
            self.brought += [(shard, portion) for first, after in runs for portion in range(first, after)]
        self.standing.add(made)
        self.leases.returned(lease)


def assert_same(one: Standing, other: Standing) -> None:
    for name, array in one.tally.arrays.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, other.tally.arrays[name], rtol=1e-12, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(array, other.tally.arrays[name], err_msg=name)
    assert one.tally.most_attended.keys() == other.tally.most_attended.keys()
    for token, counts in one.tally.most_attended.items():
        np.testing.assert_array_equal(counts, other.tally.most_attended[token])
    assert one.account.read == other.account.read
    assert one.account.content == other.account.content
    assert one.account.skipped == other.account.skipped
    assert one.account.excerpts == other.account.excerpts
    assert one.account.sources == other.account.sources
    for what in ("portions", "content", "ended", "under_way", "stamps"):
        assert getattr(one.done, what) == getattr(other.done, what), what


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    windows=st.sampled_from(["first", "all"]),
    workers=st.integers(1, 4),
    deaths=st.integers(0, 6),
    cut=st.none() | st.integers(0, 12),
    answers=st.lists(st.integers(0, 6), max_size=2),
    chance=st.randoms(use_true_random=False),
)
@settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
def test_whoever_works_and_whoever_dies_the_sums_are_those_of_one_process(
    model: Model,
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    windows: str,
    workers: int,
    deaths: int,
    cut: int | None,
    answers: list[int],
    chance: Random,
):
    corpus = headscope.documents(files(tmp_path_factory.mktemp("leases"), [9, *counts]))
    job = job_of(model, corpus, windows)
    whole = local(model, corpus, job)
    standing = Standing.empty(job.shape(model), job.batch_size) if cut is None else local(model, corpus, job, cut)
    before = [(s, p) for s, runs in standing.done.portions.items() for a, b in runs for p in range(a, b)]
    brought = list(before)
    for stop in (*answers, None):
        # What is written to a checkpoint, and read again.
        standing.done = Done.of_plain(standing.done.plain())
        driver = Driver(model, corpus, job, standing, chance)
        driver.run(workers, deaths, stop)
        brought += driver.brought
    assert len(brought) == len(set(brought)), "a portion came twice"
    assert sorted(brought) == [
        (shard, portion) for shard, end in sorted(whole.done.ended.items()) for portion in range(end)
    ]
    for shard, end in whole.done.ended.items():
        standing.done.ended.setdefault(shard, end)  # of what was all there before, nobody needed to see the end
    whole.done.stamps |= standing.done.stamps
    standing.done.stamps |= whole.done.stamps
    assert_same(whole, standing)


def test_the_comparison_can_fail(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path, [20]))
    job = job_of(model, corpus)
    one, other = local(model, corpus, job), local(model, corpus, job)
    other.tally["texts"][0] += 1
    with pytest.raises(AssertionError, match="texts"):
        assert_same(one, other)


def test_what_was_brought_twice_is_refused(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path, [20]))
    job = job_of(model, corpus)
    standing, worker = Standing.empty(job.shape(model), 3), Worker(model, corpus, job)
    standing.add(worker.work(Lease(0, 1, 1)))
    texts = standing.texts
    with pytest.raises(ValueError, match="portions of shard 0 were counted before"):
        standing.add(worker.work(Lease(0, 0, 2)))
    assert standing.texts == texts


@pytest.mark.parametrize("workers", [1, 3])
def test_a_line_that_cannot_be_read_costs_what_is_behind_it_in_its_shard_and_no_more(
    model: Model, tmp_path: Path, workers: int
):
    made = files(tmp_path, [30, 60, 40])
    corpus = headscope.documents(made)
    job = job_of(model, corpus)
    whole = local(model, corpus, job)
    lines = made[1].read_text("utf-8").splitlines(keepends=True)
    made[1].write_text("".join([*lines[:31], "no JSON\n", *lines[32:]]), "utf-8")
    for seed in range(3):
        driver = Driver(model, corpus, job, Standing.empty(job.shape(model), 3), Random(seed))
        driver.run(workers, deaths=2)
        (error,) = driver.errors
        assert "01.jsonl:32: not a JSON object" in error
        done = driver.standing.done
        assert done.all_of(0)
        assert done.all_of(2)
        assert done.portions[1] == [[0, 4]]  # documents 1 to 28; the broken one is the 32nd
        assert done.content[0] == whole.done.content[0]


def test_a_document_that_breaks_the_tokenizer_costs_its_portion(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = files(tmp_path, [30, 60, 40])
    lines = made[1].read_text("utf-8").splitlines(keepends=True)
    made[1].write_text("".join([*lines[:31], '{"text": "breaks it"}\n', *lines[32:]]), "utf-8")
    corpus = headscope.documents(made)
    job = job_of(model, corpus)
    real = Model.windows_of

    def windows_of(self: Model, documents: list[Document], cut: Cut) -> Iterator[object]:
        for document in documents:
            if document.text == "breaks it":
                raise CorpusError(f"{document.name}: cannot be tokenized")
            yield from real(self, [document], cut)

    monkeypatch.setattr(Model, "windows_of", windows_of)
    standing = Standing.empty(job.shape(model), 3)
    for seed in range(3):
        driver = Driver(model, corpus, job, Standing.empty(job.shape(model), 3), Random(seed))
        driver.run(2, deaths=2)
        standing = driver.standing
        (error,) = driver.errors
        assert "01.jsonl:32: cannot be tokenized" in error
        assert standing.done.portions == {0: [[0, 5]], 1: [[0, 4], [5, 9]], 2: [[0, 6]]}
    # It is mended (here: taken as it is), and the study goes on.
    monkeypatch.setattr(Model, "windows_of", real)
    Driver(model, corpus, job, standing, Random(0)).run(2)
    assert_same(local(model, corpus, job), standing)


def test_a_lease_is_the_same_after_work(model: Model, tmp_path: Path):
    corpus = headscope.documents(files(tmp_path, [7]))
    job = job_of(model, corpus)
    under_way = local(model, corpus, job, cut=0).done.under_way[0, 0]
    lease, worker = Lease(0, 0, 1, UnderWay(under_way.texts, under_way.digests)), Worker(model, corpus, job)
    assert 0 < under_way.texts < worker.work(Lease(0, 0, 1)).texts
    once = worker.work(lease).texts
    assert lease.known == under_way
    assert worker.work(lease).texts == once  # it was lost, and is lent again


# -- who is given what ------------------------------------------------------------------------------------------------


def test_a_worker_goes_on_with_its_shard_then_takes_a_new_one_then_helps():
    leases = Leases(2, Done())
    assert leases.take("a", 2) == Lease(0, 0, 2)
    assert leases.take("b") == Lease(1, 0, 1)
    assert leases.take("a", 3) == Lease(0, 2, 3)
    assert leases.take("c") == Lease(1, 1, 1)  # the one with fewer leases out
    assert leases.take("d", 10**9) == Lease(0, 5, MOST)


def test_leases_leave_out_what_is_done_and_what_is_under_way():
    held = UnderWay(3, 99)
    done = Done(portions={0: [[0, 2], [5, 6]]}, ended={0: 8}, under_way={(0, 3): held})
    leases = Leases(1, done)
    assert leases.take("a", 10) == Lease(0, 2, 1)
    assert leases.take("b", 10) == Lease(0, 3, 1, held)
    assert leases.take("c", 10) == Lease(0, 4, 1)
    assert leases.take("d", 10) == Lease(0, 6, 2)
    assert leases.take("e", 10) is None
    assert not leases.all_done


def test_what_was_lost_is_lent_again_first_and_in_halves():
    leases = Leases(1, Done(ended={0: 7}))
    lease = leases.take("a", 5)
    assert lease == Lease(0, 0, 5)
    leases.lost(lease)
    leases.stop_reading("a")
    assert leases.take("b", 1) == Lease(0, 0, 3)
    assert leases.take("c", 5) == Lease(0, 3, 2)
    assert leases.take("d", 5) == Lease(0, 5, 2)


def test_what_is_known_of_a_portion_under_way_is_lent_again_too():
    held = UnderWay(3, 99)
    leases = Leases(1, Done(ended={0: 2}, under_way={(0, 0): held}))
    lease = leases.take("a", 5)
    assert lease == Lease(0, 0, 1, held)
    leases.lost(lease)
    assert leases.take("b", 5) == lease
    assert leases.take("c", 5) == Lease(0, 1, 1)


def test_a_study_that_is_done_lends_nothing():
    leases = Leases(2, Done(portions={0: [[0, 3]]}, ended={0: 3, 1: 0}))
    assert leases.all_done
    assert leases.take("a") is None

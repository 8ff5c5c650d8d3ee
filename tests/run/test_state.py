"""Test states: they add in any order and grouping, nothing is counted twice, and they survive as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscope
from headscope.corpus.chunks import ChunkSize
from headscope.corpus.document import Document
from headscope.model.model import Model
from headscope.run.engines import format_share, parse_share
from headscope.run.local_engine import LocalEngine, count_chunk
from headscope.run.plan import RunPlan
from headscope.run.state import ChunkProgress, CorpusStats, RunState, expand_ranges, list_ranges
from headscope.settings import Settings
from headscope.tally.quantities import QUANTITIES, Shape
from headscope.tally.tally import Tally, get_array_shape, get_dtype
from tests.helpers import tiny
from tests.helpers.interrupting import SMALL, files

SHAPE = Shape(1, 2, 4, width=3)
BLOCKS = 20


def make_sums(seed: int) -> Tally:
    """Return random sums. Reals are whole numbers, so that they add exactly in any order."""
    random, sums = np.random.default_rng(seed), Tally.zeros(SHAPE)
    for quantity in QUANTITIES:
        values = random.integers(0, 1000, get_array_shape(quantity, SHAPE))
        sums.arrays[quantity.name] = values.astype(get_dtype(quantity))
    for token in random.integers(0, 5, 3).tolist():
        sums.attend(token, random.integers(0, 9, (BLOCKS, SHAPE.layers)))
    return sums


def make_part(chunk: int, section: int, sections: int) -> RunState:
    """Return a section of a chunk as an engine yields it."""
    state = RunState(make_sums(10 * chunk + section))
    for number in range(section * 3, section * 3 + 3):
        document = Document(f"text {number} of {chunk}", f"{chunk}:{number}")
        state.stats.add_document(document, chunk // 2)
        if number % 4 == 1:
            state.stats.add_skipped("too short")
        else:
            state.stats.add_excerpt((chunk, number), document)
    if section == sections - 1:
        state.completed.add(chunk)
    else:
        state.in_progress[chunk] = ChunkProgress(3 * section + 3, 2**100 + section)
    state.batch_size = 16 >> chunk % 3
    state.kernels = {"numba": "", "torch": f"note {chunk}"} if chunk % 2 else {"numba": ""}
    state.devices = {f"device {chunk % 2}"}
    state.seconds = {"model_and_sums": 0.25, "opening": float(chunk)}
    return state


def describe(state: RunState) -> dict[str, object]:
    """Return everything that must not depend on the order in which states are added."""
    values = state.to_json()
    del values["kernels"]["torch"], values["batch_size_note"]
    for name in ("in_progress", "versions"):
        values[name] = sorted(values[name])
    values["stats"]["sources"].sort()
    sums = {name: array.tolist() for name, array in state.sums.arrays.items()}
    attended = {token: counts.tolist() for token, counts in state.sums.most_attended.items()}
    return {**values, **sums, "attended": attended}


def add_all(states: Sequence[RunState]) -> RunState:
    total = RunState.empty(SHAPE)
    for state in states:
        total.add(state)
    return total


def test_a_section_that_was_counted_is_refused():
    total = add_all([make_part(0, 0, 3), make_part(0, 1, 3)])
    before = total.to_json()
    with pytest.raises(ValueError, match="chunk 0 was counted before"):
        total.add(make_part(0, 1, 3))
    assert total.to_json() == before


@given(st.data())
@settings(max_examples=50)
def test_states_add_in_any_order_and_grouping(data: st.DataObject):
    sections = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5), label="sections of the chunks")
    sections = [*sections, 2, 1]  # both kinds of kernels
    expected = describe(add_all([make_part(c, s, n) for c, n in enumerate(sections) for s in range(n)]))
    # The sections of a chunk come one after the other, and those of different chunks in any order.
    remaining = dict.fromkeys(range(len(sections)), 0)
    workers = [RunState.empty(SHAPE) for _ in range(data.draw(st.integers(1, 3), label="workers"))]
    total = RunState.empty(SHAPE)
    while remaining:
        chunk = data.draw(st.sampled_from(sorted(remaining)))
        worker = workers[chunk % len(workers)]
        worker.add(make_part(chunk, remaining[chunk], sections[chunk]))
        remaining[chunk] += 1
        if remaining[chunk] == sections[chunk]:
            del remaining[chunk]
        if data.draw(st.booleans(), label="hand over"):
            total.add(worker)
            workers[chunk % len(workers)] = RunState.empty(SHAPE)
    for worker in workers:
        total.add(worker)
    assert describe(total) == expected
    assert total.completed == set(range(len(sections)))
    assert not total.in_progress
    assert total.batch_size == min(16 >> chunk % 3 for chunk in range(len(sections)))


@given(st.sets(st.integers(0, 6), min_size=1), st.sets(st.integers(0, 6), min_size=1))
@settings(max_examples=50)
def test_a_chunk_that_is_complete_is_refused_and_nothing_is_changed(first: set[int], second: set[int]):
    total, other = (add_all([make_part(chunk, 0, 1) for chunk in sorted(chunks)]) for chunks in (first, second))
    before = total.to_json(), total.sums.arrays["pairs"].copy()
    if first & second:
        with pytest.raises(ValueError, match=f"chunk {min(first & second)} was counted before"):
            total.add(other)
        assert total.to_json() == before[0]
        np.testing.assert_array_equal(total.sums.arrays["pairs"], before[1])
    else:
        total.add(other)
        assert total.completed == first | second


def test_a_section_of_a_complete_chunk_is_refused():
    total = add_all([make_part(3, 0, 1)])
    with pytest.raises(ValueError, match="chunk 3 was counted before"):
        total.add(make_part(3, 0, 2))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), max_size=6, unique_by=lambda part: part[0]))
@settings(max_examples=50)
def test_everything_but_the_sums_survives_as_json(parts: list[tuple[int, int]]):
    state = add_all([make_part(chunk, 0, sections) for chunk, sections in parts])
    state.versions, state.tf32, state.runs, state.batch_size_note = {0: "ab", 7: ""}, True, 3, "halved"
    again = RunState.from_json(state.sums, json.loads(json.dumps(state.to_json())))
    assert again == state


@given(st.sets(st.integers(0, 60)))
def test_ranges_describe_sets_of_numbers(numbers: set[int]):
    ranges = list_ranges(numbers)
    assert expand_ranges(ranges) == numbers
    assert all(after < first for (_, after), (first, _) in pairwise(ranges))


@pytest.mark.parametrize("ranges", [[[3, 3]], [[5, 2]], [[-1, 2]], [[0, 10**12]]])
def test_damaged_ranges_are_refused(ranges: list[list[int]]):
    with pytest.raises(ValueError, match="not a range of chunks"):
        expand_ranges(ranges)


def test_the_first_excerpts_are_kept_whatever_came_first():
    parts = []
    for chunk in (4, 0, 2, 1):
        stats = CorpusStats()
        stats.add_excerpt((chunk, 1), Document("x" * 500, f"text {chunk}"))
        parts.append(stats)
    total = CorpusStats()
    for stats in parts:
        total.add(stats)
    assert [excerpt["name"] for excerpt in total.excerpts.values()] == ["text 0", "text 1", "text 2"]
    assert {len(excerpt["text"]) for excerpt in total.excerpts.values()} == {160}


# Sums of chunks of a real study


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


def test_chunks_counted_apart_and_in_any_order_are_the_whole(model: Model, tmp_path_factory: pytest.TempPathFactory):
    corpus = headscope.documents(files(tmp_path_factory.mktemp("in"), [30, 0, 1, 20]))
    plan = RunPlan(Settings(length=24), 0.5, SMALL, batch_size=3)
    chunks = corpus.plan_chunks(plan.chunk_size)
    assert len(chunks) >= 8
    engine, shape = LocalEngine(model, corpus, plan), plan.get_shape(model)
    expected = RunState.empty(shape)
    for result in engine.count(chunks, {}):
        expected.add(result.state)
    parts = [count_chunk(engine, chunk).state for chunk in chunks]
    for seed in range(3):
        total = RunState.empty(shape)
        for number in np.random.default_rng(seed).permutation(len(parts)):
            total.add(parts[number])
        assert total.completed == expected.completed == set(range(len(chunks)))
        assert (total.texts, total.stats.content) == (expected.texts, expected.stats.content)
        assert total.stats.to_json()["excerpts"] == expected.stats.to_json()["excerpts"]
        for name, array in expected.sums.arrays.items():
            if array.dtype.kind == "i":
                np.testing.assert_array_equal(total.sums[name], array, err_msg=name)
            else:
                np.testing.assert_allclose(total.sums[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def test_a_chunk_has_the_same_sums_whatever_was_counted_before(model: Model, tmp_path_factory: pytest.TempPathFactory):
    corpus = headscope.documents(files(tmp_path_factory.mktemp("in"), [30, 20]))
    plan = RunPlan(Settings(length=24), 0.5, SMALL, batch_size=3)
    chunks = corpus.plan_chunks(plan.chunk_size)
    fresh = count_chunk(LocalEngine(model, corpus, plan), chunks[2]).state
    engine = LocalEngine(model, corpus, plan)
    for chunk in chunks[5:]:
        count_chunk(engine, chunk)
    again = count_chunk(engine, chunks[2]).state
    for name, array in fresh.sums.arrays.items():
        assert array.tobytes() == again.sums[name].tobytes(), name


# Shares


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "-1/4", "a/b", "1/2/3", "1.0/2", "²/3", "1/1000001"])
def test_shares_that_are_none(text: str):
    with pytest.raises(headscope.StudyError, match="write NUMBER/TOTAL"):
        parse_share(text)


@given(st.integers(1, 40), st.integers(0, 200))
def test_shares_divide_the_chunks(total: int, count: int):
    sources = [headscope.corpus.chunks.Source(str(k), iter) for k in range(count)]
    chunks = headscope.corpus.chunks.plan_chunks(sources, ChunkSize(1, 1))
    assert len(chunks) == count
    plans = [RunPlan(Settings(), 1.0, SMALL, share=parse_share(f"{number}/{total}")) for number in range(1, total + 1)]
    shares = [plan.select_share(chunks) for plan in plans]
    assert sorted((chunk for share in shares for chunk in share), key=lambda chunk: chunk.number) == chunks
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert format_share(plans[-1].share) == f"{total}/{total}"
    assert RunPlan(Settings(), 1.0, SMALL).select_share(chunks) == chunks

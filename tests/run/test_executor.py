"""Test the batch executor: sums do not depend on threads or interruptions, and memory is bounded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.windows import Batch
from headscope.errors import ModelError
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.model.model import Model
from headscope.run import executor as executors
from headscope.run.executor import (
    BatchExecutor,
    choose_batch_size,
    count_bytes,
    fit_batch_size,
    is_out_of_memory,
    limit_by_memory,
    split_batch,
)
from headscope.tally.backends import Choice
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.quantities import Shape
from headscope.tally.tally import Array, Tally, TallySettings, check_sums
from headscope.tally.torch_backend import TorchTallier
from tests.helpers import tiny
from tests.helpers.study_equality import assert_same_sums

SIZES = [(3, 9, 5), (4,), (12, 12, 11, 3), (7, 8), (20, 2, 6), (5, 5), (16, 3), (9,), (11, 4, 6)]
LENGTH = 24


PATIENCE = 120.0
"""seconds that something may take on a machine that has other things to do; only a defect takes longer"""


@pytest.fixture(scope="module")
def model() -> Model:
    network = tiny.network("bert").train()  # as someone may leave it
    return headscope.load(network, tiny.tokenizer())


def get_shape(model: Model) -> Shape:
    return Shape(model.architecture.layers, model.architecture.heads, LENGTH, width=model.architecture.width)


def choose_compiled(model: Model, threads: int, kind: type[NumbaTallier] = NumbaTallier) -> Choice:
    counting = TallySettings(get_shape(model), 0.3, 0.3, 0.5, model.architecture.causal)
    return Choice("numba", "", lambda: kind(counting), threads, single_threaded=True)


def make_executor(model: Model, threads: int, kind: type[NumbaTallier] = NumbaTallier) -> BatchExecutor:
    return BatchExecutor(model, choose_compiled(model, threads, kind), 16, get_shape(model))


def make_batches() -> list[Batch]:
    return [tiny.batch(*lengths, seed=seed) for seed, lengths in enumerate(SIZES)]


def count(executor: BatchExecutor, batches: Sequence[Batch]) -> Tally:
    """Return the sums of some batches."""
    try:
        for batch in batches:
            executor.add(batch)
        return executor.flush()
    finally:
        executor.close()


def list_sums(tally: Tally) -> dict[str, bytes]:
    attended = {f"attended {token}": counts.tobytes() for token, counts in sorted(tally.most_attended.items())}
    return {**{name: array.tobytes() for name, array in tally.arrays.items()}, **attended}


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_sums_are_the_same_to_the_last_bit_for_any_number_of_threads(kind: str):
    model, batches = tiny.model(kind), make_batches()
    sums = {threads: count(make_executor(model, threads), batches) for threads in (1, 2, 4)}
    assert sums[1]["texts"].sum() == sum(map(len, SIZES))
    for threads in (2, 4):
        assert list_sums(sums[threads]) == list_sums(sums[1])


def test_the_comparison_of_bits_can_fail(model: Model):
    batches = make_batches()
    forward, backward = (count(make_executor(model, 2), chosen) for chosen in (batches, batches[::-1]))
    assert forward["texts"].sum() == backward["texts"].sum()
    assert list_sums(forward) != list_sums(backward)


def test_every_flush_starts_with_new_sums(model: Model):
    batches, executor = make_batches(), make_executor(model, 2)
    expected = count(make_executor(model, 2), batches)
    first = list_sums(count(executor, batches[:4]))
    again = make_executor(model, 2)
    parts = []
    for chosen in (batches[:4], batches[4:]):
        for batch in chosen:
            again.add(batch)
        assert again.texts <= sum(map(len, chosen))
        parts.append(again.flush())
        assert again.texts == 0
    again.close()
    assert list_sums(parts[0]) == first
    parts[0].add(parts[1])
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(parts[0][name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def test_the_model_is_left_as_it_was(model: Model):
    before = torch.get_num_threads()
    count(make_executor(model, 2), make_batches())
    assert model.network.training
    assert torch.get_num_threads() == before


def test_an_error_in_any_thread_is_raised_after_the_others_are_done(model: Model):
    running: list[str] = []

    class Breaking(NumbaTallier):
        def attend(self, layer: int, question: AttentionInputs) -> torch.Tensor | None:
            running.append(threading.current_thread().name)
            if threading.current_thread() is not threading.main_thread():
                raise ModelError("broken in a thread")
            return super().attend(layer, question)

    executor, before = make_executor(model, 2, Breaking), torch.get_num_threads()
    executor.add(tiny.batch(*range(3, 9)))
    with pytest.raises(ModelError, match="broken in a thread"):
        executor.add(tiny.batch(*range(9, 15)))
    assert len(set(running)) == 2
    assert running.count("MainThread") == model.architecture.layers
    assert torch.get_num_threads() == before
    assert executor.flush()["texts"].sum() == 0
    executor.close()


# Memory of the sums


def list_arrays(executor: BatchExecutor) -> list[Array]:
    """Return the arrays of all talliers, each once."""
    arrays: dict[int, Array] = {}
    for tallier in executor.talliers:
        assert isinstance(tallier, NumbaTallier)
        for tally in (tallier.ended, tallier.tally):
            arrays.update({id(array): array for array in tally.arrays.values()})
    return list(arrays.values())


def simulate_memory(monkeypatch: pytest.MonkeyPatch, total: int) -> None:
    """Have the operating system report so many bytes of memory."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": total}.__getitem__)
    monkeypatch.setattr(executors, "CGROUPS", Path("no control groups"))


def test_there_is_one_set_of_sums_for_each_thread_and_one_that_they_share(model: Model):
    for threads in (1, 2, 4):
        executor = make_executor(model, threads)
        for batch in [*make_batches(), *make_batches()]:
            executor.add(batch)
        assert sum(array.nbytes for array in list_arrays(executor)) == (threads + 1) * count_bytes(get_shape(model))
        executor.flush()
        assert not list_arrays(executor)  # the next sums are made when they are needed
        executor.close()


@pytest.mark.parametrize(("sets", "threads"), [(0.5, 1), (2.0, 1), (2.9, 1), (3.0, 2), (4.5, 3), (9.1, 8), (99.0, 8)])
def test_threads_are_limited_to_the_memory_for_their_sums(
    model: Model, monkeypatch: pytest.MonkeyPatch, sets: float, threads: int
):
    size = count_bytes(get_shape(model))
    simulate_memory(monkeypatch, int(sets * size / executors.MEMORY_FRACTION) + 8)
    assert limit_by_memory(8, get_shape(model)) == threads
    executor = make_executor(model, 8)
    executor.add(make_batches()[0])
    executor.flush()
    executor.add(make_batches()[0])
    executor._run_waiting()
    assert executor.threads == len(executor.talliers) == threads
    used = sum(array.nbytes for array in list_arrays(executor))
    assert used <= sets * size + 8 or threads == 1
    executor.flush()
    expected = count(make_executor(model, 1), make_batches())
    # Several cores share each product then, and round differently.
    for name, array in count(executor, make_batches()).arrays.items():
        if array.dtype.kind == "i":
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        else:
            atol = 1e-4 if name == "head_similarity_sum" else 1e-6  # correlations of products in single precision
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=atol, err_msg=name)


def test_where_memory_is_unknown_threads_are_not_limited(model: Model, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sysconf")
    assert limit_by_memory(8, get_shape(model)) == 8


GROUPS_2 = ("0::/job.slice/step", {"job.slice/memory.max": "4096", "job.slice/step/memory.max": "max"})
GROUPS_1 = ("4:cpu:/job\n7:memory:/job", {"memory/job/memory.limit_in_bytes": "4096", "cpu/job/memory.max": "1"})


@pytest.mark.parametrize(("groups", "files"), [GROUPS_2, GROUPS_1], ids=["version 2", "version 1"])
def test_the_limit_of_a_batch_job_is_its_memory(tmp_path: Path, groups: str, files: dict[str, str]):
    for name, content in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(content + "\n")
    (tmp_path / "cgroup").write_text(groups + "\n")
    assert list(executors._list_cgroup_limits(tmp_path / "cgroup", tmp_path / "tree")) == [4096]
    assert list(executors._list_cgroup_limits(tmp_path / "absent", tmp_path / "tree")) == []


# Out of memory


def limit_batches(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> list[int]:
    """Have larger batches fail after their first layer; return the sizes of the batches tried, as they are tried."""
    observe, tried = Model.observe, list[int]()

    def observe_within_limit(self: Model, batch: Any, see: Any, attend: Any = None) -> None:
        tried.append(len(batch))
        if len(batch) > most:
            observe(self, batch, lambda layer, *seen: see(layer, *seen) if layer == 0 else None)
            raise error
        observe(self, batch, see, attend)

    monkeypatch.setattr(Model, "observe", observe_within_limit)
    return tried


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]
TEXTS = [f"text {k} has the cat" + ", a cat" * (k % 7) for k in range(30)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_out_of_memory_batches_are_halved_and_nothing_is_lost(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    options: dict[str, Any] = {"length": 32, "kernel": "torch"}
    expected = headscope.study(model, TEXTS, batch_size=3, **options)
    tried = limit_batches(monkeypatch, 3, error)
    study = headscope.study(model, TEXTS, batch_size=16, **options)
    assert tried[:3] == [16, 8, 4]
    assert max(tried[3:]) == 2
    assert_same_sums(study, expected)
    assert study.manifest["batch_size"] == 2
    assert study.manifest["batch_size_note"] == "halved from 16 after running out of memory"
    assert study.manifest["documents_read"] == 30
    assert expected.manifest["batch_size_note"] == ""


def test_out_of_memory_in_threads_loses_nothing(model: Model, monkeypatch: pytest.MonkeyPatch):
    batches = make_batches()
    expected = count(make_executor(model, 1), [part for batch in batches for part in split_batch(batch, 1)])
    limit_batches(monkeypatch, 1, MemoryError())
    executor = make_executor(model, 3)
    sums = count(executor, batches)
    assert executor.batch_size == 1
    assert sums["texts"].sum() == sum(map(len, SIZES))
    for name, array in expected.arrays.items():
        if array.dtype.kind == "i":
            np.testing.assert_array_equal(sums[name], array, err_msg=name)
        else:
            np.testing.assert_allclose(sums[name], array, rtol=1e-12, atol=1e-12, err_msg=name)


def test_single_texts_run_one_at_a_time_before_giving_up(model: Model, monkeypatch: pytest.MonkeyPatch):
    """Two texts side by side are too much, one is not."""
    observe, together, most = Model.observe, threading.Barrier(2), list[int]()

    def observe_alone(self: Model, *arguments: Any) -> None:
        if executor.sides > 1:
            together.wait(PATIENCE)
            raise MemoryError
        observe(self, *arguments)

    class Watched(BatchExecutor):
        sides = 0

        def run(self, batches: Sequence[Batch]) -> None:
            self.sides = len(batches)
            most.append(self.sides)
            super().run(batches)

    executor = Watched(model, choose_compiled(model, 2), 1, get_shape(model))
    monkeypatch.setattr(Model, "observe", observe_alone)
    assert count(executor, [tiny.batch(5), tiny.batch(7)])["texts"].sum() == 2
    assert most == [2, 1, 1]


def test_without_memory_for_one_text_the_error_gives_advice(model: Model, monkeypatch: pytest.MonkeyPatch):
    limit_batches(monkeypatch, 0, torch.OutOfMemoryError("CUDA out of memory.\nOf the allocated memory …"))
    message = (
        r"one text of \d+ tokens at a time \(OutOfMemoryError: CUDA out of memory\.\): .*--length, --dtype bfloat16"
    )
    with pytest.raises(headscope.StudyError, match=message):
        headscope.study(model, ["the cat sat."], length=16, kernel="torch")


def test_other_errors_are_not_taken_for_a_lack_of_memory(model: Model, monkeypatch: pytest.MonkeyPatch):
    tried = limit_batches(monkeypatch, 0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        headscope.study(model, ["the cat sat."] * 4, length=16, kernel="torch")
    assert tried == [4]
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))


def test_split_batches_hold_the_same_windows():
    batch = tiny.batch(3, 4, 9, 5, 7)
    parts = split_batch(batch, 2)
    assert [len(part) for part in parts] == [2, 2, 1]
    assert [window for part in parts for window in part.windows] == batch.windows
    assert split_batch(batch, 5) == [batch]
    assert parts[0].ids.shape[1] < batch.ids.shape[1]


def test_the_batch_size_is_a_power_of_two_within_bounds(model: Model):
    assert fit_batch_size(10**15, 12, 128, 3072) == 1024
    assert fit_batch_size(1, 12, 128, 3072) == 1
    sizes = [fit_batch_size(free * 2**30, 16, 512, 4096) for free in (4, 8, 16, 32, 64, 128)]
    assert sizes == sorted(sizes)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert choose_batch_size(model, 128) == 16
    assert choose_batch_size(model, 16_000) == 1
    # Chunks of few documents have smaller batches, so that less is padded.
    assert [choose_batch_size(model, 128, documents) for documents in (16, 64, 128, 256, 4096)] == [4, 4, 8, 16, 16]


def test_an_interrupt_while_a_batch_is_added_leaves_the_sums_whole(model: Model, monkeypatch: pytest.MonkeyPatch):
    end, ended = TorchTallier.end, list[int]()

    def end_after_signal(self: TorchTallier) -> None:
        ended.append(1)
        if len(ended) == 2:
            signal.raise_signal(signal.SIGINT)
        end(self)

    counting = TallySettings(get_shape(model), 0.3, 0.3, 0.5, model.architecture.causal)
    backend = Choice("torch", "", lambda: TorchTallier(counting, "cpu"))
    executor = BatchExecutor(model, backend, 16, get_shape(model))
    monkeypatch.setattr(TorchTallier, "end", end_after_signal)
    executor.add(tiny.batch(5, 6))
    with pytest.raises(KeyboardInterrupt):
        executor.add(tiny.batch(7, 8, 9))
    sums = executor.flush()
    assert sums["texts"].sum() == 5
    assert sums["window_tokens"].sum() == 5
    executor.close()


# What is NaN or infinite

SHORT_TEXTS = ["the cat sat on a mat.", "the owl saw it!", "it ran."]


@pytest.mark.parametrize("kernel", ["numba", "torch", "reference"])
def test_the_text_whose_outputs_are_not_finite_is_named(kernel: str) -> None:
    model = tiny.model("bert")
    with torch.no_grad():
        model.network.embeddings.word_embeddings.weight[tiny.VOCABULARY.index("##w")] = torch.nan
    message = r"text with the tokens the o ##w ##l s ##a ##w i ##t ! …: the outputs of head L0H0 .*--dtype float32"
    with pytest.raises(ModelError, match=message):
        headscope.study(model, SHORT_TEXTS, length=16, kernel=kernel)


@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_products_that_overflow_stop_the_study(kernel: str) -> None:
    """The outputs are finite, but their products are not: no element would be high."""
    model = tiny.model("bert")
    with torch.no_grad():
        model.network.encoder.layer[1].attention.self.value.weight.mul_(1e20)
    with pytest.raises(ModelError, match=r"text with the tokens the c ##a ##t .*head L1H0 .*--dtype float32"):
        headscope.study(model, SHORT_TEXTS, length=16, kernel=kernel)


def test_sums_that_are_not_finite_are_refused() -> None:
    sums = Tally.zeros(Shape(2, 3, 4))
    check_sums(sums, (0, 5))
    sums["attention_offset"][7, 1, 2, 0] = np.inf
    with pytest.raises(ModelError, match=r"in L5H2 the sum 'attention_offset' is not a finite number.*float32"):
        check_sums(sums, (0, 5))


@pytest.mark.parametrize("half", ["query", "value"])
def test_half_precision_that_overflows(half: str) -> None:
    network = tiny.network("bert").half()
    with torch.no_grad():
        getattr(network.encoder.layer[1].attention.self, half).weight.mul_(3e4)
        network.encoder.layer[1].attention.self.key.weight.mul_(1e3)
    model = headscope.load(network, tiny.tokenizer())
    with pytest.raises(ModelError, match=r"head L1H\d .*--dtype float32"):
        headscope.study(model, SHORT_TEXTS, length=16)
    with pytest.raises(ModelError, match=r"head L1H\d .*--dtype float32"):
        headscope.read(model, SHORT_TEXTS[0], length=16)

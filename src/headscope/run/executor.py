"""Run batches through the model, several side by side, and add up what the heads do.

On a CPU torch shares every single product of a model among all cores. It is faster to share the batches: each core then
runs the whole model on some texts, its numbers stay in its cache, and no core waits for another. It also makes results
independent of the machine: what is computed together is one batch in one thread, however many threads there are.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch

from headscope.corpus.windows import Batch
from headscope.errors import NonFiniteError, StudyError
from headscope.interrupts import defer_interrupts
from headscope.model.model import Model
from headscope.run.batch_size import is_out_of_memory, measure_memory
from headscope.tally.backends import Choice
from headscope.tally.quantities import Shape, list_quantities
from headscope.tally.tally import Tallier, Tally, check_sums, get_array_shape

MEMORY_FRACTION = 0.25
"""Part of the memory that may hold sums: those of the batch that each thread works on, and those of all before."""
EXCERPT = 12
"""tokens that an error shows of a text"""
MODEL_COMPUTED = "attention computed by the model itself"
"""note in the manifest where a kernel could not compute it"""


class BatchExecutor:
    """Run batches and hold their sums until `flush` collects them.

    `batch_size` is halved for good when memory runs out; no text is lost or counted twice by that.
    """

    def __init__(self, model: Model, backend: Choice, batch_size: int, shape: Shape) -> None:
        self.model, self.backend, self.batch_size = model, backend, batch_size
        self.threads = limit_by_memory(backend.threads, shape)
        self.pool = ThreadPoolExecutor(
            self.threads, "headscope", torch.set_num_threads, (max(1, backend.threads // self.threads),)
        )
        self.shape = shape
        self.waiting: list[Batch] = []
        self._clear_sums()

    def _clear_sums(self) -> None:
        self.talliers: list[Tallier] = []  # made when they are needed: two sets of sums may not fit into memory
        self.texts = 0
        """texts run since the last flush"""
        self.started = time.monotonic()

    def start_sums(self) -> None:
        """Make the talliers, if there are none."""
        if self.talliers:
            return
        # All talliers end their batches in the same sums, in the order of the batches: the results are the same to the
        # last bit for any number of threads.
        first: Any = self.backend.make()
        self.talliers = [first, *(first.make_peer() for _ in range(self.threads - 1))]

    @property
    def seconds(self) -> float:
        """Time since the last flush."""
        return time.monotonic() - self.started

    def add(self, batch: Batch) -> None:
        """Run a batch, as soon as there are enough to run side by side."""
        self.waiting.append(batch)
        if len(self.waiting) >= self.threads:
            self._run_waiting()

    def flush(self) -> Tally:
        """Run what is waiting; return the sums since the last flush and start new ones."""
        self._run_waiting()
        with defer_interrupts():
            if not self.talliers:
                return Tally.zeros(self.shape)
            first = self.talliers[0]
            if hasattr(first, "flush_pending"):
                first.flush_pending()
            sums = first.get_sums()
            self._clear_sums()
        check_sums(sums, self.model.architecture.numbers)
        return sums

    @property
    def note(self) -> str:
        """Why a faster kernel was not used, as far as that is known."""
        used_model_attention = any(
            getattr(tallier, "layers_shown", 0) and hasattr(tallier, "attend") for tallier in self.talliers
        )
        return self.backend.note or (MODEL_COMPUTED if used_model_attention else "")

    def close(self) -> None:
        """Stop the threads and free the sums."""
        self.pool.shutdown(wait=False)
        self.waiting = []
        self._clear_sums()

    def _run_waiting(self) -> None:
        """Run the waiting batches; when memory runs out, in halves and then one at a time."""
        waiting, self.waiting = self.waiting, []
        waiting = [part for batch in waiting for part in split_batch(batch, self.batch_size)]
        side_by_side = self.threads
        while waiting:
            parts, rest = waiting[:side_by_side], waiting[side_by_side:]
            memory_error = self._try_batches(parts)
            if not memory_error:
                with defer_interrupts():
                    for tallier in self.talliers[: len(parts)]:
                        tallier.end()
                self.texts += sum(len(part) for part in parts)
                waiting = rest
                continue
            largest = max(len(part) for part in parts)
            if largest == 1 and side_by_side == 1:
                longest = max(part.ids.shape[1] for part in parts)
                raise StudyError(
                    f"out of memory with one text of {longest} tokens at a time ({memory_error}): choose a "
                    "shorter --length, --dtype bfloat16, or --device cpu"
                )
            if largest == 1:
                side_by_side = 1
            else:
                self.batch_size = largest // 2
                waiting = [half for part in waiting for half in split_batch(part, self.batch_size)]

    def _try_batches(self, batches: list[Batch]) -> str:
        """Run batches side by side; return what an error says of missing memory, empty if there is none."""
        try:
            self.run(batches)
            return ""
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            memory_error = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        # Only now is the error gone, and with it everything its frames referred to.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if torch.backends.mps.is_available():
            torch.mps.empty_cache()
        return memory_error

    def run(self, batches: Sequence[Batch]) -> None:
        """Run the model over some batches with every head observed. They count when their talliers are ended."""
        self.start_sums()
        if not self.backend.single_threaded:
            (batch,) = batches
            _observe(self.model, batch, self.talliers[0])
            return
        with self.model.prepared(), _use_threads(max(1, self.backend.threads // self.threads)):
            others = [
                self.pool.submit(_observe, self.model, batch, tallier)
                for batch, tallier in zip(batches[1:], self.talliers[1 : len(batches)], strict=True)
            ]
            try:
                _observe(self.model, batches[0], self.talliers[0])
            finally:
                wait(others)
            for other in others:
                other.result()


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Return the same windows in batches of at most `size`."""
    if len(batch) <= size:
        return [batch]
    return [Batch.of(batch.windows[k : k + size], batch.pad_id) for k in range(0, len(batch), size)]


def limit_by_memory(threads: int, shape: Shape) -> int:
    """Return how many threads may hold sums of their own: with long windows and maps these are gigabytes.

    There is one set of sums for each thread, and one that they share.
    """
    memory = measure_memory()
    if memory is None:
        return threads
    return max(1, min(threads, int(memory * MEMORY_FRACTION) // count_bytes(shape) - 1))


def count_bytes(shape: Shape) -> int:
    """Return the size of one set of sums."""
    total = 0
    for quantity in list_quantities(shape):
        size = 8
        for dimension in get_array_shape(quantity, shape):
            size *= dimension
        total += size
    return total


def _observe(model: Model, batch: Batch, tallier: Tallier) -> None:
    tallier.begin(batch)
    try:
        model.observe(batch, tallier.observe_layer, getattr(tallier, "attend", None))
    except NonFiniteError as error:
        raise _add_text(error, model, batch) from None


def _add_text(error: NonFiniteError, model: Model, batch: Batch) -> NonFiniteError:
    """Return the error with the beginning of the first text of a batch that causes it, found by reading each alone."""
    for window in batch.windows:
        if not _has_finite_products(model, Batch.of([window], batch.pad_id)):
            labels = model.tokens.labels(window.ids[~window.special][:EXCERPT])
            return NonFiniteError(f"in the text with the tokens {' '.join(labels)} …: {error}")
    return error


def _has_finite_products(model: Model, batch: Batch) -> bool:
    sizes: list[torch.Tensor] = []
    model.observe(batch, lambda layer, output, attention: sizes.append(output.float().square().sum()))
    return all(bool(size.isfinite()) for size in sizes)


@contextmanager
def _use_threads(count: int) -> Iterator[None]:
    """Within this context torch uses so many threads for one product; every Python thread has its own setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Run batches through the model, as many texts at once as fit into memory, and add up what the heads do.

On a CPU torch shares every single product of a model among all cores. It is faster to share the batches: each core then
runs the whole model on some texts, its numbers stay in its cache, and no core waits for another. It also makes results
independent of the machine: what is computed together is one batch in one thread, however many threads there are.

Choose how many texts the model gets at once: as many as fit into its device's memory.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from headscope.corpus.windows import Batch
from headscope.errors import NonFiniteError, StudyError
from headscope.interrupts import defer_interrupts
from headscope.model.model import Model
from headscope.tally.backends import Choice
from headscope.tally.quantities import Shape, list_quantities
from headscope.tally.tally import Tallier, Tally, check_sums, get_array_shape

BATCH_SIZE_CPU = 16
"""Texts for each core of a CPU; more at once are no faster."""
LEAST_BATCH_SIZE_CPU, BATCHES_PER_CHUNK = 4, 16
"""On a CPU a chunk has so many batches if it can: the texts of a chunk that are sorted into more batches are more alike
in length, and less is padded. Fewer texts than four at once are slower."""
BATCH_SIZE_GPU = 1024
"""On the largest GPU fewer leave it waiting for the host, and more gain nothing."""
BATCH_ELEMENTS = 4_000_000
"""N×N elements over all heads that a batch of the default size may hold for each core"""
BYTES_PER_ELEMENT = 64
"""Bytes for each element of a head's N×N matrices: scores, maps, similarities, and what is counted of them. This and
the next are on the safe side; one layer is there at a time."""
BYTES_PER_UNIT = 16
"""Bytes for each number of a token in the widest place of a layer: it, its inputs and its outputs."""
BATCH_MEMORY_FRACTION = 0.5
"""Part of the free memory that is planned for; the rest is for what does not grow with the batch, and fragmentation."""
CGROUPS = Path("/sys/fs/cgroup")
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""How torch's errors say it, where they have no class of their own: on CPUs, in cuBLAS, on Apple's devices."""


def choose_batch_size(model: Model, length: int, chunk_documents: int | None = None) -> int:
    """Return the number of texts per batch for windows of a length, in chunks of so many documents."""
    heads = model.architecture.heads
    if model.device.type != "cuda":
        # The same on every machine, however many cores it has: it decides what is computed together.
        size = min(BATCH_SIZE_CPU, BATCH_ELEMENTS // (heads * length**2))
        if chunk_documents is not None:
            size = min(size, max(LEAST_BATCH_SIZE_CPU, chunk_documents // BATCHES_PER_CHUNK))
        return max(1, size)
    free, _ = torch.cuda.mem_get_info(model.device)
    # What torch keeps for later is free as well.
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return fit_batch_size(free, heads, length, _find_widest(model))


def fit_batch_size(free: int, heads: int, length: int, widest: int) -> int:
    """Return the largest power of two of texts for which so many bytes are enough.

    >>> fit_batch_size(16 * 2**30, heads=12, length=128, widest=3072)
    256
    >>> fit_batch_size(8 * 2**30, heads=16, length=512, widest=4096)
    8
    """
    bytes_per_text = BYTES_PER_ELEMENT * heads * length**2 + BYTES_PER_UNIT * length * widest
    texts = max(1, min(BATCH_SIZE_GPU, int(free * BATCH_MEMORY_FRACTION) // bytes_per_text))
    return 1 << (texts.bit_length() - 1)


def measure_memory() -> int | None:
    """Return the bytes of memory of this machine, or the limit of a container or batch job; None if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return None
    return min([total, *_list_cgroup_limits(Path("/proc/self/cgroup"), CGROUPS)])


def _list_cgroup_limits(groups: Path, root: Path) -> Iterator[int]:
    """Yield the memory limits of the control groups (Linux) that this process is in."""
    lines: list[str] = []
    with suppress(OSError):
        lines = groups.read_text("utf-8").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        # Version 2 of control groups has one tree; version 1 has one for each controller.
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = top / path.lstrip("/")
        for level in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max": no limit
                yield int((level / name).read_text("utf-8"))
            if level == top:
                break


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is not enough memory, of whatever device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def _find_widest(model: Model) -> int:
    """Return the most numbers that a layer makes of one token; of a model that predicts words, one for each word."""
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return max(
        (
            max(weight.shape)
            for module in model.network.modules()
            if not isinstance(module, tables)
            for weight in module.parameters(recurse=False)
            if weight.ndim == 2
        ),
        default=1,
    )


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

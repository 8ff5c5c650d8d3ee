"""How many texts a model is given at once: as many as there is room for, and fewer where that was too many."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from headscope.corpus.windows import Batch
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.events import Load

BATCH_SIZE = 16
"""Texts for each core of a CPU; more at once are no faster."""
BATCH_SIZE_GPU = 1024
"""On the largest GPU fewer leave it waiting for the host, and more gain nothing."""
BATCH_ELEMENTS = 4_000_000
"""N×N elements over all heads that a batch of the default size may hold for each core"""
BYTES_ELEMENT = 64
"""Bytes for each element of a head's N×N matrices: scores, maps, similarities, and what is counted of them. These and
the next are on the safe side; one layer is there at a time."""
BYTES_UNIT = 16
"""Bytes for each number of a token in the widest place of a layer: it, what it is made of, what is made of it."""
SHARE = 0.5
"""of the free memory is planned for; the rest is for what does not grow with the batch, and for gaps in memory"""
REFUSED = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
"""How torch's errors say it, where they have no class of their own: on CPUs, in cuBLAS, on Apple's devices."""


@dataclass
class Room:
    """How many texts are tried at once."""

    size: int
    planned: int
    """before it was halved, if it was"""

    @classmethod
    def of(cls, model: Model, length: int, asked: int | None = None) -> Room:
        size = asked or _found(model, length)
        return cls(size, size)

    @property
    def note(self) -> str:
        return f"halved from {self.planned} after running out of memory" if self.size < self.planned else ""

    def tried(
        self, loads: Sequence[Load], side_by_side: int, attempt: Callable[[list[Batch]], None]
    ) -> Iterator[list[Load]]:
        """Loads, some side by side, after the attempt on them went well: where there was no room, with halves."""
        waiting = [part for load in loads for part in load.parts(self.size)]
        while waiting:
            parts, rest = waiting[:side_by_side], waiting[side_by_side:]
            refused = _refusal([part.batch for part in parts], attempt)
            if not refused:
                yield parts
                waiting = rest
                continue
            largest = max(len(part.batch) for part in parts)
            if largest == 1 and side_by_side > 1:
                side_by_side = 1
                continue
            if largest == 1:
                longest = max(part.batch.ids.shape[1] for part in parts)
                raise StudyError(
                    f"out of memory with one text of {longest} tokens at a time ({refused}): choose a "
                    "shorter --length, --dtype bfloat16, or --device cpu"
                )
            self.size = max(1, largest // 2)
            waiting = [half for part in waiting for half in part.parts(self.size)]


def _refusal(batches: list[Batch], attempt: Callable[[list[Batch]], None]) -> str:
    """What an attempt says that runs out of memory; empty if it went well."""
    try:
        attempt(batches)
        return ""
    except Exception as error:
        if not ran_out(error):
            raise
        refused = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    # Only now is the error gone, and with it all that its frames held.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    return refused


def ran_out(error: BaseException) -> bool:
    """Whether there was not enough memory, of whatever device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in REFUSED)


def _found(model: Model, length: int) -> int:
    heads = model.anatomy.heads
    if model.device.type != "cuda":
        # The same on every machine, however many cores it has: it decides what is computed together.
        return max(1, min(BATCH_SIZE, BATCH_ELEMENTS // (heads * length**2)))
    free, _ = torch.cuda.mem_get_info(model.device)
    # What torch keeps for later is free as well.
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return fitting(free, heads, length, _widest(model))


def fitting(free: int, heads: int, length: int, widest: int) -> int:
    """The largest power of two of texts for which so many bytes are enough.

    >>> fitting(16 * 2**30, heads=12, length=128, widest=3072), fitting(8 * 2**30, heads=16, length=512, widest=4096)
    (256, 8)
    """
    one = BYTES_ELEMENT * heads * length**2 + BYTES_UNIT * length * widest
    texts = max(1, min(BATCH_SIZE_GPU, int(free * SHARE) // one))
    return 1 << (texts.bit_length() - 1)


def _widest(model: Model) -> int:
    """The most numbers that a layer makes of one token; of a model that predicts words, one for each word."""
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

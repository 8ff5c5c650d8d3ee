"""Choose how many texts the model gets at once: as many as fit into its device's memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from headscope.model.model import Model

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
MEMORY_FRACTION = 0.5
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
    texts = max(1, min(BATCH_SIZE_GPU, int(free * MEMORY_FRACTION) // bytes_per_text))
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

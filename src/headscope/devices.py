"""Capabilities of torch devices, and asynchronous copies to and from them.

Asynchronous copies need pinned host memory. Allocating it takes milliseconds and stalls the GPU, so it is reused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

CPU = torch.device("cpu")
ALIGNED = 256
"""alignment of arrays in device memory, in bytes"""
_pinned: list[tuple[Tensor, Any]] = []
"""pinned memory for reuse, and the events after which it is free"""
_lock = threading.Lock()


def supports_float64(device: torch.device) -> bool:
    """Return whether a device supports double precision; Apple's GPUs (MPS) do not."""
    return device.type != "mps"


def find_float64_device(device: torch.device) -> torch.device:
    """Return the device, or the CPU if the device does not support double precision."""
    return device if supports_float64(device) else CPU


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in double precision, on the CPU if its device does not support that."""
    return tensor.to(find_float64_device(tensor.device)).double()


@contextmanager
def use_tf32(tf32: bool) -> Iterator[None]:
    """Multiply single-precision matrices in TF32, or exactly, within this context; restore the setting on leaving."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def send(arrays: list[Array], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device in a single transfer."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    offsets, size = _compute_offsets([array.nbytes for array in arrays])
    host, on_device = _take_pinned(size), torch.empty(size, dtype=torch.uint8, device=device)
    for offset, array in zip(offsets, arrays, strict=True):
        host[offset : offset + array.nbytes].numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with torch.cuda.device(device):
        on_device.copy_(host[:size], non_blocking=True)
        _keep_pinned(host, _record_event())
    return [
        on_device[offset : offset + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for offset, array in zip(offsets, arrays, strict=True)
    ]


class PendingCopy:
    """Tensors that are being copied to the host, in one block of memory."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        if not tensors[0].is_cuda:
            return
        offsets, size = _compute_offsets([tensor.nbytes for tensor in tensors])
        self._memory = _take_pinned(size)
        self._parts = [self._memory[offset : offset + t.nbytes] for offset, t in zip(offsets, tensors, strict=True)]
        for part, tensor in zip(self._parts, tensors, strict=True):
            part.copy_(tensor.contiguous().view(-1).view(torch.uint8), non_blocking=True)
        self._arrived = _record_event()

    def arrays(self) -> list[Array]:
        """Wait for the copies and return them."""
        if not self._tensors[0].is_cuda:
            return [tensor.numpy() for tensor in self._tensors]
        self._arrived.synchronize()
        arrays = [
            part.view(tensor.dtype).view(tensor.shape).numpy().copy()
            for part, tensor in zip(self._parts, self._tensors, strict=True)
        ]
        _keep_pinned(self._memory, self._arrived)
        return arrays


def _compute_offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Return the aligned offsets of consecutive arrays of these sizes, and the total size."""
    ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
    return [0, *ends[:-1]], max(ends[-1], ALIGNED)


def _take_pinned(size: int) -> Tensor:
    with _lock:
        for k, (memory, event) in enumerate(_pinned):
            if len(memory) >= size and event.query():
                return _pinned.pop(k)[0]
    return torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True)


def _keep_pinned(memory: Tensor, event: Any) -> None:
    with _lock:
        _pinned.append((memory, event))


def _record_event() -> Any:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event

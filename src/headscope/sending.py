"""Arrays between the host and the device, all in one copy that nobody waits for.

A GPU copies by itself only from and to host memory that is pinned. To get such memory takes milliseconds and stops the
GPU, so it is kept and used again.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

ALIGNED = 256
"""bytes: what a device likes arrays to start at a multiple of"""
_pinned: list[tuple[Tensor, Any]] = []
"""memory that was used before, and what the device has to have done before it may be used again"""
_lock = threading.Lock()


def send(arrays: list[Array], device: torch.device) -> list[Tensor]:
    """Copies of arrays on the device."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    starts, size = _places([array.nbytes for array in arrays])
    here, there = _memory(size), torch.empty(size, dtype=torch.uint8, device=device)
    for start, array in zip(starts, arrays, strict=True):
        here[start : start + array.nbytes].numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with torch.cuda.device(device):
        there.copy_(here[:size], non_blocking=True)
        _give_back(here, _now())
    return [
        there[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


class Fetched:
    """Tensors on their way to the host."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        if not tensors[0].is_cuda:
            return
        starts, size = _places([tensor.nbytes for tensor in tensors])
        self._memory = _memory(size)
        self._parts = [self._memory[start : start + t.nbytes] for start, t in zip(starts, tensors, strict=True)]
        for part, tensor in zip(self._parts, tensors, strict=True):
            part.copy_(tensor.contiguous().view(-1).view(torch.uint8), non_blocking=True)
        self._arrived = _now()

    def arrays(self) -> list[Array]:
        """Wait for them."""
        if not self._tensors[0].is_cuda:
            return [tensor.numpy() for tensor in self._tensors]
        self._arrived.synchronize()
        found = [
            part.view(tensor.dtype).view(tensor.shape).numpy().copy()
            for part, tensor in zip(self._parts, self._tensors, strict=True)
        ]
        _give_back(self._memory, self._arrived)
        return found


def _places(sizes: list[int]) -> tuple[list[int], int]:
    """Where arrays of these sizes start, one after the other, and the size of all."""
    ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
    return [0, *ends[:-1]], max(ends[-1], ALIGNED)


def _memory(size: int) -> Tensor:
    with _lock:
        for k, (memory, done) in enumerate(_pinned):
            if len(memory) >= size and done.query():
                return _pinned.pop(k)[0]
    return torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True)


def _give_back(memory: Tensor, done: Any) -> None:
    with _lock:
        _pinned.append((memory, done))


def _now() -> Any:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event

"""What the devices that torch runs on can do, and copies to and from them that nobody waits for.

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

CPU = torch.device("cpu")
ALIGNED = 256
"""bytes: what a device likes arrays to start at a multiple of"""
_pinned: list[tuple[Tensor, Any]] = []
"""memory that was used before, and what the device has to have done before it may be used again"""
_lock = threading.Lock()


def supports_float64(device: torch.device) -> bool:
    """Return whether tensors on this device can be in double precision: Apple's GPUs (MPS) have none."""
    return device.type != "mps"


def find_float64_device(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU where the device has no double precision."""
    return device if supports_float64(device) else CPU


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in double precision, moved to the CPU where its own device has none."""
    return tensor.to(find_float64_device(tensor.device)).double()


def send(arrays: list[Array], device: torch.device) -> list[Tensor]:
    """Copy arrays to the device, all in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    starts, size = _find_places([array.nbytes for array in arrays])
    here, there = _take_pinned(size), torch.empty(size, dtype=torch.uint8, device=device)
    for start, array in zip(starts, arrays, strict=True):
        here[start : start + array.nbytes].numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    with torch.cuda.device(device):
        there.copy_(here[:size], non_blocking=True)
        _keep_pinned(here, _record_event())
    return [
        there[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


class Fetched:
    """Tensors on their way to the host, all in one memory."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        if not tensors[0].is_cuda:
            return
        starts, size = _find_places([tensor.nbytes for tensor in tensors])
        self._memory = _take_pinned(size)
        self._parts = [self._memory[start : start + t.nbytes] for start, t in zip(starts, tensors, strict=True)]
        for part, tensor in zip(self._parts, tensors, strict=True):
            part.copy_(tensor.contiguous().view(-1).view(torch.uint8), non_blocking=True)
        self._arrived = _record_event()

    def arrays(self) -> list[Array]:
        """Wait for the copies and return them."""
        if not self._tensors[0].is_cuda:
            return [tensor.numpy() for tensor in self._tensors]
        self._arrived.synchronize()
        found = [
            part.view(tensor.dtype).view(tensor.shape).numpy().copy()
            for part, tensor in zip(self._parts, self._tensors, strict=True)
        ]
        _keep_pinned(self._memory, self._arrived)
        return found


def _find_places(sizes: list[int]) -> tuple[list[int], int]:
    """Return where arrays of these sizes start, one after the other, and the size of all."""
    ends = np.cumsum([-(-size // ALIGNED) * ALIGNED for size in sizes]).tolist()
    return [0, *ends[:-1]], max(ends[-1], ALIGNED)


def _take_pinned(size: int) -> Tensor:
    with _lock:
        for k, (memory, done) in enumerate(_pinned):
            if len(memory) >= size and done.query():
                return _pinned.pop(k)[0]
    return torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True)


def _keep_pinned(memory: Tensor, done: Any) -> None:
    with _lock:
        _pinned.append((memory, done))


def _record_event() -> Any:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event

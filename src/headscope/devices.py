"""What the devices that torch runs on can and cannot do."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def supports_float64(device: torch.device) -> bool:
    """Return whether tensors on this device can be in double precision: Apple's GPUs (MPS) have none."""
    return device.type != "mps"


def find_float64_device(device: torch.device) -> torch.device:
    """Return the device itself, or the CPU where the device has no double precision."""
    return device if supports_float64(device) else CPU


def to_float64(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, moved to the CPU where its own device has none."""
    return tensor.to(find_float64_device(tensor.device)).double()

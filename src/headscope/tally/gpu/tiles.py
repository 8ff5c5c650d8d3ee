"""How large tiles may be: what a program holds at once must fit into the GPU's shared memory."""

from __future__ import annotations

import torch

MOST_ROWS = 896
"""of heads' vectors that a program holds at once, where it holds the most: `attend_short` in TF32, as it is compiled"""
SHARED = 232_448
"""bytes for one program, of an H200; where Triton interprets, as there"""
LEAST_SHARED = 101_376
"""bytes, of the smallest GPUs of these years; where torch does not tell"""


def power_of_two(count: int, least: int) -> int:
    """The next power of two, at least `least`."""
    return max(least, 1 << (int(count) - 1).bit_length())


def narrowing(width: int, dtype: torch.dtype, device: torch.device) -> int:
    """By what tiles of heads this wide are divided in both directions, a power of two.

    >>> here = torch.device("cpu")
    >>> [narrowing(width, torch.float32, here) for width in (64, 65, 256)], narrowing(128, torch.bfloat16, here)
    ([1, 2, 4], 1)
    """
    needed = MOST_ROWS * power_of_two(width, 16) * dtype.itemsize
    return power_of_two(-(-needed // _shared(device)), 1)


def _shared(device: torch.device) -> int:
    if device.type != "cuda":
        return SHARED
    told = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", LEAST_SHARED)
    return int(told)

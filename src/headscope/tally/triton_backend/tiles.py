"""Tile sizes: what a program holds at once must fit into the GPU's shared memory."""

from __future__ import annotations

import torch

MAX_ROWS = 896
"""number of rows of heads' vectors that a program holds at once, at most: `attend_short` in TF32, as it is compiled"""
SHARED = 232_448
"""bytes for one program on an H200; also used when Triton interprets"""
MIN_ROWS = 16
"""smallest number of rows of a product"""
MAX_STEP = 64
"""Dimensions of vectors that are multiplied at once in single precision, where a product is three of TF32: with more,
the factors would not fit into registers."""
MIN_SHARED = 101_376
"""bytes on the smallest current GPUs; used if torch does not report the size"""


def round_up_to_power(count: int, least: int) -> int:
    """Return the next power of two, at least `least`."""
    return max(least, 1 << (int(count) - 1).bit_length())


def compute_divisor(width: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return what tiles of heads this wide are divided by in both directions, a power of two.

    >>> cpu = torch.device("cpu")
    >>> [compute_divisor(width, torch.float32, cpu) for width in (64, 65, 256)]
    [1, 2, 4]
    >>> compute_divisor(128, torch.bfloat16, cpu)
    1
    """
    needed = MAX_ROWS * round_up_to_power(width, MIN_ROWS) * dtype.itemsize
    return round_up_to_power(-(-needed // _get_shared_memory(device)), 1)


def get_side(most: int, divisor: int, n: int | None = None) -> int:
    """Return how many rows a tile has for windows of n tokens: at most `most`, divided by `divisor`.

    >>> get_side(64, 2), get_side(64, 8), get_side(64, 1, n=20), get_side(64, 2, n=20)
    (32, 16, 32, 32)
    """
    divided = max(MIN_ROWS, most // divisor)
    return divided if n is None else min(divided, round_up_to_power(n, MIN_ROWS))


def get_step(width: int, dtype: torch.dtype) -> int:
    """Return how many dimensions of vectors this wide are multiplied at once.

    >>> get_step(64, torch.float32), get_step(100, torch.float32), get_step(256, torch.bfloat16)
    (64, 64, 256)
    """
    padded_width = round_up_to_power(width, MIN_ROWS)
    return min(padded_width, MAX_STEP) if dtype == torch.float32 else padded_width


def _get_shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return SHARED
    size = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", MIN_SHARED)
    return int(size)

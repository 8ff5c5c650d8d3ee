"""How large tiles may be: what a program holds at once must fit into the GPU's shared memory."""

from __future__ import annotations

import torch

MOST_ROWS = 896
"""of heads' vectors that a program holds at once, where it holds the most: `attend_short` in TF32, as it is compiled"""
SHARED = 232_448
"""bytes for one program, of an H200; where Triton interprets, as there"""
LEAST = 16
"""rows, that a product wants at least"""
STEP = 64
"""numbers of vectors that are multiplied at once in single precision, where a product is three of TF32: of more, the
factors would not fit into registers"""
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
    needed = MOST_ROWS * power_of_two(width, LEAST) * dtype.itemsize
    return power_of_two(-(-needed // _shared(device)), 1)


def side(most: int, narrow: int, n: int | None = None) -> int:
    """How many rows a tile has, of windows of n tokens: at most so many, divided by `narrow`.

    >>> side(64, 2), side(64, 8), side(64, 1, n=20), side(64, 2, n=20)
    (32, 16, 32, 32)
    """
    divided = max(LEAST, most // narrow)
    return divided if n is None else min(divided, power_of_two(n, LEAST))


def at_once(width: int, dtype: torch.dtype) -> int:
    """How many numbers of vectors this wide are multiplied at once.

    >>> at_once(64, torch.float32), at_once(100, torch.float32), at_once(256, torch.bfloat16)
    (64, 64, 256)
    """
    whole = power_of_two(width, LEAST)
    return min(whole, STEP) if dtype == torch.float32 else whole


def _shared(device: torch.device) -> int:
    if device.type != "cuda":
        return SHARED
    told = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", LEAST_SHARED)
    return int(told)

"""Launch settings: tiles, warps, and what fits into shared memory.

Launch settings of the heavy kernels: the tile of a matrix that one program computes, and the number of warps.

These were the fastest on an H200 when measured. `benchmarks/variants.py` tries others, on any GPU. `divisor` is what
tiles are divided by in both directions if heads are wide (`compute_divisor`).

Tile sizes: what a program holds at once must fit into the GPU's shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Launch:
    """Rows and columns of a tile, warps of a program, pipeline stages of its loads, and the maximum number of registers
    of a thread, if limited."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options as Triton names them."""
        bounded = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **bounded}


def attend_short(n: int, dtype: torch.dtype) -> Launch:
    """Return the launch for windows whose n keys are in one tile."""
    keys = round_up_to_power(n, MIN_ROWS)
    return Launch(128, keys, warps=8) if dtype == torch.float32 and n > 64 else Launch(min(64, keys), keys)


def attend(dtype: torch.dtype, divisor: int) -> Launch:
    """Return the launch for keys tile by tile."""
    columns = get_side(64, divisor)
    if dtype == torch.float32:
        return Launch(get_side(128, divisor), columns)
    return Launch(get_side(64, divisor), columns, stages=3)


def add_scores(n: int, divisor: int, *, precomputed: bool) -> Launch:
    """Return the launch for the rows of a map, with their keys tile by tile. `precomputed`: as for `add_maps`; larger
    tiles would not fit into registers."""
    side = get_side(32 if precomputed else 64, divisor, n)
    return Launch(side, side)


def find_all(tile: int) -> Launch:
    """Return the launch for all of C in one tile."""
    return Launch(tile, tile, stages=3)


def find_high(dtype: torch.dtype, divisor: int) -> Launch:
    """Return the launch for C tile by tile. Rows are a multiple of columns, and columns of the bits of a word."""
    return Launch(max(32, 128 // divisor), max(32, 64 // divisor), stages=1 if dtype == torch.float32 else 2)


def add_maps(n: int, dtype: torch.dtype, divisor: int, *, precomputed: bool) -> Launch:
    """Return the launch, with no more columns than rows. `precomputed`: the maps are computed already."""
    columns = get_side(64, divisor, n)
    if precomputed or dtype == torch.float32:
        return Launch(columns, columns)
    return Launch(get_side(128, divisor, n), columns, stages=3, registers=168)

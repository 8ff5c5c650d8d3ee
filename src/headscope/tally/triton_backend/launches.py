"""Launch settings of the heavy kernels: the tile of a matrix that one program computes, and the number of warps.

These were the fastest on an H200 when measured. `benchmarks/variants.py` tries others, on any GPU. `divisor` is what
tiles are divided by in both directions if heads are wide (`tiles.compute_divisor`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headscope.tally.triton_backend.tiles import MIN_ROWS, get_side, round_up_to_power


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

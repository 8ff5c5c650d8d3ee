"""How the heavy kernels are started: the tile of a matrix that one program holds, and how many warps work on it.

What stands here was the fastest on an H200 when it was measured. `benchmarks/variants.py` tries others, on any GPU.
`narrow` is what tiles are divided by in both directions where heads are wide (`tiles.narrowing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from headscope.tally.gpu.tiles import LEAST, power_of_two, side


@dataclass(frozen=True)
class Launch:
    """A tile's rows and columns, the warps of a program, how many loads it has under way, and at most how many
    registers a thread has, if that is bounded."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """As Triton names them."""
        bounded = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **bounded}


def attend_short(n: int, dtype: torch.dtype) -> Launch:
    """All n keys in one tile."""
    keys = power_of_two(n, LEAST)
    return Launch(128, keys, warps=8) if dtype == torch.float32 and n > 64 else Launch(min(64, keys), keys)


def attend(dtype: torch.dtype, narrow: int) -> Launch:
    """Keys tile by tile."""
    columns = side(64, narrow)
    if dtype == torch.float32:
        return Launch(side(128, narrow), columns)
    return Launch(side(64, narrow), columns, stages=3)


def find_all(tile: int) -> Launch:
    """The whole of C in one tile."""
    return Launch(tile, tile, stages=3)


def find_high(dtype: torch.dtype, narrow: int) -> Launch:
    """Rows are a multiple of columns, and those of words."""
    return Launch(max(32, 128 // narrow), max(32, 64 // narrow), stages=1 if dtype == torch.float32 else 2)


def add_maps(n: int, dtype: torch.dtype, narrow: int, *, given: bool) -> Launch:
    """No more columns than rows; `given`: maps that are there already."""
    columns = side(64, narrow, n)
    if given or dtype == torch.float32:
        return Launch(columns, columns)
    return Launch(side(128, narrow, n), columns, stages=3, registers=168)

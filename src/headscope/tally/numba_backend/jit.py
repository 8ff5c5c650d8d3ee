"""Compile functions with numba, with a cache on disk if a folder for it can be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from headscope.file_io import find_cache_folder

HAS_CACHE = bool(numba.config.CACHE_DIR) or os.access(Path(__file__).parent, os.W_OK) or find_cache_folder() is not None
"""whether there is a folder for compiled functions; without a home folder, numba would create a folder named "~" """


def compiled(*, fast: bool = False, finite: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function when it is first called.

    Functions are inlined into those that call them. Otherwise a function in the cache would hold copies of those that
    it calls, optimized anew, which round differently from the ones that the first process used.

    Args:
        fast: Allow products and sums to be fused and reordered.
        finite: With `fast`, assume that no number is NaN. Only for functions whose arguments are never NaN.
    """
    flags: Any = {"contract", "nsz", "reassoc", *(["nnan"] if finite else [])} if fast else False
    options: dict[str, Any] = {"nogil": True, "fastmath": flags, "error_model": "numpy", "forceinline": True}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=HAS_CACHE, **options)(function)
        except RuntimeError:  # no folder can be written: compile without a cache
            return numba.njit(**options)(function)

    return decorate

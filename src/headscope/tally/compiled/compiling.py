"""How functions are compiled: once for each machine, where a folder for it can be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from headscope.folders import find_cache_folder

KEEPS = bool(numba.config.CACHE_DIR) or os.access(Path(__file__).parent, os.W_OK) or find_cache_folder() is not None
"""whether there is a folder to keep results in; without a home folder numba makes one that is named "~" """


def compiled(*, fast: bool = False, finite: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function when it is first called.

    `fast` lets products and sums be fused and, with `finite`, takes no number for NaN: for functions that are given
    only such.
    """
    flags: Any = {"contract", "nsz", "reassoc", *(["nnan"] if finite else [])} if fast else False
    options: dict[str, Any] = {"nogil": True, "fastmath": flags, "error_model": "numpy"}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=KEEPS, **options)(function)
        except RuntimeError:  # there is no folder to keep the result in: it is compiled again next time
            return numba.njit(**options)(function)

    return decorate

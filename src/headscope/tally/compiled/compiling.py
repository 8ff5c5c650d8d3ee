"""How functions are compiled: once for each machine, where a folder for it can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(*, fast: bool = False, finite: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function when it is first called.

    `fast` lets products and sums be fused and, with `finite`, takes no number for NaN: for functions that are given
    only such.
    """
    flags: Any = {"contract", "nsz", "reassoc", *(["nnan"] if finite else [])} if fast else False
    options: dict[str, Any] = {"nogil": True, "fastmath": flags, "error_model": "numpy"}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # there is no folder to keep the result in: it is compiled again next time
            return numba.njit(**options)(function)

    return decorate

"""High elements as bits, 64 to a word, so that one instruction counts 64 of them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

from headscope.tally.numba_backend.jit import compiled

WORD = 64


@intrinsic  # type: ignore[untyped-decorator]
def count_bits(typing_context: Any, word: Any) -> Any:
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return numba.types.uint64(numba.types.uint64), generate


@compiled()
def mark_equal(values: Any, n: int, bits: Any) -> None:
    """Set bit j of row i if i < j < n and values i and j are equal."""
    bits[:] = 0
    for i in range(n):
        for j in range(i + 1, n):
            if values[i] == values[j]:
                bits[i, j // WORD] |= numba.uint64(1) << numba.uint64(j % WORD)


@compiled()
def pack_lowest_bits(byte_words: Any) -> Any:
    """Return the lowest bits of 64 bytes, given as eight words, as one word.

    The product moves the lowest bit of each byte to a different bit of the top byte, so that they do not overlap.
    """
    word = np.uint64(0)
    for k in range(8):
        lowest = byte_words[k] & np.uint64(0x0101010101010101)
        word |= ((lowest * np.uint64(0x0102040810204080)) >> np.uint64(56)) << np.uint64(8 * k)
    return word

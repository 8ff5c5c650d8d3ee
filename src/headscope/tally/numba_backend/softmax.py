"""softmax, row by row and in place. torch's own, which handles every shape and is exact to the last bit, takes twice
the time.

A power of two is the product of 2 to an integer, which is a number with that exponent, and of 2 to the remainder from
−½ to ½, which is a polynomial, exact to 1e-8. The compiler vectorizes all of it. A row with a NaN or an infinity
becomes NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

from headscope.tally.numba_backend.jit import compiled

MIN_EXPONENT = np.float32(-126.0)
"""2 to this power is the smallest normal number; smaller terms are negligible beside 1"""
C_0, C_1, C_2, C_3, C_4, C_5, C_6, C_7 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8))
EXPONENT_BIAS, EXPONENT_BIT = np.int32(127), np.int32(23)
"""bias of exponents of single-precision numbers, and the lowest bit of the exponent"""
SIGN_BIT, MAGNITUDE_BITS = np.int32(31), np.int32(0x7FFFFFFF)


@intrinsic  # type: ignore[untyped-decorator]
def as_float(typing_context: Any, word: Any) -> Any:
    """Return the single-precision number of the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(numba.types.float32))

    return numba.types.float32(numba.types.int32), generate


@compiled()
def compute_softmax(scores: Any, int_scores: Any, scaling: Any, n: int, causal: bool) -> None:
    """Turn scores (head, query, key) into attention maps. `scaling` must be above 0.

    Only the first n keys are attended to, and if `causal`, only those up to the query. `int_scores` are the scores as
    integers of the same bits.
    """
    scale = np.float32(scaling * math.log2(math.e))
    for head in range(len(scores)):
        for query in range(scores.shape[1]):
            stop = min(n, query + 1) if causal else n
            row = scores[head, query, :stop]
            row_max = order_bits(find_max_bits(int_scores[head, query, :stop]))
            scale_row(row, np.float32(1) / compute_powers(row, scale, as_float(row_max) * scale))
            scores[head, query, stop:] = 0


@compiled()
def order_bits(bits: Any) -> Any:
    """Return integers that are ordered as the numbers of these bits are. The function is its own inverse."""
    return bits ^ ((bits >> SIGN_BIT) & MAGNITUDE_BITS)


# Loops over whole slices, which the compiler vectorizes.


@compiled(fast=True)
def find_max_bits(int_row: Any) -> Any:
    """Return the largest number, as `order_bits` maps it."""
    largest = np.int32(-(2**31))
    for k in range(int_row.size):
        largest = max(largest, order_bits(int_row[k]))
    return largest


@compiled(fast=True, finite=False)
def compute_powers(row: Any, scale: Any, row_max: Any) -> Any:
    """Replace each number by 2 to the power of it, scaled and less `row_max`; return the sum."""
    total = np.float32(0)
    for k in range(row.size):
        power = row[k] * scale - row_max
        power = MIN_EXPONENT if power < MIN_EXPONENT else power  # keeps NaN, unlike max()
        nearest = np.rint(power)
        x = power - nearest
        fraction = C_0 + x * (C_1 + x * (C_2 + x * (C_3 + x * (C_4 + x * (C_5 + x * (C_6 + x * C_7))))))
        value = fraction * as_float((np.int32(nearest) + EXPONENT_BIAS) << EXPONENT_BIT)
        row[k] = value
        total += value
    return total


@compiled(fast=True, finite=False)
def scale_row(row: Any, factor: Any) -> None:
    """Multiply all numbers by a factor, in place."""
    for k in range(row.size):
        row[k] *= factor

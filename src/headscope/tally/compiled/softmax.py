"""softmax, row by row and in place; torch's own, made for every shape and exact to the last bit, takes twice the time.

A power of two is a product: of 2 to a whole number, which is a number with that exponent, and of 2 to what is left,
from −½ to ½, which is a polynomial, exact to 1e-8. The compiler turns all of it into instructions on eight numbers at
once. A row that holds what is no number becomes one of such.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic

from headscope.tally.compiled.compiling import compiled

LEAST = np.float32(-126.0)
"""2 to this is the smallest number with all its digits; what is smaller than that, beside 1, is nothing"""
C_0, C_1, C_2, C_3, C_4, C_5, C_6, C_7 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8))
BIAS, EXPONENT = np.int32(127), np.int32(23)
"""what exponents of single-precision numbers begin from, and the bit at which they are"""
SIGN, REST = np.int32(31), np.int32(0x7FFFFFFF)


@intrinsic  # type: ignore[untyped-decorator]
def as_number(typing_context: Any, word: Any) -> Any:
    """The single-precision number of the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(numba.types.float32))

    return numba.types.float32(numba.types.int32), generate


@compiled()
def soften(scores: Any, whole: Any, scaling: Any, n: int, causal: bool) -> None:
    """Turn scores (head, query, key) into maps, with `scaling` above 0; only the first n keys are looked at, and only
    those up to the query if `causal`. `whole` are the scores as integers of the same bits."""
    scale = np.float32(scaling * math.log2(math.e))
    for head in range(len(scores)):
        for query in range(scores.shape[1]):
            last = min(n, query + 1) if causal else n
            row = scores[head, query, :last]
            highest = ordered(row_highest(whole[head, query, :last]))
            weigh(row, np.float32(1) / powers(row, scale, as_number(highest) * scale))
            scores[head, query, last:] = 0


@compiled()
def ordered(bits: Any) -> Any:
    """Integers ordered as the numbers of these bits are; and back again."""
    return bits ^ ((bits >> SIGN) & REST)


# Loops over whole slices, which the compiler turns into instructions on eight or more numbers at once.


@compiled(fast=True)
def row_highest(whole: Any) -> Any:
    """As `ordered` gives it."""
    highest = np.int32(-(2**31))
    for k in range(whole.size):
        highest = max(highest, ordered(whole[k]))
    return highest


@compiled(fast=True, finite=False)
def powers(row: Any, scale: Any, highest: Any) -> Any:
    """2 to the power of each number, scaled and less the highest, in its place; and the sum of all."""
    total = np.float32(0)
    for k in range(row.size):
        power = row[k] * scale - highest
        power = LEAST if power < LEAST else power  # what is no number stays so, as a largest of two would not
        nearest = np.rint(power)
        x = power - nearest
        left = C_0 + x * (C_1 + x * (C_2 + x * (C_3 + x * (C_4 + x * (C_5 + x * (C_6 + x * C_7))))))
        made = left * as_number((np.int32(nearest) + BIAS) << EXPONENT)
        row[k] = made
        total += made
    return total


@compiled(fast=True, finite=False)
def weigh(row: Any, weight: Any) -> None:
    """Numbers times one other, in their places."""
    for k in range(row.size):
        row[k] *= weight

"""Attention maps on the CPU: softmax, and the sums over maps.

Sums over attention maps, computed in one pass over every map.

softmax, row by row and in place. torch's own, which handles every shape and is exact to the last bit, takes twice
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


@compiled()
def add_attention_sums(
    attention: Any, start: int, texts: Any, offset_sums: Any, map_sums: Any, received: Any, near_attention: Any
) -> None:
    """Add the maps (text, head, query, key) of the texts from `start` on to a layer's sums by offset (block, head,
    offset) and by position (head, query, key).

    Set for each text and head what every key receives in all (text, head, key), and what it receives from the query
    before it, from itself, and from the query after it (text, head, 3, key).
    """
    center = (offset_sums.shape[2] - 1) // 2
    for head in range(attention.shape[1]):
        for row in range(attention.shape[0]):
            text, head_map = start + row, attention[row, head]
            n = texts.lengths[text]
            _add_map(
                head_map,
                n,
                offset_sums[texts.blocks[text], head, center - (n - 1) : center + n],
                map_sums[head],
                received[text, head],
            )
            for key in range(n):
                for step in range(3):
                    query = key + step - 1
                    near_attention[text, head, step, key] = head_map[query, key] if 0 <= query < n else 0


@compiled()
def _add_map(head_map: Any, n: int, offset_sums: Any, map_sums: Any, received: Any) -> None:
    by_offset = np.zeros(2 * n - 1, np.float64)
    for i in range(n):
        row, diagonal = head_map[i], by_offset[n - 1 - i :]
        for j in range(n):
            value = np.float64(row[j])
            diagonal[j] += value
            received[j] += value
        if len(map_sums):
            sum_row = map_sums[i]
            for j in range(n):
                sum_row[j] += np.float64(row[j])
    for k in range(2 * n - 1):
        offset_sums[k] += by_offset[k]


@compiled()
def add_heads(attention: Any, n: int, head_sum: Any) -> None:
    """Add a text's maps (head, query, key) to their sum over heads (query, key)."""
    for head in range(len(attention)):
        for query in range(n):
            row, sum_row = attention[head, query, :n], head_sum[query, :n]
            for key in range(row.size):
                sum_row[key] += np.float64(row[key])


MIN_EXPONENT = np.float32(-126.0)
"""2 to this power is the smallest normal number; smaller terms are negligible beside 1"""
C_0, C_1, C_2, C_3, C_4, C_5, C_6, C_7 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8))
EXPONENT_BIAS, EXPONENT_BIT = np.int32(127), np.int32(23)
"""bias of exponents of single-precision numbers, and the lowest bit of the exponent"""
MANTISSA_BITS, ROOT_BITS = np.int32(0x7FFFFF), np.int32(0x3F3504F3)
"""bits of a single-precision number that are not its exponent, and those of √½"""
L_1, L_3, L_5, L_7, L_9 = (np.float32(2 / (k * math.log(2))) for k in (1, 3, 5, 7, 9))
SIGN_BIT, MAGNITUDE_BITS = np.int32(31), np.int32(0x7FFFFFFF)


@intrinsic  # type: ignore[untyped-decorator]
def as_float(typing_context: Any, word: Any) -> Any:
    """Return the single-precision number of the same bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(numba.types.float32))

    return numba.types.float32(numba.types.int32), generate


@compiled()
def compute_softmax(scores: Any, int_scores: Any, scaling: Any, n: int, causal: bool, entropies: Any) -> None:
    """Turn scores (head, query, key) into attention maps, and set the relative entropies of each head's, added up over
    queries. `scaling` must be above 0.

    Only the first n keys are attended to, and if `causal`, only those up to the query. `int_scores` are the scores as
    integers of the same bits.
    """
    scale = np.float32(scaling * math.log2(math.e))
    totals, logarithms, uncertain = np.ones((3, scores.shape[1]), np.float32)
    for head in range(len(scores)):
        for query in range(scores.shape[1]):
            stop = min(n, query + 1) if causal else n
            row = scores[head, query, :stop]
            row_max = order_bits(find_max_bits(int_scores[head, query, :stop]))
            total, weighted = compute_powers(row, scale, as_float(row_max) * scale)
            scale_row(row, np.float32(1) / total)
            scores[head, query, stop:] = 0
            totals[query], uncertain[query] = total, -weighted / total
        # −Σ p·log₂ p, where p = 2^x / total, is log₂ total − Σ p·x
        compute_logarithms(totals.view(np.int32), logarithms)
        for query in range(n):
            uncertain[query] += logarithms[query]
        entropies[head] = add_entropies(uncertain, n, causal)


@compiled()
def add_entropies(bits: Any, n: int, causal: bool) -> Any:
    """Return the sum over n queries of their entropies in bits, relative to the largest; one key has no entropy."""
    total = np.float64(0)
    if causal:
        for query in range(1, n):
            total += np.float64(bits[query]) / np.log2(np.float64(query + 1))
    elif n > 1:
        for query in range(n):
            total += np.float64(bits[query])
        total /= np.log2(np.float64(n))
    return total


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
    """Replace each number by 2 to the power of it, scaled and less `row_max`; return the sum, and the sum of the
    products of powers and exponents."""
    total, weighted = np.float32(0), np.float32(0)
    for k in range(row.size):
        power = row[k] * scale - row_max
        power = MIN_EXPONENT if power < MIN_EXPONENT else power  # keeps NaN, unlike max()
        nearest = np.rint(power)
        x = power - nearest
        fraction = C_0 + x * (C_1 + x * (C_2 + x * (C_3 + x * (C_4 + x * (C_5 + x * (C_6 + x * C_7))))))
        value = fraction * as_float((np.int32(nearest) + EXPONENT_BIAS) << EXPONENT_BIT)
        row[k] = value
        total += value
        weighted += value * power
    return total, weighted


@compiled(fast=True, finite=False)
def compute_logarithms(int_row: Any, logarithms: Any) -> None:
    """Set the logarithms to base 2 of positive numbers, given as integers of the same bits; of 0, about −127.

    A number is a power of two times one from √½ to √2, whose logarithm is a series, exact to 1e-8.
    """
    for k in range(int_row.size):
        bits = int_row[k] - ROOT_BITS
        mantissa = as_float((bits & MANTISSA_BITS) + ROOT_BITS)
        z = (mantissa - np.float32(1)) / (mantissa + np.float32(1))
        square = z * z
        series = L_1 + square * (L_3 + square * (L_5 + square * (L_7 + square * L_9)))
        logarithms[k] = np.float32(bits >> EXPONENT_BIT) + z * series


@compiled(fast=True, finite=False)
def scale_row(row: Any, factor: Any) -> None:
    """Multiply all numbers by a factor, in place."""
    for k in range(row.size):
        row[k] *= factor

"""Quantize a reading's matrices into few bytes, from which a page finds exactly the pairs and lines that Python finds.

A similarity v = C_ij / max(C) becomes the code ⌈v · M⌉. With M a multiple of D, v > k/D ⇔ code > k · M/D: every
threshold that is a multiple of 1/D is decided by the codes alone, without rounding. The floating-point comparison in
Python, C_ij > θ · max(C), may differ for a value within rounding error of a threshold; such codes are moved to agree
with it. Column sums of attention, which decide lines, are quantized the same way. Attention itself is only displayed:
it is stored as levels of its square root, which are fine where attention is small, as nearly all of it is.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from headscope.array_types import Floats, Ints
from headscope.errors import ReadingError
from headscope.readings.reading import SUM, Head, Reading


@dataclass(frozen=True)
class Precision:
    """How precisely a page stores numbers."""

    name: str
    steps: int
    """M: similarities are stored in steps of max(C) / M"""
    thresholds: int
    """D: for θ and τ that are multiples of 1 / D, the page finds exactly what Python finds"""
    levels: int
    """levels of the square root of attention above 0"""
    bytes: int
    """bytes of a code"""


FINE = Precision("fine", steps=8_000, thresholds=1_000, levels=255, bytes=2)
COARSE = Precision("coarse", steps=100, thresholds=100, levels=15, bytes=1)
PRECISIONS = {precision.name: precision for precision in (FINE, COARSE)}
COMPRESSION_LEVEL = 6
"""of zlib; the highest takes three times as long and saves a third of a percent"""
FINE_ELEMENTS = 12_000_000
"""matrix elements up to which `auto` chooses fine precision; the page then has about 18 MB"""


def choose_precision(reading: Reading, name: str) -> Precision:
    """Return the precision of this name; `auto` is fine precision where the page stays small.

    Raises:
        ReadingError: There is no precision of this name.
    """
    if name == "auto":
        elements = len(reading.layers) * (len(reading.head_numbers) + 1) * len(reading) ** 2
        return FINE if elements <= FINE_ELEMENTS else COARSE
    if name not in PRECISIONS:
        raise ReadingError(f"precision is {name!r}: choose one of auto, {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def quantize(values: Floats, largest: float, precision: Precision) -> Ints:
    """Return ⌈v · M⌉ for v = values / largest, moved such that every threshold k/D gives `values > k/D * largest`.

    >>> quantize(np.array([10.0, 3.0, 2.9999, 0.0, -5.0]), 10.0, COARSE).tolist()
    [100, 30, 30, 0, -50]
    """
    step = precision.steps // precision.thresholds
    lowest = -(2 ** (8 * precision.bytes - 1))
    codes = np.clip(np.ceil(values / largest * precision.steps), lowest, precision.steps).astype(np.int64)
    below = np.maximum((codes - 1) // step, -1)  # the highest k that the code is above; −1: above none
    exceeds_it = (below < 0) | (values > below / precision.thresholds * largest)
    exceeds_next = values > (below + 1) / precision.thresholds * largest
    codes = np.where(exceeds_it, codes, below * step)
    return np.asarray(np.where(exceeds_it & exceeds_next, (below + 1) * step + 1, codes), dtype=np.int64)


def compute_scale(matrix: Floats) -> float:
    """Return the divisor of similarities: their maximum if it is positive, else the largest magnitude, or 1."""
    largest = float(matrix.max())
    return largest if largest > 0 else float(np.abs(matrix).max()) or 1.0


def pack_layer(reading: Reading, layer: int, precision: Precision) -> tuple[bytes, list[float]]:
    """Return one layer, compressed, and the scale of each of its matrices: the heads in order, then their sum.

    The bytes are the similarities above the diagonal, row by row, matrix after matrix; then attention maps (where there
    are any, without the sum); then the diagonals of C over their scale as float32; then the codes of the attention's
    column sums. Codes of two bytes are stored as all high bytes, then all low ones, which compresses better.
    """
    n = len(reading)
    upper = np.triu_indices(n, k=1)
    present = reading.heads_of(layer)
    matrix_sum, square_sum = np.zeros((n, n)), np.zeros(n)
    similarities, scales, diagonals, column_sums, maps = [], [], [], [], []
    heads: list[Head] = [*reading.head_numbers, SUM]
    for head in heads:
        is_absent = head != SUM and head not in present  # zeros in its place, which the page does not show
        if head == SUM:  # summed in the same order as in Reading, to agree to the last bit
            matrix, squares = matrix_sum, square_sum
        elif is_absent:
            matrix, squares = np.zeros((n, n)), np.zeros(n)
        else:
            matrix = reading.matrix(layer, head).values
            squares = (reading.output(layer, int(head)) ** 2).sum(axis=-1)
            matrix_sum += matrix
            square_sum += squares
        scales.append(compute_scale(matrix))
        similarities.append(quantize(matrix[upper], scales[-1], precision))
        diagonals.append(squares / scales[-1])
        if reading.has_attention:
            attention = np.zeros((n, n)) if is_absent else reading.attention_map(layer, head).values
            sums = attention.sum(axis=0)
            column_sums.append(quantize(sums, float(sums.max()) or 1.0, precision))
            if head != SUM:
                maps.append(np.rint(np.sqrt(np.clip(attention, 0, 1)) * precision.levels).astype(np.uint8))
    parts = [
        _pack_codes(np.stack(similarities), precision),
        *(levels.tobytes() for levels in maps),
        np.stack(diagonals).astype("<f4").tobytes(),
        *([_pack_codes(np.stack(column_sums), precision)] if column_sums else []),
    ]
    return zlib.compress(b"".join(parts), COMPRESSION_LEVEL), scales


def _pack_codes(numbers: Ints, precision: Precision) -> bytes:
    if precision.bytes == 1:
        return numbers.astype(np.int8).tobytes()
    pairs = numbers.astype(">i2").ravel().view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(pairs.T).tobytes()

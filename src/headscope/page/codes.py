"""A reading's matrices as few bytes, from which a page finds exactly the pairs and lines that Python finds.

A similarity v = C_ij / max(C) becomes the code ⌈v · M⌉. With M a multiple of D, v > k/D ⇔ code > k · M/D: every
threshold that is a multiple of 1/D is decided by the codes alone, without rounding. The floating-point comparison that
Python makes, C_ij > θ · max(C), may fall otherwise for a value within rounding of a threshold; such codes are moved to
agree with it. Column sums of attention, which decide lines, are coded the same way. Attention itself is only looked at:
it is kept as levels of its square root, which are fine where attention is small, as nearly all of it is.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from headscope.errors import ReadingError
from headscope.readings.reading import SUM, Head, Reading
from headscope.types import Floats, Ints


@dataclass(frozen=True)
class Precision:
    """How much of each number a page carries."""

    name: str
    steps: int
    """M: similarities are kept in steps of max(C) / M"""
    thresholds: int
    """D: θ and τ that are multiples of 1 / D give exactly what Python gives"""
    levels: int
    """of the square root of attention, above 0"""
    bytes: int
    """of one code"""


FINE = Precision("fine", steps=8_000, thresholds=1_000, levels=255, bytes=2)
COARSE = Precision("coarse", steps=100, thresholds=100, levels=15, bytes=1)
PRECISIONS = {each.name: each for each in (FINE, COARSE)}
LEVEL = 6
"""of compression; the highest takes three times as long and saves a third of a percent"""
FINE_ELEMENTS = 12_000_000
"""up to so many matrix elements in all, a page is fine where nothing else is asked for: about 18 MB"""


def choose(reading: Reading, name: str) -> Precision:
    """The precision asked for; `auto` is fine where the page stays small."""
    if name == "auto":
        elements = len(reading.layers) * (len(reading.heads) + 1) * len(reading) ** 2
        return FINE if elements <= FINE_ELEMENTS else COARSE
    if name not in PRECISIONS:
        raise ReadingError(f"precision is {name!r}: choose one of auto, {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def codes(values: Floats, largest: float, precision: Precision) -> Ints:
    """⌈v · M⌉ for v = values / largest, such that every threshold k/D is decided as `values > k/D * largest` is.

    >>> codes(np.array([10.0, 3.0, 2.9999, 0.0, -5.0]), 10.0, COARSE).tolist()
    [100, 30, 30, 0, -50]
    """
    step = precision.steps // precision.thresholds
    lowest = -(2 ** (8 * precision.bytes - 1))
    made = np.clip(np.ceil(values / largest * precision.steps), lowest, precision.steps).astype(np.int64)
    below = np.maximum((made - 1) // step, -1)  # the highest k that the code is above; −1: above none
    above_it = (below < 0) | (values > below / precision.thresholds * largest)
    above_next = values > (below + 1) / precision.thresholds * largest
    made = np.where(above_it, made, below * step)
    return np.asarray(np.where(above_it & above_next, (below + 1) * step + 1, made), dtype=np.int64)


def scale(matrix: Floats) -> float:
    """What similarities are divided by: their maximum, where it is positive, else the largest magnitude."""
    largest = float(matrix.max())
    return largest if largest > 0 else float(np.abs(matrix).max()) or 1.0


def layer_bytes(reading: Reading, layer: int, precision: Precision) -> tuple[bytes, list[float]]:
    """One layer, compressed, and the scale of each of its matrices: the heads in order, then their sum.

    Similarities above the diagonal, row by row, matrix after matrix; then attention maps (where there are any, without
    the sum); then the diagonals of C over their scale as float32; then the codes of the attention's column sums. Codes
    of two bytes are laid out as all high bytes, then all low ones, which compresses better.
    """
    upper = np.triu_indices(len(reading), k=1)
    outputs = reading.outputs.sel(layer=layer).transpose("head", "position", "width").values.astype(np.float64)
    squares = (outputs**2).sum(axis=-1)
    total = np.zeros((len(reading), len(reading)))
    similarities, scales, diagonals, columns, maps = [], [], [], [], []
    heads: list[Head] = [*reading.heads, SUM]
    for number, head in enumerate(heads):
        if head == SUM:  # added up in the order in which Reading does, to the same last bit
            matrix = total
        else:
            matrix = reading.matrix(layer, head).values
            total += matrix
        scales.append(scale(matrix))
        similarities.append(codes(matrix[upper], scales[-1], precision))
        diagonals.append((squares.sum(axis=0) if head == SUM else squares[number]) / scales[-1])
        if reading.has_attention:
            attention = reading.attention_map(layer, head).values
            sums = attention.sum(axis=0)
            columns.append(codes(sums, float(sums.max()), precision))
            if head != SUM:
                maps.append(np.rint(np.sqrt(np.clip(attention, 0, 1)) * precision.levels).astype(np.uint8))
    parts = [
        _bytes(np.stack(similarities), precision),
        *(each.tobytes() for each in maps),
        np.stack(diagonals).astype("<f4").tobytes(),
        *([_bytes(np.stack(columns), precision)] if columns else []),
    ]
    return zlib.compress(b"".join(parts), LEVEL), scales


def _bytes(numbers: Ints, precision: Precision) -> bytes:
    if precision.bytes == 1:
        return numbers.astype(np.int8).tobytes()
    pairs = numbers.astype(">i2").ravel().view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(pairs.T).tobytes()

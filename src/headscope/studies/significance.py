"""Student's t-test and Holm's correction for multiple tests.

The p-value is the regularized incomplete beta function, computed by its continued fraction (DLMF 8.17.22, modified
Lentz).
"""

from __future__ import annotations

import math

import numpy as np

from headscope.array_types import Floats

MAX_STEPS = 500
"""Largest number of steps of the continued fraction, which needs far fewer."""
TINY = 1e-300
"""Replaces a denominator that vanishes."""


def compute_p_value(t: float, degrees_of_freedom: float) -> float:
    """Return the two-sided p-value of Student's t; NaN if t is NaN or there is less than one degree of freedom.

    >>> f"{compute_p_value(2.093024, 19):.6f}"
    '0.050000'
    """
    if math.isnan(t) or not degrees_of_freedom >= 1:
        return math.nan
    if math.isinf(t):
        return 0.0
    total = degrees_of_freedom + t * t
    if math.isinf(total):  # t² is beyond what a float holds
        return 0.0
    return compute_incomplete_beta(degrees_of_freedom / 2, 0.5, degrees_of_freedom / total, t * t / total)


def compute_incomplete_beta(a: float, b: float, x: float, rest: float | None = None) -> float:
    """Return I_x(a, b), the regularized incomplete beta function.

    Args:
        rest: 1 − x, where that is known more exactly.

    >>> compute_incomplete_beta(1, 1, 0.25)
    0.25
    """
    y = 1 - x if rest is None else rest
    if x <= 0 or y <= 0:
        return float(x > 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y))
    # The fraction converges fast on one side of the mean, and I_x(a, b) = 1 − I_{1−x}(b, a) leads there.
    if x < (a + 1) / (a + b + 2):
        return front * _evaluate_fraction(a, b, x) / a
    return 1 - front * _evaluate_fraction(b, a, y) / b


def _evaluate_fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _avoid_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MAX_STEPS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _avoid_zero(1 + step * d), _avoid_zero(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _avoid_zero(number: float) -> float:
    return number if abs(number) > TINY else TINY


def correct_holm(p: Floats) -> Floats:
    """Return p-values corrected such that the probability of any false alarm among all of them is at most alpha.

    NaN stands for no test: it stays NaN, and is not corrected for.

    >>> [round(float(p), 3) for p in correct_holm(np.array([0.01, 0.04, 0.03, np.nan]))]
    [0.03, 0.06, 0.06, nan]
    """
    flat = np.asarray(p, dtype=np.float64).ravel()
    corrected = np.full(flat.shape, np.nan)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    remaining = np.arange(len(order), 0, -1)  # hypotheses not yet rejected at each step
    corrected[order] = np.minimum(np.maximum.accumulate(flat[order] * remaining), 1.0)
    return corrected.reshape(np.shape(p))

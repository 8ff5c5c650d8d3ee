"""Student's t and Holm's correction: how surprising a difference is, and how surprising among many.

The p-value is the regularized incomplete beta function, by its continued fraction (DLMF 8.17.22, modified Lentz).
"""

from __future__ import annotations

import math

import numpy as np

from headscope.types import Floats

ROUNDS = 500
"""of the continued fraction, which needs far fewer"""
TINY = 1e-300
"""in place of a denominator that vanishes"""


def two_sided(t: float, freedom: float) -> float:
    """How often Student's t with so many degrees of freedom is at least this far from 0; NaN where either is none.

    >>> f"{two_sided(2.093024, 19):.6f}"
    '0.050000'
    """
    if math.isnan(t) or not freedom >= 1:
        return math.nan
    if math.isinf(t):
        return 0.0
    whole = freedom + t * t
    if math.isinf(whole):  # t² is beyond what a float holds
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / whole, t * t / whole)


def incomplete_beta(a: float, b: float, x: float, rest: float | None = None) -> float:
    """I_x(a, b), the regularized incomplete beta function; `rest` is 1 − x where that is known more exactly.

    >>> incomplete_beta(1, 1, 0.25)
    0.25
    """
    y = 1 - x if rest is None else rest
    if x <= 0 or y <= 0:
        return float(x > 0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y))
    # The fraction converges fast on one side of the mean, and I_x(a, b) = 1 − I_{1−x}(b, a) leads there.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, y) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _safe(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, ROUNDS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _safe(1 + step * d), _safe(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _safe(number: float) -> float:
    return number if abs(number) > TINY else TINY


def holm(p: Floats) -> Floats:
    """p-values corrected for how many there are, such that one false alarm among all of them stays as rare as alpha.

    Those that are NaN were no tests, and stay so.

    >>> [round(float(each), 3) for each in holm(np.array([0.01, 0.04, 0.03, np.nan]))]
    [0.03, 0.06, 0.06, nan]
    """
    flat = np.asarray(p, dtype=np.float64).ravel()
    corrected = np.full(flat.shape, np.nan)
    known = np.flatnonzero(~np.isnan(flat))
    order = known[np.argsort(flat[known], kind="stable")]
    left = np.arange(len(order), 0, -1)  # hypotheses not yet rejected, at each step
    corrected[order] = np.minimum(np.maximum.accumulate(flat[order] * left), 1.0)
    return corrected.reshape(np.shape(p))

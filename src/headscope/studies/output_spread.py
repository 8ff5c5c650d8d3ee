"""How a head's outputs spread over directions, and how much of them all tokens have in common (docs/method.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

SPREAD = ("effective_rank", "common_share")
ROUNDING = 1e-12
"""variances below this share of the mean square are not told from zero"""


def compute_output_spread(sums: Mapping[Any, xr.Variable]) -> dict[str, xr.Variable]:
    """Return the variables `SPREAD` of every head: (layer, head) each. They are NaN for heads that write nothing.

    The effective rank is the exponential of the entropy of the normalized eigenvalues of the covariance of outputs. It
    is the number of directions, if a head writes equally much in each; NaN if all its outputs are equal.
    """
    if not {"output_tokens", "output_sums", "output_products"} <= sums.keys():
        return {}
    tokens = max(int(sums["output_tokens"].values), 1)
    means = sums["output_sums"].transpose("layer", "head", "width").values / tokens
    products = sums["output_products"].transpose("layer", "head", "width", "other_width").values / tokens
    mean_squares = np.trace(products, axis1=2, axis2=3)
    written = np.where(mean_squares > 0, mean_squares, np.nan)
    variances = np.linalg.eigvalsh(products - means[..., :, None] * means[..., None, :])
    variances = np.where(variances > ROUNDING * mean_squares[..., None], variances, 0.0)
    totals = variances.sum(-1, keepdims=True)
    shares = variances / np.where(totals > 0, totals, np.nan)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(-1)
    return {
        "effective_rank": xr.Variable(
            ("layer", "head"), np.exp(entropy), {"long_name": "number of directions in which outputs vary"}
        ),
        "common_share": xr.Variable(
            ("layer", "head"),
            (means**2).sum(-1) / written,
            {"long_name": "share of outputs that all tokens have in common"},
        ),
    }

"""Delete-one-block jackknife: the standard error of any number that is computed from sums in blocks of documents.

With G blocks that hold texts and the number `v_g` computed without block g, `SE² = (G−1)/G · Σ (v_g − mean v)²`. Blocks
are of whole documents, because windows of one document are alike: blocks of windows give errors that are too small.
"""

from __future__ import annotations

import numpy as np

from headscope.array_types import Floats

MIN_BLOCKS = 10
"""Least number of blocks with texts; with fewer, an error is itself too uncertain, and is NaN."""


def leave_out_blocks(blocks: Floats) -> Floats:
    """Return the sum over all blocks but one, for each block.

    Args:
        blocks: Of shape (blocks, …).
    """
    remaining: Floats = blocks.sum(axis=0) - blocks
    return remaining


def compute_jackknife_error(values: Floats) -> Floats:
    """Return the standard error; NaN for fewer than `MIN_BLOCKS` blocks, and where a value is NaN.

    Args:
        values: The values without each block, of shape (blocks, …). Blocks without texts are not among them.
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < MIN_BLOCKS:
        return np.full(values.shape[1:], np.nan)
    spread = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    return np.asarray(np.sqrt(spread * (len(values) - 1) / len(values)))

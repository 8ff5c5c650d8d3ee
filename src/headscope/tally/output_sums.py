"""Sums of heads' outputs over the tokens of the sample: of how many directions a head writes, and how much is common.

Σo and Σo·oᵀ over all tokens that are no padding, special tokens included, of the outputs that are counted: those that
the study's similarity maps. They are kept for all texts together: by block, 20 products per head would be larger than
all other sums.
"""

from __future__ import annotations

from torch import Tensor


def sum_outputs(output: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return the sums of one layer by quantity: of outputs (head, width), and of their products (head, width, width).

    Args:
        output: Outputs of the sampled texts, (text, position, head, width).
        real: (text, position), False on padding.
    """
    heads = output.double().masked_fill(~real[:, :, None, None], 0).flatten(0, 1).transpose(0, 1)
    return {"output_sums": heads.sum(1), "output_products": heads.transpose(1, 2) @ heads}

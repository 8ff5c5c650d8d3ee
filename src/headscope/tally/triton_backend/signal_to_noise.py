"""The sums of signal-to-noise ratios, by a kernel over all texts, heads and layers."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.tally.quantities import PAIR_KINDS
from headscope.tally.signal_to_noise import PairSums, Structure, SumPairs
from headscope.tally.triton_backend.sample import add_signal
from headscope.tally.triton_backend.tiles import MIN_ROWS, compute_divisor, get_side, get_step, round_up_to_power

TILE = 64


def make_sum_pairs(largest: Tensor) -> SumPairs:
    """Return a faster `signal.sum_pairs_in_torch`; `largest` (text, head) is the largest similarity, which is known
    already."""

    def sum_pairs(structure: Structure, output: Tensor, mean: Tensor, blocks: Tensor, theta: float) -> PairSums:
        texts, n, heads, width = output.shape
        order = structure.order
        actual = (structure.ids, structure.sentence, torch.arange(n, device=order.device).expand_as(order), blocks[0])
        shuffled = (structure.ids.gather(1, order), structure.sentence.gather(1, order), order, blocks[1])
        labels = torch.stack([label.to(torch.int32) for label in (*actual, *shuffled)])
        distances = torch.zeros((texts, heads, 2, len(PAIR_KINDS) + 2), dtype=torch.float64, device=output.device)
        high_counts = torch.zeros((texts, heads, 3), dtype=torch.int32, device=output.device)
        energies = torch.zeros((texts, heads, 3), dtype=torch.float64, device=output.device)
        tile = get_side(min(TILE, round_up_to_power(n, MIN_ROWS)), compute_divisor(width, torch.float32, output.device))
        tiles = -(-n // tile)
        add_signal[(texts, tiles**2)](
            output, mean.contiguous(), largest, structure.real.sum(1).to(torch.int32), labels, distances, high_counts,
            energies, texts, heads, n, width, round_up_to_power(width, MIN_ROWS), STEP=get_step(width, torch.float32),
            TILE=tile, TILES=tiles, THETA=theta, PRECISION="tf32x3", num_warps=4,
        )  # fmt: skip
        return PairSums(distances, high_counts.long(), energies)

    return sum_pairs

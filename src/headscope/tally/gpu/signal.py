"""What signal-to-noise ratios are made of, by a kernel over all texts, heads and layers."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.tally.gpu.sample import see_signal
from headscope.tally.gpu.tiles import LEAST, at_once, narrowing, power_of_two, side
from headscope.tally.quantities import KINDS
from headscope.tally.signal import AddUp, Raw, Structure

TILE = 64


def by_kernel(largest: Tensor) -> AddUp:
    """The same as `signal.in_torch`; `largest` (text, head) is the largest similarity, known already."""

    def add_up(structure: Structure, output: Tensor, mean: Tensor, blocks: Tensor, theta: float) -> Raw:
        texts, n, heads, width = output.shape
        order = structure.order
        own = (structure.ids, structure.sentence, torch.arange(n, device=order.device).expand_as(order), blocks[0])
        shuffled = (structure.ids.gather(1, order), structure.sentence.gather(1, order), order, blocks[1])
        labels = torch.stack([each.to(torch.int32) for each in (*own, *shuffled)])
        apart = torch.zeros((texts, heads, 2, len(KINDS) + 2), dtype=torch.float64, device=output.device)
        high = torch.zeros((texts, heads, 3), dtype=torch.int32, device=output.device)
        energy = torch.zeros((texts, heads, 3), dtype=torch.float64, device=output.device)
        tile = side(min(TILE, power_of_two(n, LEAST)), narrowing(width, torch.float32, output.device))
        tiles = -(-n // tile)
        see_signal[(texts, tiles**2)](
            output, mean.contiguous(), largest, structure.real.sum(1).to(torch.int32), labels, apart, high, energy,
            texts, heads, n, width, power_of_two(width, LEAST), WIDE=at_once(width, torch.float32), TILE=tile,
            TILES=tiles, THETA=theta, PRECISION="tf32x3", num_warps=4,
        )  # fmt: skip
        return Raw(apart, high.long(), energy)

    return add_up

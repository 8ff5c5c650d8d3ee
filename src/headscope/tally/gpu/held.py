"""What kernels fill while a batch goes through the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS
from headscope.devices import Fetched
from headscope.tally.gpu.pairs import LAST
from headscope.tally.gpu.texts import Texts
from headscope.tally.tally import Counting

SHORT = 128
"""Up to so many keys are computed at once: then maps are added up where outputs are computed."""


class Held:
    """The arrays of one batch."""

    def __init__(self, texts: Texts, counting: Counting) -> None:
        shape, device = counting.shape, texts.lengths.device
        layers, heads, count, n = shape.layers, shape.heads, texts.count, texts.length
        parts, chosen = len(texts.part_blocks), len(texts.chosen)
        self.texts, self.counting = texts, counting

        def made(*sizes: int, dtype: torch.dtype = torch.int32, zero: bool = False) -> Tensor:
            return (torch.zeros if zero else torch.empty)(sizes, dtype=dtype, device=device)

        # of one layer, used again by the next
        self.bits = made(count, heads, n, texts.words)
        self.ends = made(count, heads, n)
        self.normals = made(count, heads, n, dtype=torch.float32)
        self.places = made(parts, heads, n, n) if shape.maps else made(0)
        self.maps = made(parts, heads, n, n, dtype=torch.float32) if shape.maps or n <= SHORT else made(0)
        self.shares: dict[int, Tensor] = {}
        # of all layers
        self.counts = made(layers, count, heads, 2, dtype=torch.int64, zero=True)
        self.near = made(layers, count, heads, zero=True)
        self.largest = made(layers, count, heads, dtype=torch.float32, zero=True)
        self.dominants = made(layers, count, heads, dtype=torch.int64)
        self.received = made(layers, count, n, dtype=torch.float64)
        self.beside = made(layers, count, 2, dtype=torch.float64, zero=True)
        self.place_diagonals = made(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.int64, zero=True)
        self.map_diagonals = made(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.float64, zero=True)
        self.location = made(layers, heads, n, n, dtype=torch.int64) if shape.maps else None
        self.attention = made(layers, heads, n, n, dtype=torch.float64) if shape.maps else None
        # of the sample
        self.kept: Tensor | None = None
        self.summed_maps = made(layers, chosen, n, n, dtype=torch.float32)

    def received_from(self, tiles: int) -> Tensor:
        """Room for what keys receive from each of so many tiles of rows of a head's map: (text, head, tile, key)."""
        if tiles not in self.shares:
            sizes = (self.texts.count, self.counting.shape.heads, tiles, self.texts.length)
            self.shares[tiles] = torch.empty(sizes, dtype=torch.float32, device=self.texts.lengths.device)
        return self.shares[tiles]

    def keep(self, layer: int, output: Tensor) -> None:
        chosen = self.texts.chosen
        if not len(chosen):
            return
        if self.kept is None:
            layers = self.counting.shape.layers
            self.kept = output.new_empty((layers, len(chosen), *output.shape[1:]))
        self.kept[layer] = output[chosen]

    def numbers(self) -> tuple[Tensor, ...]:
        """Twice the numbers of pairs, of those of equal tokens, of one sentence, of both, and near the threshold, of
        each layer, text and head."""
        first, second = self.counts.unbind(-1)
        half = (1 << 32) - 1
        return first & half, first >> 32, second & half, second >> 32, self.near

    def dominant(self) -> tuple[Tensor, Tensor]:
        """Twice the number of pairs that include the dominant token, and where it is first met, of each layer, text
        and head."""
        return self.dominants >> 32, LAST.value - (self.dominants & LAST.value)

    def finish(self) -> None:
        """All layers were seen. What the host wants to know is on its way to it."""
        columns = self.received.argmax(2)
        tokens = self.texts.keys.expand(len(columns), -1, -1).gather(2, columns[..., None])[..., 0]
        flags = ~self.largest.isfinite().all(1)
        self.host = Fetched([tokens, flags, self.texts.blocks])

    def arrived(self) -> tuple[Any, Any, Any]:
        """The most attended token ids (layer, text), heads whose outputs are no numbers (layer, head), and the texts'
        blocks."""
        tokens, broken, blocks = self.host.arrays()
        return tokens, broken, blocks

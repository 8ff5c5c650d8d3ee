"""The arrays that kernels fill while a batch goes through the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headscope.corpus.windows import BLOCKS
from headscope.devices import PendingCopy
from headscope.tally.tally import TallySettings
from headscope.tally.triton_backend.pairs import LAST
from headscope.tally.triton_backend.scores import SUMS
from headscope.tally.triton_backend.text_arrays import TextTensors

SHORT = 128
"""Up to this many keys are in one tile: then maps are summed by the kernel that computes outputs."""


class BatchArrays:
    """The arrays of one batch."""

    def __init__(self, texts: TextTensors, counting: TallySettings) -> None:
        shape, device = counting.shape, texts.lengths.device
        layers, heads, count, n = shape.layers, shape.heads, texts.count, texts.length
        parts, sampled = len(texts.part_blocks), len(texts.sampled)
        self.texts, self.counting = texts, counting

        def allocate(*sizes: int, dtype: torch.dtype = torch.int32, zero: bool = False) -> Tensor:
            return (torch.zeros if zero else torch.empty)(sizes, dtype=dtype, device=device)

        # of one layer, reused by the next
        self.bits = allocate(count, heads, n, texts.words)
        self.pair_ends = allocate(count, heads, n)
        self.normals = allocate(count, heads, n, dtype=torch.float32)
        self.position_counts = allocate(parts, heads, n, n) if shape.maps else allocate(0)
        self.maps = allocate(parts, heads, n, n, dtype=torch.float32) if shape.maps or n <= SHORT else allocate(0)
        self.received_parts: dict[int, Tensor] = {}
        # of all layers
        self.counts = allocate(layers, count, heads, 2, dtype=torch.int64, zero=True)
        self.near = allocate(layers, count, heads, zero=True)
        self.largest = allocate(layers, count, heads, dtype=torch.float32, zero=True)
        self.dominants = allocate(layers, count, heads, dtype=torch.int64)
        self.received = allocate(layers, count, n, dtype=torch.float64)
        self.near_attention = allocate(layers, count, 2, dtype=torch.float64, zero=True)
        self.scores = allocate(layers, count, heads, len(SUMS), dtype=torch.float64, zero=True)
        self.position_diagonals = allocate(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.int64, zero=True)
        self.map_diagonals = allocate(BLOCKS, layers, heads, 2 * n - 1, dtype=torch.float64, zero=True)
        self.location = allocate(layers, heads, n, n, dtype=torch.int64) if shape.maps else None
        self.attention = allocate(layers, heads, n, n, dtype=torch.float64) if shape.maps else None
        # of the sample
        self.sampled_outputs: Tensor | None = None
        self.summed_maps = allocate(layers, sampled, n, n, dtype=torch.float32)
        self.columns = allocate(layers, sampled, heads, n, dtype=torch.float64)

    def get_received_parts(self, tiles: int) -> Tensor:
        """Return the buffer of what keys receive from each tile of rows of a head's map, for this number of tiles:
        (text, head, tile, key)."""
        if tiles not in self.received_parts:
            sizes = (self.texts.count, self.counting.shape.heads, tiles, self.texts.length)
            self.received_parts[tiles] = torch.empty(sizes, dtype=torch.float32, device=self.texts.lengths.device)
        return self.received_parts[tiles]

    def keep_sampled(self, layer: int, output: Tensor) -> None:
        sampled = self.texts.sampled
        if not len(sampled):
            return
        if self.sampled_outputs is None:
            layers = self.counting.shape.layers
            self.sampled_outputs = output.new_empty((layers, len(sampled), *output.shape[1:]))
        self.sampled_outputs[layer] = output[sampled]

    def keep_maps(self, layer: int, maps: Tensor) -> None:
        """Keep the maps of the sampled texts (text, head, query, key), summed over heads and over queries."""
        n = maps.shape[-1]
        real = torch.arange(n, device=maps.device) < self.texts.lengths[self.texts.sampled][:, None]
        self.summed_maps[layer] = maps.sum(1)
        self.columns[layer] = (maps * real[:, None, :, None]).sum(2, dtype=torch.float64)

    def get_pair_counts(self) -> tuple[Tensor, ...]:
        """Return twice the numbers of high pairs, of those of equal tokens, of one sentence, of both, and of pairs near
        the threshold: (layer, text, head)."""
        first, second = self.counts.unbind(-1)
        half = (1 << 32) - 1
        return first & half, first >> 32, second & half, second >> 32, self.near

    def get_dominants(self) -> tuple[Tensor, Tensor]:
        """Return twice the number of pairs that include the dominant token, and its first position: (layer, text,
        head)."""
        return self.dominants >> 32, LAST.value - (self.dominants & LAST.value)

    def send_results(self) -> None:
        """Start to transfer to the host what it needs of the batch."""
        most_attended = self.received.argmax(2)
        tokens = self.texts.key_ids.expand(len(most_attended), -1, -1).gather(2, most_attended[..., None])[..., 0]
        flags = ~self.largest.isfinite().all(1)
        self.fetched = PendingCopy([tokens, flags, self.texts.blocks])

    def receive_results(self) -> tuple[Any, Any, Any]:
        """Return the most attended token ids (layer, text), which heads' outputs are NaN or infinite (layer, head), and
        the texts' blocks."""
        tokens, nonfinite, blocks = self.fetched.arrays()
        return tokens, nonfinite, blocks

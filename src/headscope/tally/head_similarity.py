"""How alike the similarity matrices of heads are, for the texts in the sample (docs/method.md). Fast backends share it.

For two heads, of any layers, the Pearson correlation of their C over pairs of tokens of a text. It needs all layers of
a text at once: their similarities of the same pairs are kept, as unit vectors around zero, until the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Floats, Ints
from headscope.corpus.windows import Window
from headscope.tally.quantities import HALVES, MAX_PLACES
from headscope.tally.text_structure import rank_pairs

MAX_PAIRS = 1024
"""Pairs of a text that are correlated: the first of its random order. All pairs of texts of up to 45 tokens."""
MIN_PAIRS = 3
"""Fewer pairs always correlate."""
FLAT = 1e-4
"""Similarities that vary by less than this share of their root mean square do not vary: it may be rounding."""
MAX_ELEMENTS = 1 << 22
"""number of similarities, or of correlations, computed at a time"""


def draw_pairs(window: Window) -> Ints:
    """Return the pairs i < j of a window that heads are correlated over: (pair, 2)."""
    ranks = np.triu(rank_pairs(window)[:MAX_PLACES, :MAX_PLACES] + 1, k=1)  # 0 where there is no pair
    rows, columns = np.nonzero(ranks)
    first = np.argsort(ranks[rows, columns])[:MAX_PAIRS]
    return np.stack([rows[first], columns[first]], axis=1)


def standardize(values: Floats) -> Floats | None:
    """Return values around their mean, of length 1; None if there are too few, or if they do not vary."""
    if len(values) < MIN_PAIRS:
        return None
    deviations = values - values.mean()
    norm = np.sqrt((deviations**2).sum())
    return None if norm <= FLAT * np.sqrt((values**2).sum()) else deviations / norm


@dataclass(eq=False)
class HeadSimilarities:
    """The sampled texts of a batch: S texts, P pairs of tokens of each."""

    pairs: Tensor
    """(S, P): each as i · N + j, with N the tokens of the longest text, cut off at `MAX_PLACES`"""
    is_pair: Tensor
    """(S, P): False where a text has fewer pairs"""
    half: Tensor
    """(S,): by the parity of the block"""
    layers: list[Tensor] = field(default_factory=list)
    """of the layers that were seen, similarities as unit vectors (S, H, P); zeros where they do not vary"""

    @classmethod
    def from_ranks(cls, ranks: Tensor, blocks: Tensor) -> HeadSimilarities:
        """Return the pairs of some texts.

        Args:
            ranks: Of each pair in the random order of its text, (S, N, N); N² where there is none.
            blocks: (S,)
        """
        size, n = ranks.shape[1] ** 2, min(ranks.shape[1], MAX_PLACES)
        upper = torch.ones(n, n, dtype=torch.bool, device=ranks.device).triu(1)
        first = ranks[:, :n, :n].masked_fill(~upper, size).flatten(1)
        values, pairs = first.topk(min(MAX_PAIRS, n * n), dim=1, largest=False)
        return cls(pairs, values < size, blocks % HALVES)

    @classmethod
    def from_windows(cls, windows: Sequence[Window], device: torch.device | str) -> HeadSimilarities:
        """Return the pairs of some texts that are in one batch."""
        n = min(max(len(window) for window in windows), MAX_PLACES)
        pairs, is_pair = np.zeros((2, len(windows), MAX_PAIRS), dtype=np.int64)
        for row, window in enumerate(windows):
            drawn = draw_pairs(window)
            pairs[row, : len(drawn)], is_pair[row, : len(drawn)] = drawn @ [n, 1], 1
        blocks = torch.tensor([window.block for window in windows], device=device)
        return cls(torch.from_numpy(pairs).to(device), torch.from_numpy(is_pair > 0).to(device), blocks % HALVES)

    def add_layer(self, output: Tensor) -> None:
        """Keep the similarities of one layer's outputs (S, N, H, d), whose padding is arbitrary."""
        dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
        vectors = output[:, :MAX_PLACES].to(dtype).transpose(1, 2)
        step = max(1, MAX_ELEMENTS // (vectors.shape[1] * vectors.shape[2] ** 2))
        parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
        self.layers.append(torch.cat([self._standardize(vectors[part], part) for part in parts]))

    def _standardize(self, vectors: Tensor, part: slice) -> Tensor:
        """Return the similarities of the pairs of some texts, of outputs (S, H, N, d), as unit vectors."""
        is_pair = self.is_pair[part, None]
        index = self.pairs[part, None].expand(-1, vectors.shape[1], -1)
        values = (vectors @ vectors.transpose(2, 3)).flatten(2).gather(2, index).masked_fill(~is_pair, 0)
        count = is_pair.sum(2, keepdim=True)
        mean = values.sum(2, keepdim=True) / count.clamp(min=1)
        deviations = (values - mean).masked_fill(~is_pair, 0)
        norm = deviations.square().sum(2, keepdim=True).sqrt()
        varies = (norm > FLAT * values.square().sum(2, keepdim=True).sqrt()) & (count >= MIN_PAIRS)
        return torch.where(varies, deviations / torch.where(varies, norm, 1), 0)

    def sum_texts(self) -> dict[str, Tensor]:
        """Return the sums of the correlations over texts, and their numbers, of all layers that were seen."""
        if not self.layers:
            return {}
        layers, heads = len(self.layers), self.layers[0].shape[1]
        directions = torch.cat(self.layers, 1)
        varies = (directions != 0).any(2).double()
        count = layers * heads
        sums, texts = directions.new_zeros((2, HALVES, count, count), dtype=torch.float64)
        step = max(1, MAX_ELEMENTS // count**2)
        for start in range(0, len(directions), step):
            part = slice(start, start + step)
            products = directions[part] @ directions[part].transpose(1, 2)
            sums.index_add_(0, self.half[part], products.double())
        for half in range(HALVES):
            marks = varies[self.half == half]
            texts[half] = marks.T @ marks
        shape = (HALVES, layers, heads, layers, heads)
        return {"head_similarity_sum": sums.view(shape), "head_similarity_texts": texts.round().long().view(shape)}

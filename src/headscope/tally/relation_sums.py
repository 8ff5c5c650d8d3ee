"""The sums of labelled relations (METHOD §9), for the texts in the sample. All fast backends use this torch code.

For a labelled pair of tokens (a, b) of a text: whether it is high, and A from a to b and from b to a. What is expected
of it is the mean over all pairs of tokens of that text that begin words and are as far apart: for attention, with the
same sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Ints
from headscope.corpus.relations import WindowRelations
from headscope.corpus.windows import BLOCKS, Batch
from headscope.tally.tally import Tally

MAX_ELEMENTS = 1 << 25
"""number of similarities computed at a time"""


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """The labelled texts among the sampled ones of a batch: T texts with P labelled pairs of R relations in all."""

    labels: list[str]
    """the R relations"""
    texts: Tensor
    """(T,): numbers of the texts among the sampled ones"""
    real: Tensor
    """(T, N)"""
    words: Tensor
    """(T, N): tokens that begin words"""
    word_pairs: Tensor
    """(T, N): number of pairs of such tokens at each distance"""
    pair_texts: Tensor
    """(P,): number of each pair's text among these"""
    first: Tensor
    """(P,): position of a"""
    second: Tensor
    """(P,): position of b"""
    groups: Tensor
    """(P,): number of each pair's relation, times `BLOCKS`, plus the block of its text"""

    @classmethod
    def from_batch(cls, batch: Batch, rows: Ints, device: torch.device | str) -> LabelledTexts | None:
        """Return the labelled texts among those of a batch that are given by their numbers; None if there are none."""
        labelled: list[tuple[int, WindowRelations]] = []
        for number, row in enumerate(rows):
            relations = batch.windows[row].relations
            if relations is not None and relations.labels:
                labelled.append((number, relations))
        if not labelled:
            return None
        numbers = np.array([number for number, _ in labelled])
        words = np.zeros((len(labelled), batch.ids.shape[1]), dtype=bool)
        for text, (_, relations) in enumerate(labelled):
            words[text, : len(relations.words)] = relations.words
        labels = sorted({label for _, relations in labelled for label in relations.labels})
        index = {label: k for k, label in enumerate(labels)}
        counts = [len(relations.labels) for _, relations in labelled]
        blocks = np.repeat([batch.windows[row].block for row in rows[numbers]], counts)
        relation = np.array([index[label] for _, relations in labelled for label in relations.labels])
        arrays = (
            numbers, batch.real[rows[numbers]], words, _count_pairs(words), np.repeat(np.arange(len(labelled)), counts),
            np.concatenate([relations.first for _, relations in labelled]),
            np.concatenate([relations.second for _, relations in labelled]), relation * BLOCKS + blocks,
        )  # fmt: skip
        return cls(labels, *(torch.from_numpy(array).to(device) for array in arrays))

    def sum_texts(self) -> dict[str, Tensor]:
        """Return the numbers of pairs and of texts by quantity: (relation, block)."""
        groups = torch.unique(torch.stack([self.groups, self.pair_texts]), dim=1)[0]
        size = len(self.labels) * BLOCKS
        return {
            name: torch.bincount(values, minlength=size).view(-1, BLOCKS)
            for name, values in (("relation_pairs", self.groups), ("relation_texts", groups))
        }

    def sum_layer(self, output: Tensor, maps: Tensor, theta: float) -> dict[str, Tensor]:
        """Return the sums of a layer by quantity: (relation, block, head).

        Args:
            output: What the heads write in the sampled texts, (S, N, H, d); padding is arbitrary.
            maps: Their attention, (S, H, N, N); padding is arbitrary.
            theta: Threshold of high pairs.
        """
        heads, n = maps.shape[1:3]
        step = max(1, MAX_ELEMENTS // (heads * n * n))
        totals: dict[str, Tensor] = {}
        for start in range(0, len(self.texts), step):
            part = slice(start, start + step)
            of_part = (self.pair_texts >= start) & (self.pair_texts < start + step)
            sums = self._sum_part(output[self.texts[part]], maps[self.texts[part]], part, of_part, theta)
            totals = {name: totals[name] + values if name in totals else values for name, values in sums.items()}
        return totals

    def _sum_part(self, output: Tensor, maps: Tensor, part: slice, of_part: Tensor, theta: float) -> dict[str, Tensor]:
        texts = self.pair_texts[of_part] - part.start
        first, second = self.first[of_part], self.second[of_part]
        groups, apart = self.groups[of_part], (first - second).abs()
        high = _find_high(output, self.real[part], theta)
        by_distance = _average_by_offset(high, self.words[part], self.word_pairs[part])
        attention = maps.double()
        by_offset = _average_by_offset(attention, self.words[part], self.word_pairs[part])
        center = high.shape[-1] - 1
        values = {
            "relation_high": high[texts, :, first, second],
            "relation_expected": by_distance[texts, :, center + apart],
            "relation_attention_ab": attention[texts, :, first, second],
            "relation_attention_ab_expected": by_offset[texts, :, center + second - first],
            "relation_attention_ba": attention[texts, :, second, first],
            "relation_attention_ba_expected": by_offset[texts, :, center + first - second],
        }
        zeros = attention.new_zeros((len(self.labels) * BLOCKS, attention.shape[1]))
        return {
            name: zeros.index_add(0, groups, array.double()).view(len(self.labels), BLOCKS, -1)
            for name, array in values.items()
        }


def add_relation_sums(tally: Tally, labels: list[str], sums: Mapping[str, Tensor], layer: int | None = None) -> None:
    """Add what `LabelledTexts` returns to the sums of each relation.

    Args:
        layer: The layer, of sums of a layer.
    """
    arrays = {name: values.cpu().numpy() for name, values in sums.items()}
    for number, label in enumerate(labels):
        targets = tally.relate(label)
        for name, values in arrays.items():
            target = targets[name] if layer is None else targets[name][:, layer]
            counts = values[number].round() if target.dtype.kind == "i" else values[number]
            target += counts.astype(target.dtype)


def _find_high(output: Tensor, real: Tensor, theta: float) -> Tensor:
    """Return the high elements of similarity of outputs (T, N, H, d), as 0 and 1: (T, H, N, N)."""
    dtype = torch.float64 if output.dtype == torch.float64 else torch.float32
    vectors = output.to(dtype).transpose(1, 2).masked_fill(~real[:, None, :, None], 0)
    matrix = vectors @ vectors.transpose(2, 3)
    matrix.diagonal(dim1=2, dim2=3).zero_()
    return (matrix > theta * matrix.amax((2, 3), keepdim=True)).double()


def _average_by_offset(values: Tensor, words: Tensor, word_pairs: Tensor) -> Tensor:
    """Return the mean of maps (T, H, N, N) over the pairs of words at each offset, from −(N−1) to N−1: (T, H, 2N−1)."""
    n = values.shape[-1]
    positions = torch.arange(n, device=values.device)
    offsets = (positions[None, :] - positions[:, None] + n - 1).flatten()
    pairs = (words[:, :, None] & words[:, None, :])[:, None]
    sums = values.new_zeros((*values.shape[:2], 2 * n - 1))
    sums.index_add_(-1, offsets, values.masked_fill(~pairs, 0).flatten(-2))
    counts = torch.cat([word_pairs.flip(1), word_pairs[:, 1:]], 1).clamp(min=1)
    return sums / counts[:, None]


def _count_pairs(words: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> Ints:
    """Return the number of pairs of words of each text at each distance 0…N−1: (text, N)."""
    n = words.shape[1]
    return np.stack([(words[:, : n - k] & words[:, k:]).sum(1) for k in range(n)], axis=1).astype(np.int64)

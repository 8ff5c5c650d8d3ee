"""The sums over the sampled texts of a batch that all fast backends compute with the same torch code.

A backend gives a layer's outputs and attention of the sampled texts, and adds what it gets back to its sums. What is
summed: signal shares (`signal_shares.py`), the structures of the paper's claims (`claim_sums.py`), labelled relations
(`relation_sums.py`), outputs over tokens (`output_sums.py`) and, once all layers were seen, how alike heads are
(`head_similarity.py`). The reference defines each of these sums in plain loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Ints
from headscope.corpus.windows import BLOCKS, Batch
from headscope.tally.claim_sums import ClaimTexts, measure_claims
from headscope.tally.head_similarity import HeadSimilarities
from headscope.tally.output_sums import sum_outputs
from headscope.tally.quantities import BY_NAME, MAX_RELATED_HEADS
from headscope.tally.relation_sums import LabelledTexts, add_relation_sums
from headscope.tally.signal_shares import PairWeights
from headscope.tally.tally import Tally, TallySettings


@dataclass(frozen=True, eq=False)
class SampledLayer:
    """One layer of the sampled texts: S texts, N tokens in the longest of the batch. Padding is arbitrary."""

    output: Tensor
    """what the heads write, mapped as it is counted, (S, N, H, d)"""
    columns: Tensor
    """attention that each position receives of each head, (S, H, N), without that of padding"""
    itself: Tensor
    """attention that each position receives from itself, of all heads, (S, N)"""
    maps: Tensor | None = None
    """attention, (S, H, N, N); needed if there are labelled texts"""


class SampleSums:
    """The sampled texts of a batch, and the sums over them."""

    def __init__(self, batch: Batch, rows: Ints, counting: TallySettings, device: torch.device | str) -> None:
        self.counting = counting
        self.rows = rows
        """numbers of the sampled texts in the batch"""
        self.blocks = torch.tensor([batch.windows[row].block for row in rows], device=device)
        self.pair_weights = PairWeights.from_batch(batch, rows, device)
        self.real = torch.from_numpy(batch.real[rows]).to(device)
        self.claim_texts = ClaimTexts.from_batch(batch, rows, device, causal=counting.causal)
        self.labelled = None if counting.shape.crosses else LabelledTexts.from_batch(batch, rows, device)
        """the labelled texts; None if there are none, and maps are not needed"""
        related = counting.shape.layers * counting.shape.heads <= MAX_RELATED_HEADS
        self.similarities = HeadSimilarities.from_ranks(self.claim_texts.ranks, self.blocks) if related else None

    @classmethod
    def from_batch(cls, batch: Batch, counting: TallySettings, device: torch.device | str) -> SampleSums | None:
        """Return the sampled texts of a batch; None if there are none."""
        rows = np.flatnonzero([window.is_sampled(counting.fraction) for window in batch.windows])
        return cls(batch, rows, counting, device) if len(rows) else None

    def sum_texts(self) -> dict[str, Tensor]:
        """Return the sums that belong to the texts alone, by quantity."""
        tokens = {"output_tokens": self.real.sum(1)}
        return {**self.pair_weights.sum_texts(), **self._sum_by_block(self.claim_texts.text_sums | tokens)}

    def sum_layer(self, seen: SampledLayer) -> dict[str, Tensor]:
        """Return the sums of one layer, by quantity, each without the layer's axis."""
        if self.similarities is not None:
            self.similarities.add_layer(seen.output)
        claims = measure_claims(
            self.claim_texts, seen.output, seen.columns, seen.itself, self.counting.theta, self.counting.tau
        )
        outputs = sum_outputs(seen.output, self.real) if self.counting.shape.width else {}
        return {**self.pair_weights.sum_layer(seen.output), **outputs, **self._sum_by_block(claims)}

    def sum_relations(self, seen: SampledLayer) -> dict[str, Tensor]:
        """Return the sums of labelled relations of one layer, for `add_relation_sums`; empty if there are none."""
        if self.labelled is None or seen.maps is None:
            return {}
        return self.labelled.sum_layer(seen.output, seen.maps, self.counting.theta)

    def add_texts_to(self, tally: Tally) -> None:
        """Add the sums that belong to the texts alone to a tally."""
        add_sample_sums(tally.arrays, self.sum_texts())
        self.add_relations_to(tally)

    def add_layer_to(self, tally: Tally, seen: SampledLayer, layer: int) -> None:
        """Add the sums of one layer to a tally."""
        add_sample_sums(tally.arrays, self.sum_layer(seen), layer)
        self.add_relations_to(tally, self.sum_relations(seen), layer)

    def add_relations_to(
        self, tally: Tally, sums: Mapping[str, Tensor] | None = None, layer: int | None = None
    ) -> None:
        """Add sums of labelled relations to a tally: those of a layer, or those of the texts alone."""
        if self.labelled is not None:
            add_relation_sums(tally, self.labelled.labels, self.labelled.sum_texts() if sums is None else sums, layer)

    def finish(self) -> dict[str, Tensor]:
        """Return the sums that need all layers, by quantity. Called once, after the last layer."""
        return {} if self.similarities is None else self.similarities.sum_texts()

    def _sum_by_block(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum arrays with one entry per text over the texts of each block."""
        sums = {}
        for name, array in values.items():
            dtype = torch.float64 if BY_NAME[name].real else torch.int64
            zeros = torch.zeros((BLOCKS, *array.shape[1:]), dtype=dtype, device=array.device)
            sums[name] = zeros.index_add_(0, self.blocks, array.to(dtype))
        return sums


def add_sample_sums(arrays: Mapping[str, Any], sums: Mapping[str, Tensor], layer: int | None = None) -> None:
    """Add what `SampleSums` returns to the arrays of a backend, numpy's or tensors on any device.

    Sums that these arrays do not have, such as those of diagonals in cross-attention, are left out.
    """
    for name, values in sums.items():
        if name not in arrays:
            continue
        target = arrays[name]
        if layer is not None:
            quantity = BY_NAME[name]
            axis = quantity.dims.index("layer") + quantity.in_blocks
            target = target[(*(slice(None),) * axis, layer)]
        corner = target[tuple(slice(size) for size in values.shape)]
        corner += values if isinstance(target, Tensor) else values.cpu().numpy()

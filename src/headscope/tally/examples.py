"""The choice of examples while batches go through the model: what all fast backends share, see `example_store.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headscope.array_types import Bools
from headscope.corpus.windows import Batch, Window
from headscope.tally.example_store import (
    COUNTS,
    LEVELS,
    NEIGHBORS,
    NO_PAIR,
    PLACE_BITS,
    RATES,
    SKETCH,
    STRONGEST,
    STRONGEST_PAIRS,
    ExampleStore,
    keep_ids,
    rank_windows,
    select_rates,
)
from headscope.tally.quantities import MAX_PLACES, Shape

if TYPE_CHECKING:
    from headscope.tally.tally import TallySettings

Array = np.ndarray[Any, Any]

MAX_ELEMENTS = {"cpu": 1 << 18, "other": 1 << 24}
"""number of similarities computed at a time, by device: on a CPU they should stay in its cache"""


class ExampleTexts:
    """The sampled texts of a batch, from which examples are chosen while it goes through the model, layer by layer.

    Only windows that come before those chosen so far can be examples, so few pairs have to be found.

    Args:
        windows: The sampled texts.
        theta: Threshold of high pairs.
        chosen: What is chosen of the batches before; None: not known.
    """

    def __init__(self, windows: Sequence[Window], shape: Shape, theta: float, chosen: ExampleStore | None) -> None:
        self.shape, self.theta, self.chosen = shape, theta, chosen
        digests = np.array([window.digest for window in windows], np.uint64)
        self.digests, self.rows = np.unique(digests, return_index=True)
        """digests of different windows in ascending order, and which of the texts they are"""
        self.windows = [windows[row] for row in self.rows]
        self.lengths = torch.tensor([len(window) for window in self.windows])
        grid = (len(self.windows), shape.layers, shape.heads)
        self.counts = np.zeros((*grid, len(COUNTS)), np.int64)
        self.keys = np.full((*grid, STRONGEST_PAIRS), NO_PAIR, np.int32)
        last = 2**64 if chosen is None else chosen.last_digest
        self.in_sketch = np.array([k < SKETCH and int(digest) <= last for k, digest in enumerate(self.digests)])
        self.top = np.zeros((shape.layers, shape.heads, len(RATES), min(STRONGEST, len(self.windows))), np.int64)

    @classmethod
    def from_batch(
        cls, batch: Batch, counting: TallySettings, chosen: ExampleStore | None = None
    ) -> ExampleTexts | None:
        """Return the sampled texts of a batch; None if there are none, or examples are not asked for."""
        if not counting.shape.examples:
            return None
        windows = [window for window in batch.windows if window.is_sampled(counting.fraction)]
        return cls(windows, counting.shape, counting.theta, chosen) if windows else None

    def observe_layer(self, layer: int, output: Tensor, counts: Array) -> None:
        """Choose examples in one layer, and find the pairs of these.

        Args:
            layer: Number of the layer.
            output: What the heads write, (text, position, head, width); padding is arbitrary.
            counts: (text, head, count)
        """
        texts, heads = np.nonzero(self._choose(layer, counts))
        if len(texts):
            vectors = output[torch.from_numpy(self.rows[texts]), :, torch.from_numpy(heads)]
            keys = find_strongest_pairs(vectors, self.lengths[torch.from_numpy(texts)], self.theta)
            self.keys[texts, layer, heads] = keys.cpu().numpy()

    def set_layer(self, layer: int, counts: Array, keys: Array) -> None:
        """Choose examples in one layer, where the pairs of all texts (text, head, pair) are known."""
        chosen = self._choose(layer, counts)
        self.keys[:, layer] = np.where(chosen[..., None], keys[self.rows], NO_PAIR)

    def _choose(self, layer: int, counts: Array) -> Bools:
        """Return which heads of which windows are examples, (window, head)."""
        counts = counts[self.rows]
        self.counts[:, layer] = counts
        sizes = (counts.shape[1], len(RATES), len(counts), len(COUNTS))
        by_head = np.broadcast_to(counts.swapaxes(0, 1)[:, None], sizes)
        digests = np.broadcast_to(self.digests, by_head.shape[:-1])
        top = rank_windows(digests, by_head)[..., :STRONGEST]
        self.top[layer] = top
        is_example = np.repeat(self.in_sketch[:, None], counts.shape[1], axis=1)
        rates, pairs = (np.take_along_axis(values, top, -1) for values in (select_rates(by_head), by_head[..., 0]))
        possible = rates >= 0
        if self.chosen is not None:
            last = self.chosen.top_counts[layer, :, :, -1:]
            last_rates, last_pairs = select_rates(last), last[..., 0]
            possible &= (rates > last_rates) | ((rates == last_rates) & (pairs >= last_pairs))
        self.top[layer] = np.where(possible, top, -1)
        heads = np.broadcast_to(np.arange(counts.shape[1])[:, None, None], top.shape)
        is_example[top[possible], heads[possible]] = True
        return is_example

    def collect(self) -> ExampleStore:
        """Return the examples of the batch, when all layers were seen."""
        store = ExampleStore(self.shape.layers, self.shape.heads)
        store.sketch_digests = self.digests[self.in_sketch]
        store.sketch_counts, store.sketch_keys = self.counts[self.in_sketch], self.keys[self.in_sketch]
        filled, top = self.top >= 0, self.top.clip(0)
        layers, heads = np.indices(top.shape)[:2]
        k = top.shape[-1]
        store.top_digests[..., :k] = np.where(filled, self.digests[top], 0)
        store.top_counts[..., :k, :] = np.where(filled[..., None], self.counts[top, layers, heads], 0)
        store.top_keys[..., :k, :] = np.where(filled[..., None], self.keys[top, layers, heads], NO_PAIR)
        used = np.unique(np.concatenate([np.flatnonzero(self.in_sketch), self.top[filled]]))
        store.windows = {int(self.digests[k]): keep_ids(self.windows[k]) for k in used}
        return store


def count_head_pairs(output: Tensor, ids: Tensor, sentences: Tensor, lengths: Tensor, theta: float) -> Tensor:
    """Return the counts of every head of several texts, (text, head, count), in double precision.

    Args:
        output: What the heads write, (text, position, head, width); padding is arbitrary.
        ids: (text, position)
        sentences: (text, position)
        lengths: (text,)
        theta: Threshold of high pairs.
    """
    matrix, real = _compare_tokens(output.transpose(1, 2), lengths[:, None])
    high = (matrix > theta * matrix.amax((2, 3), keepdim=True)).double()
    n = ids.shape[1]
    positions = torch.arange(n, device=ids.device)
    distance = positions[None, :] - positions[:, None]
    real = real[:, 0, :, 0]
    equal = ((ids[:, :, None] == ids[:, None, :]) & real[:, None, :]).double()
    same = (sentences[:, :, None] == sentences[:, None, :]).double()
    upper = (distance > 0).double()
    masks = (torch.ones_like(equal), equal, same, (distance <= NEIGHBORS).expand_as(equal), distance.expand_as(equal))
    counts = high.flatten(2) @ torch.stack([(upper * mask).flatten(1) for mask in masks], 2)
    # A pair of equal tokens includes its token once, see `TorchTallier._count_inclusions`.
    dominant = ((high.sum(3) - (high * equal[:, None]).sum(3) / 2) @ equal).amax(2)
    return torch.cat([counts[..., :4], dominant[..., None], counts[..., 4:]], 2).round().long()


def find_strongest_pairs(vectors: Tensor, lengths: Tensor, theta: float) -> Tensor:
    """Return the strongest high pairs of some heads' outputs (row, position, width): (row, pair).

    A pair is stored as one number: its similarity in steps of 1/255 of the largest, then the order of (i, j).
    """
    n = vectors.shape[1]
    step = max(1, MAX_ELEMENTS["cpu" if vectors.device.type == "cpu" else "other"] // n**2)
    parts = [slice(start, start + step) for start in range(0, len(vectors), step)]
    return torch.cat([_find_strongest(vectors[part], lengths[part], theta) for part in parts])


def _find_strongest(vectors: Tensor, lengths: Tensor, theta: float) -> Tensor:
    matrix, _ = _compare_tokens(vectors, lengths)
    shown = min(vectors.shape[1], MAX_PLACES)
    largest = matrix.amax((1, 2))[:, None]
    matrix = matrix[:, :shown, :shown].masked_fill_(_mark_lower(shown, vectors.device), -torch.inf).flatten(1)
    all_places = torch.arange(shown**2, device=vectors.device).expand(len(matrix), -1)
    count = min(STRONGEST_PAIRS, shown**2)
    if vectors.device.type != "cpu":  # which rows are unclear below would have to be waited for
        keys = _encode_pairs(matrix, all_places, largest, theta, shown).topk(count, dim=1).values
    else:
        candidates = matrix.topk(min(2 * count, shown**2), dim=1)
        keys = _encode_pairs(*candidates, largest, theta, shown).sort(dim=1, descending=True).values
        # Pairs of the same step are ordered by position, and some of them may not be among the largest similarities.
        last, beyond = (keys[:, k] >> 2 * PLACE_BITS for k in (count - 1, -1))
        unclear = ((last == beyond) & (beyond >= 0)).nonzero()[:, 0]
        if len(unclear):
            all_keys = _encode_pairs(matrix[unclear], all_places[unclear], largest[unclear], theta, shown)
            keys[unclear, :count] = all_keys.topk(count, dim=1).values
    keys = keys[:, :count]
    return torch.nn.functional.pad(keys, (0, STRONGEST_PAIRS - keys.shape[1]), value=NO_PAIR).int()


def _encode_pairs(values: Tensor, places: Tensor, largest: Tensor, theta: float, shown: int) -> Tensor:
    """Return similarities at places i · shown + j as keys, see `decode_pairs`."""
    is_high = (values > theta * largest) & (largest > 0)
    level = (LEVELS * values / torch.where(largest > 0, largest, 1)).nan_to_num().round().clamp(1, LEVELS).long()
    order = (1 << 2 * PLACE_BITS) - 1 - ((places // shown << PLACE_BITS) + places % shown)
    return torch.where(is_high, (level << 2 * PLACE_BITS) + order, NO_PAIR)


@lru_cache(maxsize=16)
def _mark_lower(size: int, device: torch.device) -> Tensor:
    """Return a mask of the elements that are not above the diagonal."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()


def _compare_tokens(vectors: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return similarities of outputs (…, position, width), 0 on the diagonal and on padding, and which positions are
    not padding."""
    dtype = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    real = torch.arange(vectors.shape[-2], device=vectors.device) < lengths[..., None].to(vectors.device)
    vectors = vectors.to(dtype).masked_fill(~real[..., None], 0)
    matrix = vectors @ vectors.transpose(-1, -2)
    matrix.diagonal(dim1=-2, dim2=-1).zero_()
    return matrix, real[..., None]

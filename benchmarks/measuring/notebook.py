"""The notebook way: what people do today to get these numbers.

Every map and every head's output of all layers is kept (`output_attentions=True`, a hook before each output
projection), moved to numpy, and then looped over: texts, layers, heads. The statistics of one matrix are numpy's. It
computes the sums below and not those of the sample (values' histogram, random pairs, maps without lines).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.model.model import Model

THETA = 0.3
COUNTS = ("pairs", "equal", "same", "equal_same", "distance_sum", "texts_with_pairs")


@dataclass
class Sums:
    """What the notebook adds up, under the names of a study."""

    layers: int
    heads: int
    length: int
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, lh = self.length, (self.layers, self.heads)
        self.arrays = {name: np.zeros(lh, dtype=np.int64) for name in COUNTS}
        self.arrays |= {
            "distance": np.zeros((*lh, n - 1), dtype=np.int64),
            "location": np.zeros((*lh, n, n), dtype=np.int64),
            "dominant_share_sum": np.zeros(lh),
            "distinct_dominants": np.zeros((self.layers, self.heads + 1), dtype=np.int64),
            "attention": np.zeros((*lh, n, n)),
            "attention_offset": np.zeros((*lh, 2 * n - 1)),
        }


def kept(model: Model, batch: Batch) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each layer's head outputs (text, position, head, width) and maps (text, head, query, key), as numpy."""
    network, outputs = model.network, []

    def keep(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        outputs.append(given[0].detach())

    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    hooks = [layer.attention.output.dense.register_forward_pre_hook(keep) for layer in network.encoder.layer]
    with torch.no_grad():
        ids = torch.from_numpy(batch.ids).to(model.device)
        mask = torch.from_numpy(batch.real).long().to(model.device)
        maps = network(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    network.set_attn_implementation(before)
    heads = network.config.num_attention_heads
    split = [held.reshape(*held.shape[:2], heads, -1).float().cpu().numpy() for held in outputs]
    return split, [each.float().cpu().numpy() for each in maps]


def add_up(model: Model, batches: list[Batch], length: int) -> Sums:
    """Run the model over the batches, keep all, then loop."""
    held = [(batch, *kept(model, batch)) for batch in batches]
    layers, heads = len(held[0][1]), held[0][1][0].shape[2]
    sums = Sums(layers, heads, length)
    for batch, outputs, maps in held:
        for row, window in enumerate(batch.windows):
            n = len(window)
            for layer in range(layers):
                dominants = set()
                for head in range(heads):
                    found = _count_head(sums, layer, head, window, outputs[layer][row, :n, head])
                    dominants |= {found} - {None}
                    _count_map(sums, layer, head, maps[layer][row, head, :n, :n])
                sums.arrays["distinct_dominants"][layer, len(dominants)] += 1
    return sums


def _count_head(sums: Sums, layer: int, head: int, window: Window, output: np.ndarray) -> int | None:
    """Everything about one head's similarity matrix; returns its dominant token."""
    to, at, n = sums.arrays, (layer, head), len(window)
    matrix = output @ output.T
    np.fill_diagonal(matrix, 0)
    high = matrix > THETA * matrix.max()
    rows, columns = np.nonzero(np.triu(high, k=1))
    equal = window.ids[rows] == window.ids[columns]
    same = window.sentence[rows] == window.sentence[columns]
    apart = columns - rows
    to["pairs"][at] += len(rows)
    to["equal"][at] += equal.sum()
    to["same"][at] += same.sum()
    to["equal_same"][at] += (equal & same).sum()
    to["distance_sum"][at] += apart.sum()
    to["distance"][at] += np.bincount(apart - 1, minlength=sums.length - 1)
    to["location"][at][:n, :n] += high
    if len(rows) == 0:
        return None
    values, first, place = np.unique(window.ids, return_index=True, return_inverse=True)
    ends = np.concatenate([place[rows], place[columns[~equal]]])  # a pair of equal tokens includes its token once
    included = np.bincount(ends, minlength=len(values))
    most = np.flatnonzero(included == included.max())
    dominant = most[first[most].argmin()]  # of several the one met first
    to["texts_with_pairs"][at] += 1
    to["dominant_share_sum"][at] += included[dominant] / len(rows)
    return int(values[dominant])


def _count_map(sums: Sums, layer: int, head: int, attention: np.ndarray) -> None:
    n = len(attention)
    sums.arrays["attention"][layer, head, :n, :n] += attention
    offsets = np.arange(n)[None, :] - np.arange(n)[:, None] + sums.length - 1
    by_offset = np.bincount(offsets.ravel(), weights=attention.ravel(), minlength=2 * sums.length - 1)
    sums.arrays["attention_offset"][layer, head] += by_offset

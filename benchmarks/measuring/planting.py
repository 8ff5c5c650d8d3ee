"""Heads that do not exist: outputs composed of parts of known strength, over the tokens of real windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.sample_sums import add_sample_sums
from headscope.tally.signal_shares import PairWeights
from headscope.tally.tally import Tally

WIDTH = 32
BATCH = 16
"""windows counted together"""
RELATIONS = ("equal", "same", "near")
"""a vector for each token value of a text, for each of its sentences, and a moving average over `NEAR` places"""
NEAR = 3


def plant_head(
    windows: Sequence[Window],
    shares: Mapping[str, float],
    seed: int,
    *,
    offset: float = 0.0,
    tail: float = 0.0,
    shuffle: bool = False,
    constant: bool = False,
    width: int = WIDTH,
) -> list[np.ndarray]:
    """Return a head's outputs for each window (N, width): signals, noise, and position.

    Args:
        shares: Shares of the variance by name of the relation; the rest is noise. `position` is the share of position
            in everything.
        offset: Added to all outputs.
        tail: Spreads the lengths of noise by token value: the standard deviation of their logarithm.
        shuffle: Exchange the places of each text.
        constant: The vectors of token values are the same in all texts.
    """
    random = np.random.default_rng(seed)
    longest = max(len(window) for window in windows)
    position = shares.get("position", 0.0)
    noise = 1 - sum(shares.get(name, 0.0) for name in RELATIONS)
    means = random.normal(size=(longest, width)) * np.sqrt(position / (1 - position) if position < 1 else 1.0)
    scale = 1.0 if position < 1 else 0.0
    vocabulary = 1 + max(int(window.ids.max()) for window in windows)
    vectors = random.normal(size=(vocabulary, width)) if constant else None
    lengths = np.exp(tail * random.normal(size=vocabulary))
    lengths /= np.sqrt(np.mean([np.mean(lengths[window.ids] ** 2) for window in windows]))
    outputs = []
    for window in windows:
        n = len(window)
        output = np.sqrt(noise) * random.normal(size=(n, width)) * lengths[window.ids][:, None]
        tokens = vectors[window.ids] if vectors is not None else _draw_by_group(window.ids, random, width)
        output += np.sqrt(shares.get("equal", 0.0)) * tokens
        output += np.sqrt(shares.get("same", 0.0)) * _draw_by_group(window.sentence, random, width)
        drawn = random.normal(size=(n + NEAR - 1, width))
        averages = sum(drawn[k : k + n] for k in range(NEAR)) / np.sqrt(NEAR)
        output += np.sqrt(shares.get("near", 0.0)) * averages
        if shuffle:
            output = output[random.permutation(n)]
        outputs.append(scale * output + means[:n] + offset)
    return outputs


def _draw_by_group(labels: np.ndarray, random: np.random.Generator, width: int) -> np.ndarray:
    _, numbers = np.unique(labels, return_inverse=True)
    return random.normal(size=(numbers.max() + 1, width))[numbers]


def study_heads(windows: Sequence[Window], heads: Sequence[Sequence[np.ndarray]]) -> Study:
    """Return a study of one layer with these heads, whose outputs are given window by window. Only what signal shares
    need is counted."""
    longest = max(len(window) for window in windows)
    outputs = torch.zeros((len(windows), longest, len(heads), heads[0][0].shape[1]), dtype=torch.float64)
    for number, head in enumerate(heads):
        for row, output in enumerate(head):
            outputs[row, : len(output), number] = torch.from_numpy(output)
    tally = Tally.zeros(Shape(1, len(heads), longest, maps=False, width=outputs.shape[3]))
    for start in range(0, len(windows), BATCH):
        batch = Batch.of(windows[start : start + BATCH])
        weights = PairWeights.from_batch(batch, np.arange(len(batch)), "cpu")
        add_sample_sums(tally.arrays, weights.sum_texts())
        add_sample_sums(tally.arrays, weights.sum_layer(outputs[start : start + BATCH]), layer=0)
        for window in batch.windows:
            for name in ("texts", "sample_texts"):
                tally[name][window.block] += 1
            tally["window_tokens"][window.block, len(window)] += 1
    return Study(label_sums(tally, lambda ids: [str(k) for k in ids]))

"""Heads that do not exist: outputs composed of parts of known strength, over the tokens of real windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from headscope.tally.torch_backend import TorchTallier

WIDTH = 32
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
) -> list[np.ndarray]:
    """Return a head's outputs for each window (N, WIDTH): signals, noise, and position.

    Args:
        shares: Shares of the variance by name of the relation; the rest is noise, unless there is `noise`. `position` is
            the share of position in everything.
        offset: Added to all outputs.
        tail: Spreads the lengths of noise by token value: the standard deviation of their logarithm.
        shuffle: Exchange the places of each text.
        constant: The vectors of token values are the same in all texts.
    """
    random = np.random.default_rng(seed)
    longest = max(len(window) for window in windows)
    position = shares.get("position", 0.0)
    noise = shares.get("noise", 1 - sum(shares.get(name, 0.0) for name in RELATIONS))
    means = random.normal(size=(longest, WIDTH)) * np.sqrt(position / (1 - position) if position < 1 else 1.0)
    scale = 1.0 if position < 1 else 0.0
    vocabulary = 1 + max(int(window.ids.max()) for window in windows)
    vectors = random.normal(size=(vocabulary, WIDTH)) if constant else None
    lengths = np.exp(tail * random.normal(size=vocabulary))
    lengths /= np.sqrt(np.mean([np.mean(lengths[window.ids] ** 2) for window in windows]))
    outputs = []
    for window in windows:
        n = len(window)
        output = np.sqrt(noise) * random.normal(size=(n, WIDTH)) * lengths[window.ids][:, None]
        tokens = vectors[window.ids] if vectors is not None else _draw_by_group(window.ids, random)
        output += np.sqrt(shares.get("equal", 0.0)) * tokens
        output += np.sqrt(shares.get("same", 0.0)) * _draw_by_group(window.sentence, random)
        drawn = random.normal(size=(n + NEAR - 1, WIDTH))
        averages = sum(drawn[k : k + n] for k in range(NEAR)) / np.sqrt(NEAR)
        output += np.sqrt(shares.get("near", 0.0)) * averages
        if shuffle:
            output = output[random.permutation(n)]
        outputs.append(scale * output + means[:n] + offset)
    return outputs


def _draw_by_group(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    _, numbers = np.unique(labels, return_inverse=True)
    return random.normal(size=(numbers.max() + 1, WIDTH))[numbers]


def study_heads(windows: Sequence[Window], heads: Sequence[Sequence[np.ndarray]]) -> Study:
    """Return a study of one layer with these heads, whose outputs are given window by window."""
    longest = max(len(window) for window in windows)
    outputs = torch.zeros((len(windows), longest, len(heads), heads[0][0].shape[1]), dtype=torch.float64)
    for number, head in enumerate(heads):
        for row, output in enumerate(head):
            outputs[row, : len(output), number] = torch.from_numpy(output)
    maps = torch.full((len(windows), len(heads), longest, longest), 1 / longest)
    shape = Shape(1, len(heads), longest, maps=False, width=outputs.shape[3])
    tallier = TorchTallier(TallySettings(shape, 0.3, 0.3, 1.0))
    for start in range(0, len(windows), 64):
        part = slice(start, start + 64)
        batch = Batch.of(windows[part])
        length = batch.ids.shape[1]
        tallier.begin(batch)
        tallier.observe_layer(0, outputs[part, :length], maps[part, :, :length, :length])
        tallier.end()
    return Study(label_sums(tallier.get_sums(), lambda ids: [str(k) for k in ids]))

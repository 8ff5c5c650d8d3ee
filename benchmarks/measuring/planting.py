"""Heads that never were: outputs made of a signal of known strength and noise, over the tokens of real windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headscope.corpus.windows import Window

WIDTH = 32
SIGNALS = ("sentence", "token", "both", "neighbour")
"""One vector for each sentence, for each token value, half of each; or each place's shared half with the next."""


def planted(
    window: Window, signal: str, ratio: float, random: np.random.Generator, *, offset: float = 0.0, tail: float = 0.0
) -> np.ndarray:
    """Outputs (N, d): `ratio` is the power of the signal over that of the noise. `offset` is added to all of them, and
    `tail` spreads their lengths (the standard deviation of their logarithm)."""
    n = len(window)
    made = np.sqrt(ratio) * _signal(window, signal, random) + random.normal(size=(n, WIDTH))
    return made * np.exp(tail * random.normal(size=(n, 1))) + offset


def _signal(window: Window, signal: str, random: np.random.Generator) -> np.ndarray:
    if signal == "sentence":
        return _shared(window.sentence, random)
    if signal == "token":
        return _shared(window.ids, random)
    if signal == "both":
        return (_shared(window.sentence, random) + _shared(window.ids, random)) / np.sqrt(2)
    if signal == "neighbour":
        drawn = random.normal(size=(len(window) + 1, WIDTH))
        return (drawn[1:] + drawn[:-1]) / np.sqrt(2)
    raise ValueError(f"no signal {signal}; there are: {', '.join(SIGNALS)}")


def _shared(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    _, numbers = np.unique(labels, return_inverse=True)
    return random.normal(size=(numbers.max() + 1, WIDTH))[numbers]


def stacked(outputs: Sequence[Sequence[np.ndarray]]) -> torch.Tensor:
    """Outputs of heads of windows (text, head) as a model gives them: (text, place, head, width), padded."""
    longest = max(len(heads[0]) for heads in outputs)
    made = torch.zeros((len(outputs), longest, len(outputs[0]), WIDTH))
    for row, heads in enumerate(outputs):
        made[row, : len(heads[0])] = torch.from_numpy(np.stack(heads, axis=1))
    return made


def lines_at_ends(windows: Sequence[Window], heads: int) -> torch.Tensor:
    """Attention maps (text, head, query, key) that go to the ends of sentences, so that lines are there."""
    longest = max(len(window) for window in windows)
    maps = torch.zeros((len(windows), heads, longest, longest))
    for row, window in enumerate(windows):
        n = len(window)
        weights = 0.1 + torch.from_numpy(window.end.astype(np.float32))
        maps[row, :, :n, :n] = weights / weights.sum()
    return maps

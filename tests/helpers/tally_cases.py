"""Random inputs of a tallier, and the comparison of two tallies."""

from __future__ import annotations

import numpy as np
import torch

from headscope.tally.quantities import QUANTITIES, Shape
from headscope.tally.tally import Tally, TallySettings
from tests.helpers.synthetic import make_masked_maps, tally, window

DIFFERENCES = ("contrast_sums", "contrast_products", "pair_weights")
"""sums with elements that are differences of large numbers"""


class Case:
    """A random batch: windows of different lengths, different kinds of outputs, garbage on the padding."""

    def __init__(self, seed: int, lengths: list[int], heads: int, layers: int, fraction: float, causal: bool) -> None:
        random = np.random.default_rng(seed)
        longest = max(lengths)
        self.windows = [window(random.integers(1, 9, n).tolist()) for n in lengths]
        self.counting = TallySettings(Shape(layers, heads, longest + 2, width=3), 0.3, 0.3, fraction, causal)
        self.outputs = [self._make_output(random, lengths, heads) for _ in range(layers)]
        self.maps = [make_masked_maps(random, self.windows, heads, longest, causal=causal) for _ in range(layers)]

    def _make_output(self, random: np.random.Generator, lengths: list[int], heads: int) -> torch.Tensor:
        values = random.normal(random.choice([-1.0, 0.0, 1.0]), 1, (len(lengths), max(lengths), heads, 3))
        kind = random.integers(4)
        if kind == 0:
            values = np.round(values)  # many equal similarities, and heads of zeros
        elif kind == 1:
            values[:, :, 0] = 0
        elif kind == 2:
            # One output with alternating signs: half of the similarities are negative.
            values[:, :, -1] = values[:, :1, -1] * np.where(np.arange(max(lengths)) % 2, -1, 1)[None, :, None]
        for row, n in enumerate(lengths):
            values[row, n:] = np.nan  # outputs on padding must not matter
        return torch.from_numpy(values)

    def tally(self, kernel: str, rows: list[int] | None = None) -> Tally:
        selected = list(range(len(self.windows))) if rows is None else rows
        windows = [self.windows[row] for row in selected]
        longest = max(len(text) for text in windows)
        outputs = [output[selected, :longest] for output in self.outputs]
        maps = [layer_maps[selected][:, :, :longest, :longest] for layer_maps in self.maps]
        return tally(kernel, self.counting, windows, outputs, maps)


def assert_reals_close(name: str, actual: Tally, expected: Tally, *, rtol: float, atol: float) -> None:
    """Assert that the arrays of a quantity are close; differences of large numbers, relative to the largest."""
    if name in DIFFERENCES:
        atol *= max(1.0, float(np.abs(expected[name]).max()))
    np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


def assert_equal(actual: Tally, expected: Tally) -> None:
    for quantity in QUANTITIES:
        if quantity.real:
            assert_reals_close(quantity.name, actual, expected, rtol=1e-12, atol=1e-13)
        else:
            np.testing.assert_array_equal(actual[quantity.name], expected[quantity.name], err_msg=quantity.name)
    assert actual.most_attended.keys() == expected.most_attended.keys()
    for token, counts in actual.most_attended.items():
        np.testing.assert_array_equal(counts, expected.most_attended[token])

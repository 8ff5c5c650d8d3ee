"""Random queries, keys and values, for tally backends that compute attention themselves."""

from __future__ import annotations

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.model.capture.plain_attention import AttentionInputs
from headscope.tally.example_store import decode_pairs
from headscope.tally.quantities import QUANTITIES
from headscope.tally.tally import Tally
from tests.helpers.synthetic import window
from tests.helpers.tally_cases import assert_reals_close

FORBIDDEN = torch.finfo(torch.float32).min


def windows_of(random: np.random.Generator, lengths: list[int]) -> list[Window]:
    return [window(random.integers(1, 9, n).tolist()) for n in lengths]


def question(
    random: np.random.Generator, batch: Batch, heads: int, *, width: int = 5, group: int = 1, causal: bool = False,
    value_width: int | None = None, dtype: torch.dtype = torch.float32,
) -> AttentionInputs:  # fmt: skip
    """Return random attention inputs of one layer, in which a few tokens draw much of the attention.

    Tensors are views with heads and positions exchanged, as models produce them.
    """
    count, n = batch.ids.shape

    def make_tensor(heads: int, width: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(0.2, 1, (count, n, heads, width))).to(dtype).transpose(1, 2)

    is_real = torch.from_numpy(batch.real)
    is_allowed = is_real[:, None, None, :].expand(count, 1, n, n)
    if causal:
        is_allowed = is_allowed & torch.ones(n, n, dtype=torch.bool).tril()
    mask = None if bool(is_allowed.all()) else torch.where(is_allowed, 0.0, FORBIDDEN).to(dtype)
    query, key = make_tensor(heads, width), make_tensor(heads // group, width)
    query[..., 0] += 1
    key[..., 0] += torch.from_numpy(random.choice([0.0, 2 * width**0.5], (count, 1, n), p=[0.9, 0.1])).to(dtype)
    return AttentionInputs(query, key, make_tensor(heads // group, value_width or width), mask, width**-0.5, causal)


def differences(first: Tally, second: Tally, *, rtol: float, atol: float) -> dict[str, int]:
    """Return how much integers differ, by quantity. Assert that reals agree."""
    counts = {}
    for quantity in QUANTITIES:
        if quantity.name not in first.arrays:
            continue
        if quantity.real:
            assert_reals_close(quantity.name, first, second, rtol=rtol, atol=atol)
        else:
            difference = int(np.abs(first[quantity.name] - second[quantity.name]).sum())
            if difference:
                counts[quantity.name] = difference
    return counts


def assert_similar_examples(actual: Tally, expected: Tally) -> None:
    """Assert that dominant tokens and examples agree; similarities may be rounded to the step beside."""
    assert actual.dominant_tokens.list_entries().tolist() == expected.dominant_tokens.list_entries().tolist()
    arrays, expected_arrays = actual.examples.to_arrays(), expected.examples.to_arrays()
    for name, array in expected_arrays.items():
        if name.endswith("_keys"):
            levels, expected_levels = (decode_pairs(keys)[2] for keys in (arrays[name], array))
            assert np.abs(levels - expected_levels).max(initial=0) <= 1, name
        else:
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)

"""Random questions of plain attention, for talliers that compute attention themselves."""

from __future__ import annotations

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.model.capture.plain import Question
from headscope.tally.quantities import QUANTITIES
from headscope.tally.tally import Tally
from tests.synthetic import window

FORBIDDEN = torch.finfo(torch.float32).min


def windows_of(random: np.random.Generator, lengths: list[int]) -> list[Window]:
    return [window(random.integers(1, 9, n).tolist()) for n in lengths]


def question(
    random: np.random.Generator, batch: Batch, heads: int, *, width: int = 5, group: int = 1, causal: bool = False,
    value_width: int | None = None, dtype: torch.dtype = torch.float32,
) -> Question:  # fmt: skip
    """One layer's, a few tokens drawing much of the attention. Tensors are views with heads and places exchanged, as
    models make them."""
    count, n = batch.ids.shape

    def made(each: int, wide: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(0.2, 1, (count, n, each, wide))).to(dtype).transpose(1, 2)

    real = torch.from_numpy(batch.real)
    allowed = real[:, None, None, :].expand(count, 1, n, n)
    if causal:
        allowed = allowed & torch.ones(n, n, dtype=torch.bool).tril()
    mask = None if bool(allowed.all()) else torch.where(allowed, 0.0, FORBIDDEN).to(dtype)
    query, key = made(heads, width), made(heads // group, width)
    query[..., 0] += 1
    key[..., 0] += torch.from_numpy(random.choice([0.0, 2 * width**0.5], (count, 1, n), p=[0.9, 0.1])).to(dtype)
    return Question(query, key, made(heads // group, value_width or width), mask, width**-0.5, causal)


def differences(one: Tally, other: Tally, *, rtol: float, atol: float) -> dict[str, int]:
    """How many counts differ, by quantity; reals that do are an error."""
    found = {}
    for quantity in QUANTITIES:
        if quantity.name not in one.arrays:
            continue
        if quantity.real:
            np.testing.assert_allclose(
                one[quantity.name], other[quantity.name], rtol=rtol, atol=atol, err_msg=quantity.name
            )
        else:
            apart = int(np.abs(one[quantity.name] - other[quantity.name]).sum())
            if apart:
                found[quantity.name] = apart
    return found

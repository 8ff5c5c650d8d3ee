"""Measure how much each head writes: the size of its output over a corpus, before and after the output projection."""

from __future__ import annotations

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from headscope.array_types import Floats
from headscope.devices import send, to_float64
from headscope.errors import ModelError
from headscope.model.model import Model
from headscope.pruning.projection_sites import Site, find_sites
from headscope.pruning.text_batches import NumberedBatch


def compute_output_norms(model: Model, batches: list[NumberedBatch], *, projected: bool = False) -> Floats:
    """Return the root mean square, over real tokens, of the length of each head's output: (layers, heads).

    Args:
        projected: Measure what the output projection makes of it and adds to the token.
    """
    weights = None
    if projected:
        weights = [_get_head_weights(model, k, site) for k, site in enumerate(find_sites(model).layers)]
    sums = np.zeros((model.architecture.layers, model.architecture.heads))
    tokens = 0
    for numbered in batches:
        (real,) = send([numbered.batch.real], model.device)

        def add_squares(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            written = to_float64(output[real])
            if weights is not None:
                written = torch.einsum("thd,hdo->tho", written, weights[layer])
            sums[layer] += written.square().sum(dim=(0, 2)).cpu().numpy()

        model.observe(numbered.batch, add_squares)
        tokens += int(numbered.batch.real.sum())
    return np.sqrt(sums / tokens)


def _get_head_weights(model: Model, layer: int, site: Site | None) -> torch.Tensor:
    """Return the part of a projection's weight that each head has: (heads, width, model's width)."""
    module = None if site is None else site.module
    if site is None or not isinstance(module, (torch.nn.Linear, Conv1D)):
        raise ModelError(
            f"{model.name}: the output projection of layer {model.architecture.numbers[layer]} is no plain linear map "
            f"({type(module).__name__}), so what a head adds is not known: rank by norm instead of projected-norm"
        )
    rows = module.weight.detach() if isinstance(module, Conv1D) else module.weight.detach().T
    return to_float64(rows[: site.heads * site.width].reshape(site.heads, site.width, -1))

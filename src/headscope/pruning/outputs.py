"""How much each head writes: the size of its output over a corpus, before and after the output projection."""

from __future__ import annotations

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from headscope.devices import send, to_float64
from headscope.errors import ModelError
from headscope.model.model import Model
from headscope.pruning.sites import Site, sites
from headscope.pruning.texts import Numbered
from headscope.types import Floats


def output_norms(model: Model, batches: list[Numbered], *, projected: bool = False) -> Floats:
    """(layers, heads): the root mean square, over real tokens, of the length of what a head writes; `projected`: of
    what the output projection makes of it and adds to the token."""
    weights = [_parts(model, k, site) for k, site in enumerate(sites(model).layers)] if projected else None
    sums = np.zeros((model.anatomy.layers, model.anatomy.heads))
    tokens = 0
    for each in batches:
        (real,) = send([each.batch.real], model.device)

        def see(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            written = to_float64(output[real])
            if weights is not None:
                written = torch.einsum("thd,hdo->tho", written, weights[layer])
            sums[layer] += written.square().sum(dim=(0, 2)).cpu().numpy()

        model.observe(each.batch, see)
        tokens += int(each.batch.real.sum())
    return np.sqrt(sums / tokens)


def _parts(model: Model, layer: int, site: Site | None) -> torch.Tensor:
    """What a projection does to each head: (head, width, model's width)."""
    module = None if site is None else site.module
    if site is None or not isinstance(module, (torch.nn.Linear, Conv1D)):
        raise ModelError(
            f"{model.name}: the output projection of layer {model.anatomy.numbers[layer]} is no plain linear map "
            f"({type(module).__name__}), so what a head adds is not known: rank by norm instead of projected-norm"
        )
    rows = module.weight.detach() if isinstance(module, Conv1D) else module.weight.detach().T
    return to_float64(rows[: site.heads * site.width].reshape(site.heads, site.width, -1))

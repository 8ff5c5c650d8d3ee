"""How the objective answers to a head, to first order (Michel, Levy, Neubig: "Are Sixteen Heads Really Better than
One?", 2019): each head's output gets a gate, and the gradient with respect to the gates is taken where all are 1."""

from __future__ import annotations

import numpy as np
import torch

from headscope.corpus.windows import Batch
from headscope.devices import to_float64
from headscope.model.model import Model
from headscope.pruning.objective import EmbeddingDistance, objective_of
from headscope.pruning.silencing import gated
from headscope.pruning.texts import Numbered
from headscope.types import Floats

PROBES = 8
"""random directions for each text, in which the change of an embedding is looked at"""


def gradients(model: Model, batches: list[Numbered]) -> Floats:
    """(layers, heads): the mean over texts of |∂loss/∂gate|.

    The embedding distance is least in the untouched model, where its gradient is 0. In its place stands how fast the
    embedding e, of length 1, moves: the root mean square over texts of ‖∂e/∂gate‖, half the square of which is the
    distance to second order. It is estimated from `PROBES` random directions v, drawn by the text alone, as the root of
    the mean of (∂(v·e)/∂gate)².
    """
    objective = objective_of(model)
    sums = np.zeros((model.anatomy.layers, model.anatomy.heads))
    texts = 0
    for window in (window for each in batches for window in each.batch.windows):
        batch = Batch.of([window], model.tokens.pad_id)  # each text has a gradient of its own
        gates = torch.ones(sums.shape, device=model.device, requires_grad=True)
        with model.prepared(), torch.enable_grad(), gated(model, gates):
            if isinstance(objective, EmbeddingDistance):
                sums += _speeds(objective.embeddings(batch)[0], gates, window.digest)
            else:
                sums += to_float64(_gradient(objective.losses(batch)[0], gates).abs()).cpu().numpy()
        texts += 1
    means = sums / texts
    return np.sqrt(means) if isinstance(objective, EmbeddingDistance) else means


def _gradient(value: torch.Tensor, gates: torch.Tensor, *, keep: bool = False) -> torch.Tensor:
    return torch.autograd.grad(value, gates, retain_graph=keep)[0]


def _speeds(embedding: torch.Tensor, gates: torch.Tensor, seed: int) -> Floats:
    """‖∂e/∂gate‖², as random directions tell."""
    unit = torch.nn.functional.normalize(embedding, dim=0)
    drawn = np.random.default_rng(seed).standard_normal((PROBES, len(unit)))
    directions = torch.from_numpy(drawn).to(unit.dtype).to(unit.device)
    found = [to_float64(_gradient(v @ unit, gates, keep=k < PROBES - 1)).square() for k, v in enumerate(directions)]
    return np.asarray(torch.stack(found).mean(dim=0).cpu().numpy())

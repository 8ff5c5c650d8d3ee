"""Compute how sensitive the objective is to each head, to first order.

Each head's output is multiplied by a gate, and the gradient with respect to the gates is taken where all are 1 (Michel,
Levy, Neubig: "Are Sixteen Heads Really Better than One?", 2019).
"""

from __future__ import annotations

import numpy as np
import torch

from headscope.array_types import Floats
from headscope.corpus.windows import Batch
from headscope.devices import to_float64
from headscope.model.model import Model
from headscope.pruning.objective import EmbeddingDistance, choose_objective
from headscope.pruning.silencing import gated
from headscope.pruning.text_batches import NumberedBatch

PROBES = 8
"""random directions for each text, along which the change of an embedding is measured"""


def compute_gate_gradients(model: Model, batches: list[NumberedBatch]) -> Floats:
    """Return the mean over texts of |∂loss/∂gate|: (layers, heads).

    The embedding distance has its minimum at the untouched model, where its gradient is 0. In its place stands how fast
    the embedding e, normalized to length 1, moves: the root mean square over texts of ‖∂e/∂gate‖, half the square of
    which is the distance to second order. It is estimated from `PROBES` random directions v, seeded by the text alone,
    as the root of the mean of (∂(v·e)/∂gate)².
    """
    objective = choose_objective(model)
    sums = np.zeros((model.architecture.layers, model.architecture.heads))
    texts = 0
    for window in (window for numbered in batches for window in numbered.batch.windows):
        batch = Batch.of([window], model.tokens.pad_id)  # the absolute value is taken for each text
        gates = torch.ones(sums.shape, device=model.device, requires_grad=True)
        with model.prepared(), torch.enable_grad(), gated(model, gates):
            if isinstance(objective, EmbeddingDistance):
                sums += _estimate_squared_speeds(objective.compute_embeddings(batch)[0], gates, window.digest)
            else:
                sums += to_float64(_compute_gradient(objective.compute_losses(batch)[0], gates).abs()).cpu().numpy()
        texts += 1
    means = sums / texts
    return np.sqrt(means) if isinstance(objective, EmbeddingDistance) else means


def _compute_gradient(value: torch.Tensor, gates: torch.Tensor, *, keep_graph: bool = False) -> torch.Tensor:
    return torch.autograd.grad(value, gates, retain_graph=keep_graph)[0]


def _estimate_squared_speeds(embedding: torch.Tensor, gates: torch.Tensor, seed: int) -> Floats:
    """Estimate ‖∂e/∂gate‖² from random directions: (layers, heads)."""
    unit = torch.nn.functional.normalize(embedding, dim=0)
    drawn = np.random.default_rng(seed).standard_normal((PROBES, len(unit)))
    directions = torch.from_numpy(drawn).to(unit.dtype).to(unit.device)
    squares = [
        to_float64(_compute_gradient(v @ unit, gates, keep_graph=k < PROBES - 1)).square()
        for k, v in enumerate(directions)
    ]
    return np.asarray(torch.stack(squares).mean(dim=0).cpu().numpy())

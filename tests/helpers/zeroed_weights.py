"""Zero the rows of output projections that read given heads: what silencing must equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.pytorch_utils import Conv1D

from headscope.corpus.windows import Batch
from headscope.model.model import Model
from tests.helpers import tiny


def get_width(model: Model, inputs: Batch) -> int:
    observer = tiny.LayerRecorder()
    model.observe(inputs, observer)
    return observer.outputs[0].shape[-1]


def select_columns(weight: torch.Tensor, module: torch.nn.Module, head: int, width: int) -> torch.Tensor:
    """Return a head's part of a projection's weight."""
    cut = slice(head * width, (head + 1) * width)
    return weight[cut] if isinstance(module, Conv1D) else weight[:, cut]


@contextmanager
def zero_weights(model: Model, heads: list[tuple[int, int]], width: int) -> Iterator[None]:
    """Silence heads in another way: set their columns of the projection's weight to 0."""
    calls = model.attention_plan.of([model.architecture.stack])
    changed = []
    for layer, head in heads:
        module = calls[model.architecture.numbers.index(layer)].projection.module
        changed.append((module, module.weight.detach().clone()))
        with torch.no_grad():
            select_columns(module.weight, module, head, width).zero_()
    try:
        yield
    finally:
        for module, before in reversed(changed):
            with torch.no_grad():
                module.weight.copy_(before)

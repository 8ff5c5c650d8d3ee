"""Compare models from which heads were removed; save them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headscope.model.model import Model
from headscope.pruning.removal import remove
from headscope.pruning.saved_model import write_folder

NEAR = 1e-5


def count_parameters(network: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def replace_network(model: Model, network: object) -> Model:
    return replace(model, network=network)


def save_pruned(model: Model, heads: Any, folder: Path) -> dict[str, Any]:
    return write_folder(model, remove(model, heads), {"source": model.name}, folder, overwrite=False)

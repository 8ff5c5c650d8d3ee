"""What is seen of one attention computation, and who watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

Route = Literal["registry", "products"]


@dataclass(frozen=True, eq=False)
class Sighting:
    """One attention computation of one module."""

    module: torch.nn.Module
    output: torch.Tensor
    """what each head writes, before the output projection mixes them: (batch, query, head, width)"""
    attention: torch.Tensor
    """(batch, head, query, key)"""
    route: Route


Report = Callable[[Sighting], None]
"""Called for each attention computation, in the order in which they happen."""


@dataclass(eq=False)
class Watcher:
    """One network under observation, by one thread: two may run it at the same time, and each sees its own run."""

    report: Report
    batch: int
    """texts in what the network is run on"""
    modules: frozenset[int]
    thread: int = field(default_factory=threading.get_ident)
    in_registry: int = 0
    """how deep we are in functions of the registry, whose softmax is not to be seen twice"""

    def concerns(self, module: torch.nn.Module) -> bool:
        return id(module) in self.modules and threading.get_ident() == self.thread

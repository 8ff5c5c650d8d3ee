"""What is seen of one attention computation, and who watches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

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


@dataclass(frozen=True, eq=False)
class Asked:
    """What a module asks an attention function of the registry for."""

    module: torch.nn.Module
    query: torch.Tensor
    """(batch, head, query, width)"""
    key: torch.Tensor
    """(batch, key head, key, width); where heads are grouped, there are fewer of these"""
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, Any]
    function: Callable[..., Any]
    """the model's own"""

    def own(self, texts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs (batch, query, head, width) and maps of the first texts, as the model's own function gives them."""
        mask = None if self.mask is None else self.mask[:texts]
        made = self.function(
            self.module, self.query[:texts], self.key[:texts], self.value[:texts], mask, **self.options
        )
        return made[0], made[1]


Report = Callable[[Sighting], None]
"""Called for each attention computation, in the order in which they happen."""
Answer = Callable[[Asked], torch.Tensor | None]
"""May give the outputs in the place of the model's own function, which then is not called and not reported."""


@dataclass(eq=False)
class Watcher:
    """One network under observation, by one thread: two may run it at the same time, and each sees its own run."""

    report: Report
    batch: int
    """texts in what the network is run on"""
    modules: frozenset[int]
    thread: int = field(default_factory=threading.get_ident)
    answer: Answer | None = None
    in_registry: int = 0
    """how deep we are in functions of the registry, whose softmax is not to be seen twice"""

    def concerns(self, module: torch.nn.Module) -> bool:
        return id(module) in self.modules and threading.get_ident() == self.thread

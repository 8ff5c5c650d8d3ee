"""What is observed of an attention computation: its outputs and maps, and the projection that mixes its heads.

What all heads wrote, side by side, goes into the output projection of the attention module, which mixes them. So
whatever was captured can be compared with what entered the projection, and every model proves its own capture. Some
models change the heads' outputs on the way there (a gate, a norm): then what enters the projection is what the heads
write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Route = Literal["registry", "products"]
AGREES = 1e-5
"""largest difference, relative to the largest value, between what was captured and what entered the projection"""


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


@dataclass(frozen=True, eq=False)
class Projection:
    """Where the heads of one sighting are mixed."""

    module: torch.nn.Module
    direct: bool
    """it gets the captured outputs as they are; else something is done to them before"""


class Finder:
    """Finds the projection of each sighting while a network runs once."""

    def __init__(self) -> None:
        self.sightings: list[Sighting] = []
        self._entered: list[list[tuple[torch.nn.Module, torch.Tensor]]] = []

    def saw(self, sighting: Sighting) -> None:
        self.sightings.append(sighting)
        self._entered.append([])

    @contextmanager
    def listening(self, network: torch.nn.Module) -> Iterator[None]:
        """Within this context it notes what enters the network's linear maps."""

        def enter(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if self._entered and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                self._entered[-1].append((module, args[0]))

        handles = [each.register_forward_pre_hook(enter) for each in network.modules() if _is_linear(each)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def projections(self) -> list[Projection | None]:
        return [_projection(*pair) for pair in zip(self.sightings, self._entered, strict=True)]


def _is_linear(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() >= 2 and not isinstance(module, torch.nn.Embedding)


def _projection(sighting: Sighting, entered: list[tuple[torch.nn.Module, torch.Tensor]]) -> Projection | None:
    joined = sighting.output.flatten(2)
    for module, given in entered:
        if any(_agree(joined, form) for form in _forms(given, joined)):
            return Projection(module, direct=True)
    own = {id(module) for module in sighting.module.modules()}
    wide = [module for module, given in entered if id(module) in own and given.shape == joined.shape]
    # Gates may be computed after the attention too, by linear maps of their own; the projection comes last.
    return Projection(wide[-1], direct=False) if wide else None


def _forms(given: torch.Tensor, joined: torch.Tensor) -> Iterable[torch.Tensor]:
    """The ways in which a projection may be given the heads: as a sequence, as rows, channels first, beside others."""
    if given.numel() == joined.numel():
        yield given.reshape(joined.shape)
        if given.dim() == 3:
            yield given.transpose(1, 2).reshape(joined.shape)
    elif given.dim() == 3 and given.shape[:2] == joined.shape[:2] and given.shape[2] > joined.shape[2]:
        yield given[..., : joined.shape[2]]


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= AGREES * other.abs().max())


@contextmanager
def entering(
    modules: Iterable[torch.nn.Module], arrived: Callable[[torch.nn.Module, torch.Tensor], None]
) -> Iterator[None]:
    """Within this context `arrived` is told what enters these projections."""
    unique = {id(module): module for module in modules}.values()
    handles = [each.register_forward_pre_hook(lambda module, args: arrived(module, args[0])) for each in unique]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""The output projection of an attention module: where it is, and what enters it.

What all heads wrote, side by side, goes into the projection that mixes them. So whatever was captured can be held
against what entered the projection, and every model proves its own capture. Some models do something to the heads'
outputs on the way there (a gate, a norm): then what enters the projection is what the heads write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from headscope.model.capture.sighting import Sighting

AGREES = 1e-5
"""largest difference, relative to the largest value, between what was captured and what entered the projection"""


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

"""Records of an attention computation: its outputs and maps, and the projection that mixes its heads.

The concatenated outputs of all heads are the input of the attention module's output projection. Comparing the captured
outputs with that input verifies a capture for any model. Some models change the heads' outputs before the projection (a
gate, a norm): for these, the projection's input is what the heads write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Route = Literal["registry", "products"]
CAPTURE_TOLERANCE = 1e-5
"""largest difference, relative to the largest value, between the captured outputs and the projection's input"""


@dataclass(frozen=True, eq=False)
class CapturedAttention:
    """Outputs and maps of one attention computation of one module."""

    module: torch.nn.Module
    output: torch.Tensor
    """heads' outputs before the output projection mixes them: (batch, query, head, width)"""
    attention: torch.Tensor
    """(batch, head, query, key)"""
    route: Route


@dataclass(frozen=True, eq=False)
class AttentionRequest:
    """Arguments of a call to an attention function of the registry."""

    module: torch.nn.Module
    query: torch.Tensor
    """(batch, head, query, width)"""
    key: torch.Tensor
    """(batch, key head, key, width); fewer heads than `query` where heads are grouped"""
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, Any]
    function: Callable[..., Any]
    """the model's own attention function"""

    def compute_reference(self, texts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's own result for the first texts: outputs (batch, query, head, width) and maps (batch, head,
        query, key).
        """
        mask = None if self.mask is None else self.mask[:texts]
        result = self.function(
            self.module, self.query[:texts], self.key[:texts], self.value[:texts], mask, **self.options
        )
        return result[0], result[1]


OnCapture = Callable[[CapturedAttention], None]
"""Called after each attention computation, in order."""
OverrideAttention = Callable[[AttentionRequest], torch.Tensor | None]
"""May return the outputs in place of the model's own function, which is then neither called nor reported."""


@dataclass(eq=False)
class Watcher:
    """A network observed by one thread. Two threads may run it at the same time; each sees its own run."""

    on_capture: OnCapture
    batch: int
    """texts per batch"""
    modules: frozenset[int]
    thread: int = field(default_factory=threading.get_ident)
    override: OverrideAttention | None = None
    in_registry: int = 0
    """nesting depth of calls to the registry's functions, whose softmax must not be counted twice"""

    def is_watching(self, module: torch.nn.Module) -> bool:
        return id(module) in self.modules and threading.get_ident() == self.thread


@dataclass(frozen=True, eq=False)
class Projection:
    """The linear map that mixes the heads of one attention computation."""

    module: torch.nn.Module
    direct: bool
    """its input is the captured outputs; otherwise they are changed on the way"""


class ProjectionFinder:
    """Find the output projection of each attention computation during one run of a network."""

    def __init__(self) -> None:
        self.captures: list[CapturedAttention] = []
        self._linear_inputs: list[list[tuple[torch.nn.Module, torch.Tensor]]] = []

    def add_capture(self, captured: CapturedAttention) -> None:
        self.captures.append(captured)
        self._linear_inputs.append([])

    @contextmanager
    def record_inputs(self, network: torch.nn.Module) -> Iterator[None]:
        """Record, within this context, the inputs of the network's linear maps."""

        def record(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if self._linear_inputs and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                self._linear_inputs[-1].append((module, args[0]))

        handles = [module.register_forward_pre_hook(record) for module in network.modules() if _is_linear(module)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def match_projections(self) -> list[Projection | None]:
        return [_find_projection(*pair) for pair in zip(self.captures, self._linear_inputs, strict=True)]


def _is_linear(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.dim() >= 2 and not isinstance(module, torch.nn.Embedding)


def _find_projection(
    captured: CapturedAttention, inputs: list[tuple[torch.nn.Module, torch.Tensor]]
) -> Projection | None:
    outputs = captured.output.flatten(2)
    for module, value in inputs:
        if any(_is_close(outputs, layout) for layout in _list_layouts(value, outputs)):
            return Projection(module, direct=True)
    own_modules = {id(module) for module in captured.module.modules()}
    candidates = [module for module, value in inputs if id(module) in own_modules and value.shape == outputs.shape]
    # A gate may also be a linear map that runs after the attention; the projection runs last.
    return Projection(candidates[-1], direct=False) if candidates else None


def _list_layouts(value: torch.Tensor, outputs: torch.Tensor) -> Iterable[torch.Tensor]:
    """Yield the input of a linear map in the layouts in which it may hold the heads.

    These are: the same shape, flattened to rows, channels first, or followed by features that are no heads.
    """
    if value.numel() == outputs.numel():
        yield value.reshape(outputs.shape)
        if value.dim() == 3:
            yield value.transpose(1, 2).reshape(outputs.shape)
    elif value.dim() == 3 and value.shape[:2] == outputs.shape[:2] and value.shape[2] > outputs.shape[2]:
        yield value[..., : outputs.shape[2]]


def _is_close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((actual - expected).abs().max() <= CAPTURE_TOLERANCE * expected.abs().max())


@contextmanager
def watch_inputs(
    modules: Iterable[torch.nn.Module], on_input: Callable[[torch.nn.Module, torch.Tensor], None]
) -> Iterator[None]:
    """Call `on_input` with each of these modules and its input, within this context."""
    unique = {id(module): module for module in modules}.values()
    handles = [module.register_forward_pre_hook(lambda module, args: on_input(module, args[0])) for module in unique]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

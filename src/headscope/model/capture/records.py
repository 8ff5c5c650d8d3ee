"""Records of an attention computation: its outputs and maps, and the projection that mixes its heads.

The concatenated outputs of all heads are the input of the attention module's output projection. Some models change the
heads' outputs before the projection (a gate, a norm, a rotation): for these, the projection's input is what the heads
write. `verification` finds the projection.
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
    value: torch.Tensor | None = None
    """(batch, key head, key, width), where the outputs are not the product of maps and values by construction"""


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


Layout = Literal["rows", "tokens first", "channels first", "followed by others"]
"""How the input of an output projection holds the heads: (text, token, …), (token, text, …), (text, channel, token), or
(text, token, channel) with further channels that are no heads."""
LAYOUTS: tuple[Layout, ...] = ("rows", "tokens first", "channels first", "followed by others")


@dataclass(frozen=True, eq=False)
class Projection:
    """The linear map that mixes the heads of one attention computation."""

    module: torch.nn.Module
    direct: bool
    """its input is the captured outputs; otherwise each head is changed on the way"""
    layout: Layout = "rows"


def read_heads(value: torch.Tensor, layout: Layout, shape: torch.Size) -> torch.Tensor | None:
    """Return the heads (text, token, head, width) in the input of a projection; None if it does not have this layout.

    Args:
        shape: Texts, tokens, heads and width.
    """
    texts, tokens, heads, width = shape
    front, channels = tuple(value.shape[:2]), heads * width
    if layout == "followed by others":
        if value.dim() == 3 and front == (texts, tokens) and value.shape[2] > channels:
            return value[..., :channels].reshape(shape)
        return None
    if value.numel() != shape.numel():
        return None
    if layout == "rows" and (front == (texts, tokens) or value.shape[0] == texts * tokens):
        return value.reshape(shape)
    if layout == "tokens first" and front == (tokens, texts):
        return value.transpose(0, 1).reshape(shape)
    if layout == "channels first" and tuple(value.shape) == (texts, channels, tokens):
        return value.transpose(1, 2).reshape(shape)
    return None


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

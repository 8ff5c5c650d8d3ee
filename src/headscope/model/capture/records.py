"""Records of attention computations, and their capture from models that compute attention themselves.

Records of an attention computation: its outputs and maps, and the projection that mixes its heads.

The concatenated outputs of all heads are the input of the attention module's output projection. Some models change the
heads' outputs before the projection (a gate, a norm, a rotation): for these, the projection's input is what the heads
write. `verification` finds the projection.

Capture for models that compute their attention themselves: trace each map from its softmax to its product.

Whatever a model's code looks like, its attention map is the result of a softmax over the last axis, may be masked,
dropped out, reshaped or converted, and is then multiplied with the values; that product is the heads' output. A
`TorchFunctionMode` sees every call of a torch function in this thread, so the map can be followed by identity. Where a
model calls `scaled_dot_product_attention` itself, its output is captured, and the map is recomputed from query and key.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

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


Tensor = torch.Tensor
PRODUCTS = frozenset({"matmul", "__matmul__", "bmm"})
OutputsAndMaps = tuple[Tensor, Tensor, Tensor | None]
"""outputs (batch, query, head, width), maps (batch, head, query, key), and values if the maps were computed here"""


@contextmanager
def trace_softmax(watcher: Watcher, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Report, within this context, the attention that these modules compute in code of their own."""
    active: list[torch.nn.Module] = []

    def enter_module(module: torch.nn.Module, args: Any) -> None:
        if watcher.is_watching(module):
            active.append(module)

    def leave_module(module: torch.nn.Module, args: Any, result: Any) -> None:
        if watcher.is_watching(module):
            active.pop()

    handles = []
    try:
        for module in modules:
            handles.append(module.register_forward_pre_hook(enter_module))
            handles.append(module.register_forward_hook(leave_module, always_call=True))
        with _register_tracer(_SoftmaxTracer(watcher, active)):
            yield
    finally:
        for handle in handles:
            handle.remove()


# torch keeps its modes in a stack, but contexts may end in any order: one mode serves all tracers of a thread.
_thread = threading.local()


@contextmanager
def _register_tracer(tracer: _SoftmaxTracer) -> Iterator[None]:
    """Pass every call of a torch function in this thread to the tracer, within this context."""
    tracers: list[_SoftmaxTracer] = _thread.__dict__.setdefault("tracers", [])
    if not tracers:
        _thread.mode = _TracingMode()
        _thread.mode.__enter__()
    tracers.append(tracer)
    try:
        yield
    finally:
        tracers.remove(tracer)
        if not tracers:
            _thread.mode.__exit__(None, None, None)


class _TracingMode(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        result = function(*args, **options)
        if isinstance(result, Tensor):
            for tracer in tuple(_thread.tracers):
                tracer.handle_call(getattr(function, "__name__", ""), args, options, result)
        return result


class _SoftmaxTracer:
    """Follow each map of one network from its softmax to its product with the values."""

    def __init__(self, watcher: Watcher, active: list[torch.nn.Module]) -> None:
        self.watcher, self.active = watcher, active
        self.map_forms: list[Tensor] = []
        """the last map, in every form it has taken since its softmax"""
        self.softmax_modules: list[torch.nn.Module] = []
        """the modules that were running when its softmax was computed, outermost first"""

    def handle_call(self, name: str, args: tuple[Any, ...], options: dict[str, Any], result: Tensor) -> None:
        """Process one call of a torch function."""
        if not self.active or self.watcher.in_registry:
            return
        captured = self._trace_call(name, args, options, result)
        if captured is not None:
            self.map_forms.clear()
            outputs, maps, value = captured
            self.watcher.on_capture(CapturedAttention(self._find_owner(), outputs, maps, "products", value))

    def _trace_call(
        self, name: str, args: tuple[Any, ...], options: dict[str, Any], result: Tensor
    ) -> OutputsAndMaps | None:
        if name == "softmax":
            axis = options.get("dim", args[1] if len(args) > 1 else None)
            if result.dim() >= 3 and axis in (-1, result.dim() - 1):
                self.map_forms[:], self.softmax_modules = [result], list(self.active)
            return None
        if name == "scaled_dot_product_attention":
            self.softmax_modules = list(self.active)
            return (
                result.transpose(1, 2),
                _compute_map(*args, **options),
                args[2] if len(args) > 2 else options["value"],
            )
        if name == "einsum":
            operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
            return self._match_einsum(args[0].replace(" ", ""), operands, result)
        if not args or not self._is_map(args[0]):
            return None
        if name in PRODUCTS:
            if args[0].shape[:-2].numel() % self.watcher.batch:
                return None
            maps = args[0].reshape(self.watcher.batch, -1, *args[0].shape[-2:])
            # (…, query, width), batch and heads in front in whatever form
            outputs = result.reshape(self.watcher.batch, -1, *result.shape[-2:])
            return outputs.transpose(1, 2), maps, None
        if result.numel() == args[0].numel() and result.is_floating_point():
            self.map_forms.append(result)
        return None

    def _match_einsum(self, equation: str, operands: Any, result: Tensor) -> OutputsAndMaps | None:
        """Return outputs and maps of a product like `bnij,jbnd->ibnd`: the letters say which axis is which."""
        position = next((k for k, operand in enumerate(operands) if self._is_map(operand)), None)
        inputs, arrow, output = equation.partition("->")
        if position is None or not arrow or len(inputs.split(",")[position]) != 4:
            return None
        batch, head, query, key = tuple(inputs.split(",")[position])
        if key in output or not {batch, head, query} < set(output) or len(output) != 4:
            return None
        (width,) = set(output) - {batch, head, query}
        outputs = result.permute([output.index(letter) for letter in (batch, query, head, width)])
        return outputs, operands[position], None

    def _find_owner(self) -> torch.nn.Module:
        """Return the innermost module around both softmax and product: either may be in a small module of its own."""
        shared = [a for a, b in zip(self.softmax_modules, self.active, strict=False) if a is b]
        return shared[-1]

    def _is_map(self, value: Any) -> bool:
        return any(value is form for form in self.map_forms)


def _compute_map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the map that `scaled_dot_product_attention` does not return; parameters and defaults are torch's."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1)

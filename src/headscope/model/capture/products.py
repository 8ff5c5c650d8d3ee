"""The route for models that compute their attention themselves: a softmax, and what it is then multiplied with.

Whatever a model's code looks like, its attention map comes out of a softmax over the last axis, may be masked, dropped
out, reshaped or converted on its way, and is then multiplied with the values; that product is what the heads write.
torch tells a `TorchFunctionMode` of every call of its functions in this thread, so the map is followed from the softmax
to the product, by identity. Where a model calls `scaled_dot_product_attention` itself, its output is seen, and the map
is computed once more from query and key.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from headscope.model.capture.observation import Sighting, Watcher

Tensor = torch.Tensor
PRODUCTS = frozenset({"matmul", "__matmul__", "bmm"})
Placed = tuple[Tensor, Tensor]
"""outputs (batch, query, head, width) and maps (batch, head, query, key)"""


@contextmanager
def through_products(watcher: Watcher, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Within this context the watcher is told of the attention that these modules compute in code of their own."""
    inside: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        if watcher.concerns(module):
            inside.append(module)

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        if watcher.concerns(module):
            inside.pop()

    handles = []
    try:
        for module in modules:
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
        with _told(_Follower(watcher, inside)):
            yield
    finally:
        for handle in handles:
            handle.remove()


# torch keeps its modes in a stack, and contexts may end in any order: one mode serves all followers of a thread.
_thread = threading.local()


@contextmanager
def _told(follower: _Follower) -> Iterator[None]:
    """Within this context the follower is told of every call of a torch function in this thread."""
    followers: list[_Follower] = _thread.__dict__.setdefault("followers", [])
    if not followers:
        _thread.mode = _Telling()
        _thread.mode.__enter__()
    followers.append(follower)
    try:
        yield
    finally:
        followers.remove(follower)
        if not followers:
            _thread.mode.__exit__(None, None, None)


class _Telling(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        result = function(*args, **options)
        if isinstance(result, Tensor):
            for follower in tuple(_thread.followers):
                follower.hear(getattr(function, "__name__", ""), args, options, result)
        return result


class _Follower:
    """Follows each map of one network from its softmax to its product."""

    def __init__(self, watcher: Watcher, inside: list[torch.nn.Module]) -> None:
        self.watcher, self.inside = watcher, inside
        self.forms: list[Tensor] = []
        """the map last seen, in every form it has taken since"""
        self.born: list[torch.nn.Module] = []
        """the modules in which its softmax was, outermost first"""

    def hear(self, name: str, args: tuple[Any, ...], options: dict[str, Any], result: Tensor) -> None:
        """One call of a torch function."""
        if not self.inside or self.watcher.in_registry:
            return
        placed = self._follow(name, args, options, result)
        if placed is not None:
            self.forms.clear()
            self.watcher.report(Sighting(self._owner(), *placed, "products"))

    def _follow(self, name: str, args: tuple[Any, ...], options: dict[str, Any], result: Tensor) -> Placed | None:
        if name == "softmax":
            axis = options.get("dim", args[1] if len(args) > 1 else None)
            if result.dim() >= 3 and axis in (-1, result.dim() - 1):
                self.forms[:], self.born = [result], list(self.inside)
            return None
        if name == "scaled_dot_product_attention":
            self.born = list(self.inside)
            return result.transpose(1, 2), _map_of(*args, **options)
        if name == "einsum":
            operands = args[1] if isinstance(args[1], (list, tuple)) else args[1:]
            return self._einsum(args[0].replace(" ", ""), operands, result)
        if not args or not self._is_map(args[0]):
            return None
        if name in PRODUCTS:
            maps = args[0].reshape(self.watcher.batch, -1, *args[0].shape[-2:])
            # (…, query, width), batch and heads in front in whatever form
            outputs = result.reshape(self.watcher.batch, -1, *result.shape[-2:])
            return outputs.transpose(1, 2), maps
        if result.numel() == args[0].numel() and result.is_floating_point():
            self.forms.append(result)
        return None

    def _einsum(self, equation: str, operands: Any, result: Tensor) -> Placed | None:
        """`bnij,jbnd->ibnd`: the letters say which axis of the product is which."""
        which = next((k for k, operand in enumerate(operands) if self._is_map(operand)), None)
        inputs, arrow, output = equation.partition("->")
        if which is None or not arrow or len(inputs.split(",")[which]) != 4:
            return None
        batch, head, query, key = tuple(inputs.split(",")[which])
        if key in output or not {batch, head, query} < set(output) or len(output) != 4:
            return None
        (width,) = set(output) - {batch, head, query}
        return result.permute([output.index(letter) for letter in (batch, query, head, width)]), operands[which]

    def _owner(self) -> torch.nn.Module:
        """The innermost module around both softmax and product: either may be in a small module of its own."""
        shared = [a for a, b in zip(self.born, self.inside, strict=False) if a is b]
        return shared[-1]

    def _is_map(self, value: Any) -> bool:
        return any(value is form for form in self.forms)


def _map_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The map that `scaled_dot_product_attention` keeps to itself; its parameters and defaults are torch's."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return scores.softmax(-1)

"""Seeing every head's output and attention map while a model runs, its own arithmetic untouched.

transformers sends attention through one registry: a model asks `AttentionInterface.get_interface` for the function that
its configuration names, calls it with query, key and value, and gets back the heads' outputs (batch, position, head,
width), before the output projection mixes them, and with eager attention also the maps (batch, head, query, key). We
wrap what `get_interface` returns, whatever it is, so names, masks and the model's own eager function stay as they are;
registering a function of our own instead would silently drop padding masks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.modeling_utils import AttentionInterface

from headscope.errors import ModelError

See = Callable[[int, torch.Tensor, torch.Tensor], None]
"""Called for each layer in turn with its number, the heads' outputs and the attention maps."""


@dataclass(eq=False)
class _Observer:
    """One model under observation."""

    modules: frozenset[int]
    see: See
    layers: int = field(default=0)
    thread: int = field(default_factory=threading.get_ident)

    def observe(self, module: torch.nn.Module, output: torch.Tensor, attention: torch.Tensor | None) -> None:
        # Two threads may run one model at the same time: each sees its own run.
        if id(module) not in self.modules or threading.get_ident() != self.thread:
            return
        if attention is None:
            raise ModelError(f"{type(module).__name__} gives no attention map, even with eager attention")
        # Layers are numbered as they are called: where one module serves all layers (ALBERT) there is no other number.
        self.see(self.layers, output, attention)
        self.layers += 1


# The patch below is shared by all observers and lifted with the last of them, so that contexts may end in any order.
_active: list[_Observer] = []
_lock = threading.Lock()


def _observed(get_interface: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    @functools.wraps(get_interface)
    def observed_interface(self: AttentionInterface, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        function = get_interface(self, *args, **kwargs)

        def observed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = function(module, *args, **kwargs)
            for observer in tuple(_active):
                observer.observe(module, result[0], result[1])
            return result

        return observed

    return observed_interface


@contextmanager
def observing(model: torch.nn.Module, see: See) -> Iterator[_Observer]:
    """Within this context every attention layer of `model` is shown to `see` as it is computed.

    The model runs with eager attention (others give no map) and without dropout; both are as before on leaving, and so
    is transformers, also after an exception.
    """
    observer = _Observer(frozenset(id(module) for module in model.modules()), see)
    with _eager(model), _evaluating(model):
        with _lock:
            if not _active:
                AttentionInterface.get_interface = _observed(AttentionInterface.get_interface)
            _active.append(observer)
        try:
            yield observer
        finally:
            with _lock:
                _active.remove(observer)
                if not _active:
                    AttentionInterface.get_interface = AttentionInterface.get_interface.__wrapped__


@contextmanager
def _eager(model: torch.nn.Module) -> Iterator[None]:
    config: Any = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", "eager")
    if before == "eager":
        yield
        return
    switch: Callable[[str], None] = model.set_attn_implementation  # type: ignore[assignment]
    switch("eager")
    try:
        yield
    finally:
        switch(before)


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

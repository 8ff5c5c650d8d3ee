"""Observing a network's attention while it runs; capture through transformers' registry of attention functions.

A model asks `AttentionInterface.get_interface` for the function that its configuration names, calls it with query, key
and value, and gets back the heads' outputs (batch, position, head, width), before the output projection mixes them, and
with eager attention also the maps (batch, head, query, key). We wrap whatever `get_interface` returns, so names, masks
and the model's own eager function do not change. Registering a function of our own instead would silently drop padding
masks.

Models that compute their attention themselves are handled in `products`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.modeling_utils import AttentionInterface

from headscope.errors import ModelError
from headscope.model.capture.records import (
    AttentionRequest,
    CapturedAttention,
    OnCapture,
    OverrideAttention,
    Route,
    Watcher,
    trace_softmax,
)

ALL_ROUTES: tuple[Route, ...] = ("registry", "products")

# All watchers share one patch of `AttentionInterface`. The last one removes it, so contexts may end in any order.
_active: list[Watcher] = []
_lock = threading.Lock()


@contextmanager
def watch_attention(
    network: torch.nn.Module,
    on_capture: OnCapture,
    *,
    batch: int,
    routes: Iterable[Route] = ALL_ROUTES,
    modules: Iterable[torch.nn.Module] | None = None,
    override: OverrideAttention | None = None,
) -> Iterator[None]:
    """Report every attention computation of `network`, within this context, as it happens.

    Within it, the network runs with eager attention (others return no map) and without dropout. On leaving, also after
    an exception, both are restored, and transformers and all hooks are as before.

    Args:
        batch: Number of texts that the network is run on.
        routes: Ways of capture to use.
        modules: Modules that compute their attention themselves, where that is known.
        override: May compute attention in place of the registry's functions.
    """
    all_modules = list(network.modules())
    watcher = Watcher(on_capture, batch, frozenset(id(module) for module in all_modules), override=override)
    chosen = set(routes)
    with ExitStack() as contexts:
        contexts.enter_context(prepare_network(network, all_modules))
        if "registry" in chosen:
            contexts.enter_context(watch_registry(watcher))
        if "products" in chosen:
            contexts.enter_context(trace_softmax(watcher, all_modules if modules is None else modules))
        yield


@contextmanager
def prepare_network(network: torch.nn.Module, modules: list[torch.nn.Module] | None = None) -> Iterator[None]:
    """Run a network with eager attention and without dropout, within this context.

    Threads that watch one network at the same time need it around all of them: otherwise the first to leave would
    change the network under the others.
    """
    with _use_eager_attention(network), _disable_training_mode(list(network.modules()) if modules is None else modules):
        yield


@contextmanager
def _use_eager_attention(network: torch.nn.Module) -> Iterator[None]:
    config: Any = getattr(network, "config", None)
    previous = getattr(config, "_attn_implementation", "eager")
    if previous in ("eager", None):
        yield
        return
    switch: Callable[[str], None] = network.set_attn_implementation  # type: ignore[assignment]
    switch("eager")
    try:
        yield
    finally:
        switch(previous)


@contextmanager
def _disable_training_mode(modules: list[torch.nn.Module]) -> Iterator[None]:
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def watch_registry(watcher: Watcher) -> Iterator[None]:
    """Report, within this context, every call of an attention function that the registry gives the network."""
    with _lock:
        if not _active:
            AttentionInterface.get_interface = _wrap_get_interface(AttentionInterface.get_interface)
        _active.append(watcher)
    try:
        yield
    finally:
        with _lock:
            _active.remove(watcher)
            if not _active:
                AttentionInterface.get_interface = AttentionInterface.get_interface.__wrapped__


def _wrap_get_interface(get_interface: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    @functools.wraps(get_interface)
    def get_watched_interface(self: AttentionInterface, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        function = get_interface(self, *args, **kwargs)

        def call_watched(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            watchers = [watcher for watcher in tuple(_active) if watcher.is_watching(module)]
            if len(watchers) == 1 and watchers[0].override is not None and len(args) == 4:
                output = watchers[0].override(AttentionRequest(module, *args, kwargs, function))
                if output is not None:
                    return output, None
            for watcher in watchers:
                watcher.in_registry += 1
            try:
                result = function(module, *args, **kwargs)
            finally:
                for watcher in watchers:
                    watcher.in_registry -= 1
            output, attention = result[:2]
            value = args[2] if len(args) > 2 else kwargs.get("value")
            for watcher in watchers:
                watcher.on_capture(_make_capture(module, output, attention, value))
            return result

        return call_watched

    return get_watched_interface


def _make_capture(
    module: torch.nn.Module, output: torch.Tensor, attention: torch.Tensor | None, value: torch.Tensor | None
) -> CapturedAttention:
    if attention is None:
        raise ModelError(f"{type(module).__name__} gives no attention map, even with eager attention")
    return CapturedAttention(module, output, attention, "registry", value)

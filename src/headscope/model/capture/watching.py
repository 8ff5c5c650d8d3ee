"""Watching a network run, and the first of the two routes to what its heads do: transformers' attention functions.

A model asks `AttentionInterface.get_interface` for the function that its configuration names, calls it with query, key
and value, and gets back the heads' outputs (batch, position, head, width), before the output projection mixes them, and
with eager attention also the maps (batch, head, query, key). We wrap what `get_interface` returns, whatever it is, so
names, masks and the model's own eager function stay as they are; registering a function of our own instead would
silently drop padding masks.

The second route, for models that compute their attention themselves, is in `products`.
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
from headscope.model.capture.observation import Answer, Asked, Report, Route, Sighting, Watcher
from headscope.model.capture.products import through_products

BOTH: tuple[Route, ...] = ("registry", "products")

# All watchers share one patch of `AttentionInterface`, lifted with the last of them, so that contexts may end in any
# order.
_active: list[Watcher] = []
_lock = threading.Lock()


@contextmanager
def watching(
    network: torch.nn.Module,
    report: Report,
    *,
    batch: int,
    routes: Iterable[Route] = BOTH,
    modules: Iterable[torch.nn.Module] | None = None,
    answer: Answer | None = None,
) -> Iterator[None]:
    """Within this context every attention computation of `network`, run on `batch` texts, is reported as it happens.

    `routes` may leave one out, and `modules` name those that compute their attention themselves, where that is known.
    `answer` may take the place of the registry's functions.
    The network runs with eager attention (others give no map) and without dropout; both are as before on leaving, and
    so are transformers and all hooks, also after an exception.
    """
    held_modules = list(network.modules())
    watcher = Watcher(report, batch, frozenset(id(module) for module in held_modules), answer=answer)
    chosen = set(routes)
    with ExitStack() as held:
        held.enter_context(prepared(network, held_modules))
        if "registry" in chosen:
            held.enter_context(through_registry(watcher))
        if "products" in chosen:
            held.enter_context(through_products(watcher, held_modules if modules is None else modules))
        yield


@contextmanager
def prepared(network: torch.nn.Module, modules: list[torch.nn.Module] | None = None) -> Iterator[None]:
    """Within this context a network runs with eager attention and without dropout.

    Threads that watch one network at a time need it around all of them, or the first to leave would change it.
    """
    with _eager(network), _evaluating(list(network.modules()) if modules is None else modules):
        yield


@contextmanager
def _eager(network: torch.nn.Module) -> Iterator[None]:
    config: Any = getattr(network, "config", None)
    before = getattr(config, "_attn_implementation", "eager")
    if before in ("eager", None):
        yield
        return
    switch: Callable[[str], None] = network.set_attn_implementation  # type: ignore[assignment]
    switch("eager")
    try:
        yield
    finally:
        switch(before)


@contextmanager
def _evaluating(modules: list[torch.nn.Module]) -> Iterator[None]:
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def through_registry(watcher: Watcher) -> Iterator[None]:
    """Within this context the watcher is told of every attention function the registry gives its network."""
    with _lock:
        if not _active:
            AttentionInterface.get_interface = _watched(AttentionInterface.get_interface)
        _active.append(watcher)
    try:
        yield
    finally:
        with _lock:
            _active.remove(watcher)
            if not _active:
                AttentionInterface.get_interface = AttentionInterface.get_interface.__wrapped__


def _watched(get_interface: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    @functools.wraps(get_interface)
    def watched_interface(self: AttentionInterface, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        function = get_interface(self, *args, **kwargs)

        def watched(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            watchers = [watcher for watcher in tuple(_active) if watcher.concerns(module)]
            if len(watchers) == 1 and watchers[0].answer is not None and len(args) == 4:
                output = watchers[0].answer(Asked(module, *args, kwargs, function))
                if output is not None:
                    return output, None
            for watcher in watchers:
                watcher.in_registry += 1
            try:
                result = function(module, *args, **kwargs)
            finally:
                for watcher in watchers:
                    watcher.in_registry -= 1
            for watcher in watchers:
                watcher.report(_sighting(module, *result[:2]))
            return result

        return watched

    return watched_interface


def _sighting(module: torch.nn.Module, output: torch.Tensor, attention: torch.Tensor | None) -> Sighting:
    if attention is None:
        raise ModelError(f"{type(module).__name__} gives no attention map, even with eager attention")
    return Sighting(module, output, attention, "registry")

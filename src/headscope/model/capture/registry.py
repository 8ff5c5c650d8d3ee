"""The registry route: what transformers' attention functions return.

A model asks `AttentionInterface.get_interface` for the function that its configuration names, calls it with query, key
and value, and gets back the heads' outputs (batch, position, head, width), before the output projection mixes them, and
with eager attention also the maps (batch, head, query, key). We wrap what `get_interface` returns, whatever it is, so
names, masks and the model's own eager function stay as they are; registering a function of our own instead would
silently drop padding masks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import AttentionInterface

from headscope.errors import ModelError
from headscope.model.capture.sighting import Asked, Sighting, Watcher

# The patch below is shared by all watchers and lifted with the last of them, so that contexts may end in any order.
_active: list[Watcher] = []
_lock = threading.Lock()


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

"""Watching a network run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from headscope.model.capture.products import through_products
from headscope.model.capture.registry import through_registry
from headscope.model.capture.sighting import Report, Route, Watcher

BOTH: tuple[Route, ...] = ("registry", "products")


@contextmanager
def watching(
    network: torch.nn.Module,
    report: Report,
    *,
    batch: int,
    routes: Iterable[Route] = BOTH,
    modules: Iterable[torch.nn.Module] | None = None,
) -> Iterator[None]:
    """Within this context every attention computation of `network`, run on `batch` texts, is reported as it happens.

    `routes` may leave one out, and `modules` name those that compute their attention themselves, where that is known.
    The network runs with eager attention (others give no map) and without dropout; both are as before on leaving, and
    so are transformers and all hooks, also after an exception.
    """
    watcher = Watcher(report, batch, frozenset(id(module) for module in network.modules()))
    chosen = set(routes)
    with ExitStack() as held:
        held.enter_context(_eager(network))
        held.enter_context(_evaluating(network))
        if "registry" in chosen:
            held.enter_context(through_registry(watcher))
        if "products" in chosen:
            held.enter_context(through_products(watcher, network.modules() if modules is None else modules))
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
def _evaluating(network: torch.nn.Module) -> Iterator[None]:
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True

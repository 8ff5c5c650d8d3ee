"""Watching a network run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from headscope.model.capture.products import through_products
from headscope.model.capture.registry import through_registry
from headscope.model.capture.sighting import Answer, Report, Route, Watcher

BOTH: tuple[Route, ...] = ("registry", "products")


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

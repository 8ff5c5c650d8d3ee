"""Where each head's output enters its output projection, and how to change it on the way.

The anatomy of a model knows the projections. In which form one is given the heads (as a sequence, as rows, channels
first, beside other columns) shows in one run over a few tokens, where what the heads were seen to write is held against
what entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import PreTrainedModel

from headscope.corpus.windows import Batch, Window
from headscope.errors import ModelError
from headscope.model.anatomy import TOKENS
from headscope.model.capture.observation import AGREES, entering
from headscope.model.model import Model
from headscope.model.patches import Patches

Change = Callable[[int, torch.Tensor], torch.Tensor]
"""Given a layer of the watched stack, counted from 0, and what its heads write (…, head, width): what they write
instead, of the same shape."""


@dataclass(frozen=True, eq=False)
class Site:
    """Where the heads of one layer enter their projection."""

    module: torch.nn.Module
    heads: int
    width: int
    axis: int
    """of the projection's input, along which the heads lie side by side from its start"""

    def changed(self, given: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """What the projection is given instead of `given`."""
        columns = given.movedim(self.axis, -1)
        joined = self.heads * self.width
        own, others = columns[..., :joined], columns[..., joined:]
        made = change(own.reshape(*own.shape[:-1], self.heads, self.width)).flatten(-2).to(given.dtype)
        return (torch.cat([made, others], dim=-1) if others.shape[-1] else made).movedim(-1, self.axis)


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a model's watched stack."""

    layers: list[Site | None]
    """None: what mixes the heads of this layer is no module"""
    turns: dict[torch.nn.Module, list[int | None]]
    """the layers that each projection serves, in the order of its calls in one run; None: of another stack"""

    @property
    def widths(self) -> list[int]:
        return [site.width for site in self.layers if site is not None]


_found: WeakKeyDictionary[torch.nn.Module, dict[str, Sites]] = WeakKeyDictionary()


def sites(model: Model) -> Sites:
    """Where the heads of the watched stack enter their projections: found once for a network."""
    held, stack = _found.setdefault(model.network, {}), model.anatomy.stack
    if stack not in held:
        held[stack] = _find(model)
    return held[stack]


@contextmanager
def changing(model: Model, change: Change, layers: set[int]) -> Iterator[None]:
    """Within this context `change` is made to what the heads of these layers (counted from 0) write, however the
    network is run."""
    found = sites(model)
    silent = [model.anatomy.numbers[k] for k in sorted(layers) if found.layers[k] is None]
    if silent:
        raise ModelError(
            f"{model.name}: its heads cannot be silenced: what mixes them in layer {silent[0]} is no module of the "
            f"model type {model.type!r}"
        )
    concerned = [module for module, turns in found.turns.items() if layers.intersection(turns)]
    with ExitStack() as held:
        for module in concerned:
            held.enter_context(_hooked(model.network, module, found, change, layers))
        yield


@contextmanager
def _hooked(
    network: torch.nn.Module, module: torch.nn.Module, found: Sites, change: Change, layers: set[int]
) -> Iterator[None]:
    """One projection, which may serve several layers in turn: its calls are counted from the start of each run."""
    turns, met = found.turns[module], 0

    def begin(_: torch.nn.Module, args: Any) -> None:
        nonlocal met
        met = 0

    def enter(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal met
        layer = turns[met % len(turns)]
        met += 1
        site = None if layer is None or layer not in layers else found.layers[layer]
        if site is None or layer is None:
            return None
        return (site.changed(args[0], lambda written: change(layer, written)), *args[1:])

    # A run begins with the whole network, or with one half of it: either may be called alone.
    starts = [each for each in network.modules() if isinstance(each, PreTrainedModel) and _within(module, each)]
    handles = [module.register_forward_pre_hook(enter)]
    if len(turns) > 1:
        handles += [each.register_forward_pre_hook(begin) for each in starts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _within(module: torch.nn.Module, whole: torch.nn.Module) -> bool:
    return any(each is module for each in whole.modules())


def _find(model: Model) -> Sites:
    stack, turns, places = model.anatomy.stack, dict[torch.nn.Module, list[int | None]](), list[_Place | None]()
    for call in model._plan.calls:
        own = call.stack == stack
        if call.projection is not None:
            served = turns.setdefault(call.projection.module, [])
            places += [_Place(call.projection.module, len(served))] * own
            served.append(len(places) - 1 if own else None)
        else:
            places += [None] * own
    written: list[torch.Tensor] = []
    entered: dict[torch.nn.Module, list[torch.Tensor]] = {module: [] for module in turns}
    with entering(turns, lambda module, given: entered[module].append(given)):
        model.observe(_probe(model), lambda layer, output, attention: written.append(output))
    layers = [
        None if place is None else _site(model, place.module, entered[place.module][place.turn], output)
        for place, output in zip(places, written, strict=True)
    ]
    return Sites(layers, turns)


@dataclass(frozen=True, eq=False)
class _Place:
    module: torch.nn.Module
    turn: int


def _probe(model: Model) -> Batch:
    """One window of a few tokens, or one image of noise."""
    if isinstance(model.tokens, Patches):
        plain = Window.plain(np.arange(model.tokens.length))
        return Batch.of([Window(**{**vars(plain), "pixels": model.tokens.noise()[0], "u": 0})])
    return Batch.of(
        [model.reads(Window.plain(np.array(model.plain_tokens(TOKENS), dtype=np.int64)))], model.tokens.pad_id
    )


def _site(model: Model, module: torch.nn.Module, given: torch.Tensor, written: torch.Tensor) -> Site:
    heads, width = written.shape[2:]
    joined = written.reshape(-1, heads * width)
    for axis in (-1, 1):
        if given.dim() <= 1 or given.shape[axis] < heads * width:
            continue
        held = given.movedim(axis, -1)[..., : heads * width].reshape(-1, heads * width)
        # Half-precision networks give the very numbers that were seen, as others do.
        if held.shape == joined.shape and bool((held - joined).abs().max() <= AGREES * joined.abs().max()):
            return Site(module, heads, width, axis)
    raise ModelError(
        f"{model.name}: its heads cannot be silenced: the projection of the model type {model.type!r} is given them in "
        f"a form that is not known here ({tuple(given.shape)} for {heads} heads of width {width})"
    )

"""Locate where each head's output enters its output projection, and edit it there.

The architecture of a model lists the projections. In which layout a projection receives the heads (as a sequence,
channels first, beside other columns) is found out in one run over a few tokens, by comparing the outputs that were
observed with what entered the projection.
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
from headscope.model.architecture import TOKENS
from headscope.model.capture.records import CAPTURE_TOLERANCE, watch_inputs
from headscope.model.image_patches import Patches
from headscope.model.model import Model

OutputEdit = Callable[[int, torch.Tensor], torch.Tensor]
"""Given a layer of the observed stack, counted from 0, and what its heads write (…, heads, width), returns what they
write instead, of the same shape."""


@dataclass(frozen=True, eq=False)
class Site:
    """Where the heads of one layer enter their projection."""

    module: torch.nn.Module
    heads: int
    width: int
    axis: int
    """axis of the projection's input along which the heads are concatenated, from its start"""

    def edit_input(self, inputs: torch.Tensor, edit: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the projection's input with the heads' outputs (…, heads, width) edited."""
        columns = inputs.movedim(self.axis, -1)
        joined = self.heads * self.width
        own, others = columns[..., :joined], columns[..., joined:]
        edited = edit(own.reshape(*own.shape[:-1], self.heads, self.width)).flatten(-2).to(inputs.dtype)
        return (torch.cat([edited, others], dim=-1) if others.shape[-1] else edited).movedim(-1, self.axis)


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a model's observed stack."""

    layers: list[Site | None]
    """None: what mixes the heads of this layer is no module"""
    calls: dict[torch.nn.Module, list[int | None]]
    """layer that each call of a projection serves, in the order of the calls in one run; None: of another stack"""

    @property
    def widths(self) -> list[int]:
        return [site.width for site in self.layers if site is not None]


_cache: WeakKeyDictionary[torch.nn.Module, dict[str, Sites]] = WeakKeyDictionary()
"""by network and stack"""


def find_sites(model: Model) -> Sites:
    """Return where the heads of the observed stack enter their projections; computed once for a network."""
    by_stack, stack = _cache.setdefault(model.network, {}), model.architecture.stack
    if stack not in by_stack:
        by_stack[stack] = _detect_sites(model)
    return by_stack[stack]


@contextmanager
def edit_outputs(model: Model, edit: OutputEdit, layers: set[int]) -> Iterator[None]:
    """Within this context, edit what the heads of these layers (counted from 0) write, however the network is run."""
    sites = find_sites(model)
    missing = [model.architecture.numbers[k] for k in sorted(layers) if sites.layers[k] is None]
    if missing:
        raise ModelError(
            f"{model.name}: its heads cannot be silenced: what mixes them in layer {missing[0]} is no module of the "
            f"model type {model.type!r}"
        )
    projections = [module for module, calls in sites.calls.items() if layers.intersection(calls)]
    with ExitStack() as stack:
        for module in projections:
            stack.enter_context(_hook_projection(model.network, module, sites, edit, layers))
        yield


@contextmanager
def _hook_projection(
    network: torch.nn.Module, module: torch.nn.Module, sites: Sites, edit: OutputEdit, layers: set[int]
) -> Iterator[None]:
    """Edit the input of one projection. It may serve several layers: its calls are counted from the start of a run."""
    calls, call_count = sites.calls[module], 0

    def reset_count(_: torch.nn.Module, args: Any) -> None:
        nonlocal call_count
        call_count = 0

    def edit_call(_: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal call_count
        layer = calls[call_count % len(calls)]
        call_count += 1
        site = None if layer is None or layer not in layers else sites.layers[layer]
        if site is None or layer is None:
            return None
        return (site.edit_input(args[0], lambda written: edit(layer, written)), *args[1:])

    # A run starts with the whole network or with its encoder or decoder: either may be called alone.
    entry_points = [
        other for other in network.modules() if isinstance(other, PreTrainedModel) and _has_submodule(other, module)
    ]
    handles = [module.register_forward_pre_hook(edit_call)]
    if len(calls) > 1:
        handles += [entry_point.register_forward_pre_hook(reset_count) for entry_point in entry_points]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _has_submodule(parent: torch.nn.Module, module: torch.nn.Module) -> bool:
    return any(submodule is module for submodule in parent.modules())


def _detect_sites(model: Model) -> Sites:
    stack = model.architecture.stack
    calls, layer_calls = dict[torch.nn.Module, list[int | None]](), list[_ProjectionCall | None]()
    for call in model._plan.calls:
        is_own = call.stack == stack
        if call.projection is not None:
            served = calls.setdefault(call.projection.module, [])
            layer_calls += [_ProjectionCall(call.projection.module, len(served))] * is_own
            served.append(len(layer_calls) - 1 if is_own else None)
        else:
            layer_calls += [None] * is_own
    outputs: list[torch.Tensor] = []
    head_counts = model.architecture.head_counts
    entered: dict[torch.nn.Module, list[torch.Tensor]] = {module: [] for module in calls}
    with watch_inputs(calls, lambda module, inputs: entered[module].append(inputs)):
        model.observe(_make_probe(model), lambda layer, output, _: outputs.append(output[:, :, : head_counts[layer]]))
    layers = [
        None if call is None else _match_site(model, call.module, entered[call.module][call.index], output)
        for call, output in zip(layer_calls, outputs, strict=True)
    ]
    return Sites(layers, calls)


@dataclass(frozen=True, eq=False)
class _ProjectionCall:
    module: torch.nn.Module
    index: int
    """number of the call among those of the module in one run"""


def _make_probe(model: Model) -> Batch:
    """Return one window of a few tokens, or one image of noise."""
    if isinstance(model.tokens, Patches):
        plain = Window.plain(np.arange(model.tokens.length))
        return Batch.of([Window(**{**vars(plain), "pixels": model.tokens.noise()[0], "u": 0})])
    return Batch.of(
        [model.adapt_window(Window.plain(np.array(model.pick_ordinary_tokens(TOKENS), dtype=np.int64)))],
        model.tokens.pad_id,
    )


def _match_site(model: Model, module: torch.nn.Module, inputs: torch.Tensor, output: torch.Tensor) -> Site:
    """Return the layout in which a projection's input contains the output of the heads (…, heads, width)."""
    heads, width = output.shape[2:]
    joined = output.reshape(-1, heads * width)
    for axis in (-1, 1):
        if inputs.dim() <= 1 or inputs.shape[axis] < heads * width:
            continue
        rows = inputs.movedim(axis, -1)[..., : heads * width].reshape(-1, heads * width)
        # In half precision, too, the input is the very tensor that was observed: no larger tolerance is needed.
        if rows.shape == joined.shape and bool((rows - joined).abs().max() <= CAPTURE_TOLERANCE * joined.abs().max()):
            return Site(module, heads, width, axis)
    raise ModelError(
        f"{model.name}: its heads cannot be silenced: the projection of the model type {model.type!r} is given them in "
        f"a form that is not known here ({tuple(inputs.shape)} for {heads} heads of width {width})"
    )

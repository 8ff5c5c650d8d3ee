"""What a model is made of, as one run over a few tokens shows it: its stacks, their layers, their heads.

A *stack* is a column of layers of one kind of attention: an encoder's, a decoder's own (`decoder`), and a decoder's
over what the encoder made (`cross`). The run gives encoder and decoder different numbers of tokens, so the shape of
each map tells to which stack it belongs; no names have to be known.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from headscope.errors import ModelError
from headscope.model.capture.projections import Finder, Projection
from headscope.model.capture.sighting import Report, Route, Sighting

TOKENS, DECODER_TOKENS = 5, 4
"""in the run that shows a model's anatomy; they differ, so that maps tell where they come from"""
STACKS = ("encoder", "decoder", "cross")
NOT_SOFTMAX = re.compile(r"linear|lightning|delta|mamba|ssm|recurr|rwkv|retention|conv|mixer", re.IGNORECASE)
"""what modules are called that have no attention maps, even where their names speak of attention"""
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")


@dataclass(frozen=True)
class Anatomy:
    """One stack."""

    stack: str
    layers: int
    heads: int
    causal: bool
    """no token looks at a later one"""
    numbers: tuple[int, ...]
    """the layers' true numbers; in a hybrid some layers have no attention, and their numbers are not here"""
    depth: int
    """layers in all, those without attention included"""
    routes: tuple[Route, ...]
    verified: bool
    """what was captured is what every layer's output projection got"""
    gated: bool
    """something is done to the heads' outputs before the projection mixes them, and is part of what is captured"""


@dataclass(frozen=True)
class Call:
    """One attention computation: whose it was, and what was seen of it."""

    module: torch.nn.Module
    stack: str | None
    """None: of no use, because it relates something else than tokens"""
    queries: int
    keys: int
    heads: int
    causal: bool
    route: Route
    projection: Projection | None

    @property
    def late(self) -> bool:
        """What the heads write is known only when it enters the projection."""
        return self.projection is not None and not self.projection.direct


@dataclass(frozen=True)
class Plan:
    """The attention computations of one run, in order, and the stacks they make up."""

    calls: tuple[Call, ...]
    stacks: dict[str, Anatomy]

    def of(self, stacks: Sequence[str]) -> list[Call]:
        return [call for call in self.calls if call.stack in stacks]


def examine(name: str, network: Any, run: Callable[[Report], None], *, patches: int | None = None) -> Plan:
    """Run a network over TOKENS tokens (its decoder, if it is one with an encoder, over DECODER_TOKENS) and look.

    `patches`: it is run over an image, and so many are its tokens.
    """
    two = is_double(network)
    finder = Finder()
    with finder.listening(network):
        run(finder.saw)
    seen = zip(finder.sightings, finder.projections(), strict=True)
    if patches is not None:
        _check_patches(name, network, finder.sightings, patches)
    calls = [_call(sighting, projection, two, patches or TOKENS) for sighting, projection in seen]
    if not calls:
        raise ModelError(
            f"{name}: nothing was captured: the model type {_kind(network)!r} has no attention layers, or none with a "
            "softmax over tokens"
        )
    if not any(call.stack for call in calls):
        q, k = calls[0].queries, calls[0].keys
        raise ModelError(
            f"{name}: the attention of the model type {_kind(network)!r} relates no tokens: for a text of {TOKENS} "
            f"tokens its maps are {q} × {k} (it attends in chunks, to fewer positions, or to positions of its own)"
        )
    if not two and all(call.causal for call in calls if call.stack):
        calls = [replace(call, stack=call.stack and "decoder") for call in calls]
    named = [stack for stack in STACKS if any(call.stack == stack for call in calls)]
    return Plan(tuple(calls), {stack: _anatomy(name, network, stack, calls) for stack in named})


def _check_patches(name: str, network: Any, sightings: list[Sighting], patches: int) -> None:
    """Every layer of a vision transformer relates all its tokens; what looks from one place alone is a pooling head."""
    for sighting in sightings:
        images, *_, queries, keys = sighting.attention.shape
        if sighting.attention.dim() != 4 or images != 1 or (queries > 1 and (queries, keys) != (patches, patches)):
            raise ModelError(
                f"{name}: the model type {_kind(network)!r} cannot be watched: its layers do not all relate the "
                f"{patches:,} tokens of an image to each other, but {queries:,} to {keys:,} in {images:,} windows "
                f"({type(sighting.module).__name__}): it attends in windows, or its maps shrink"
            )


def _call(sighting: Sighting, projection: Projection | None, two: bool, tokens: int = TOKENS) -> Call:
    _, heads, queries, keys = sighting.attention.shape
    shapes = {(tokens, tokens): "encoder"}
    if two:
        shapes |= {(DECODER_TOKENS, DECODER_TOKENS): "decoder", (DECODER_TOKENS, tokens): "cross"}
    if sighting.output.shape[1] != queries or sighting.output.shape[2] != heads:
        raise ModelError(
            f"{type(sighting.module).__name__} writes {tuple(sighting.output.shape)} for maps of "
            f"{tuple(sighting.attention.shape)}: the heads of one are not those of the other"
        )
    ahead = sighting.attention[0].triu(1)
    return Call(
        module=sighting.module,
        stack=shapes.get((queries, keys)),
        queries=queries,
        keys=keys,
        heads=heads,
        causal=not bool(ahead.any()),
        route=sighting.route,
        projection=projection,
    )


def _anatomy(name: str, network: Any, stack: str, calls: list[Call]) -> Anatomy:
    own = [call for call in calls if call.stack == stack]
    counts = sorted({call.heads for call in own})
    if len(counts) > 1:
        raise ModelError(
            f"{name}: the layers of its {stack} differ in their number of heads ({counts}), which a study cannot hold"
        )
    expected = _heads_said(network, own[0].module)
    if expected is not None and expected != counts[0]:
        raise ModelError(f"{name}: captured {counts[0]} heads a layer where the model says {expected}")
    numbers, depth = _layers(name, network, own)
    return Anatomy(
        stack=stack,
        layers=len(own),
        heads=counts[0],
        # What a decoder looks at in an encoder may lie anywhere: there is no later one.
        causal=stack != "cross" and all(call.causal for call in own),
        numbers=numbers,
        depth=depth,
        routes=tuple(sorted({call.route for call in own})),
        verified=all(call.projection is not None for call in own),
        gated=any(call.late for call in own),
    )


def _heads_said(network: Any, module: torch.nn.Module) -> int | None:
    """How many heads the module, or else the configuration, says it has."""
    for source in (module, network.config.get_text_config()):
        for attribute in HEAD_COUNTS:
            count = getattr(source, attribute, None)
            if isinstance(count, int):
                return count
    return None


def _layers(name: str, network: Any, own: list[Call]) -> tuple[tuple[int, ...], int]:
    """The layers' numbers, and how many layers there are in all."""
    places = places_of(network, own)
    if places is None:
        # One module serves several layers (ALBERT): there is no other number than the order of their calls.
        said = getattr(network.config.get_text_config(), "num_hidden_layers", None)
        if isinstance(said, int) and said != len(own):
            raise ModelError(f"{name}: captured {len(own)} layers where its configuration says {said}")
        return tuple(range(len(own))), len(own)
    container, numbers = places
    layers = list(network.get_submodule(container))
    seen = {type(call.module) for call in own}
    for number, layer in enumerate(layers):
        if number not in numbers:
            _check_without_attention(name, number, layer, seen)
    return numbers, len(layers)


def places_of(network: Any, own: list[Call]) -> tuple[str, tuple[int, ...]] | None:
    """The list of layers these modules stand in, and their places there; None if they do not stand in order."""
    paths: dict[int, list[str]] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    found: list[tuple[str, int]] = []
    for call in own:
        # A module that several layers share stands at several places, and is called once for each, in order.
        left = paths[id(call.module)]
        match = re.match(r"(.*?)\.?(\d+)(?:\.|$)", left.pop(0)) if left else None
        if match is None:
            return None
        found.append((match[1], int(match[2])))
    containers, numbers = {container for container, _ in found}, tuple(number for _, number in found)
    if len(containers) > 1 or any(a >= b for a, b in pairwise(numbers)):
        return None
    return containers.pop(), numbers


def _check_without_attention(name: str, number: int, layer: torch.nn.Module, seen: set[type]) -> None:
    """A layer in which no attention was captured must be one that has none: else the study would lack it."""
    for module in layer.modules():
        kind = type(module).__name__
        if type(module) in seen or (re.search("attention|attn", kind, re.IGNORECASE) and not NOT_SOFTMAX.search(kind)):
            raise ModelError(
                f"{name}: layer {number} has attention ({kind}) of which nothing was captured: it cannot be watched"
            )


def is_double(network: Any) -> bool:
    """Encoder and decoder, each with a text of its own; a configuration may say so of one half alone."""
    return bool(getattr(network.config, "is_encoder_decoder", False)) and (
        "decoder_input_ids" in inspect.signature(network.forward).parameters
    )


def _kind(network: Any) -> str:
    return str(getattr(network.config, "model_type", type(network).__name__))

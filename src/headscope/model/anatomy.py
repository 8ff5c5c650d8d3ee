"""What a model is made of, as one run over a few tokens shows it: its stacks, their layers, their heads.

A *stack* is a column of layers of one kind of attention: an encoder's, a decoder's own (`decoder`), and a decoder's
over what the encoder made (`cross`). The run gives encoder and decoder different numbers of tokens, so the shape of
each map tells to which stack it belongs; no names have to be known.

Which tokens of an image model are the patches of its image is found by running it too, not from its configuration: a
patch that changes shows which token it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from headscope.errors import ModelError
from headscope.model.capture.observation import Finder, Projection, Report, Route, Sighting
from headscope.model.capture.watching import watching
from headscope.types import Floats

TOKENS, DECODER_TOKENS = 5, 4
"""in the run that shows a model's anatomy; they differ, so that maps tell where they come from"""
STACKS = ("encoder", "decoder", "cross")
NOT_SOFTMAX = re.compile(r"linear|lightning|delta|mamba|ssm|recurr|rwkv|retention|conv|mixer", re.IGNORECASE)
"""what modules are called that have no attention maps, even where their names speak of attention"""
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")

CHANGE = 4.0
"""what is added to a patch to see which token it is; pixels lie within about ±2 when a model gets them"""
SEEN = 1e-3
"""a token has changed that differs by more than this, relative to the largest value"""

Shape = tuple[int, ...]
"""channels, height, width of an image"""


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


@dataclass(frozen=True)
class Layout:
    """A model's tokens of one image: special ones, all patches row by row, perhaps more special ones."""

    rows: int
    columns: int
    first: int
    """the place of the first patch, which is the number of special tokens before it"""
    length: int
    distilled: bool = False
    """the second token is DeiT's, which learned from another model"""

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    def name(self, place: int) -> str:
        """`r3c5` for a patch; what stands before the patches is `[CLS]`, `[REG1]`, …, what stands after `[DET1]`, ….

        >>> [Layout(2, 2, 2, 7).name(k) for k in range(7)]
        ['[CLS]', '[REG1]', 'r0c0', 'r0c1', 'r1c0', 'r1c1', '[DET1]']
        """
        if place < self.first:
            return "[CLS]" if place == 0 else "[DIST]" if self.distilled else f"[REG{place}]"
        patch = place - self.first
        if patch >= self.patches:
            return f"[DET{patch - self.patches + 1}]"
        return "r{}c{}".format(*divmod(patch, self.columns))


def lay_out(label: str, network: Any, shape: Shape) -> Layout:
    """Run a network on images of this shape, one patch changed, and look which token that is."""
    probe = _Probe(label, network, shape)
    rows, columns, (height, width) = probe.grid()
    images = np.zeros((3, *shape), dtype=np.float32)
    images[1, :, :height, :width] += CHANGE
    down, right = height * (rows - 1), width * (columns - 1)
    images[2, :, down : down + height, right : right + width] += CHANGE
    base, *changed = probe.before_attention(images, rows * columns)
    moved = [((one - base).abs().amax(-1) > SEEN * base.abs().max()).nonzero().flatten().tolist() for one in changed]
    if [len(places) for places in moved] != [1, 1] or moved[1][0] - moved[0][0] != rows * columns - 1:
        raise probe.refused(
            f"its {len(base):,} tokens are not its {rows} × {columns} patches, one for each, in order: it attends in "
            "windows, or its maps shrink"
        )
    distilled = any(name.endswith("distillation_token") for name, _ in network.named_parameters())
    return Layout(rows, columns, moved[0][0], len(base), distilled)


def image_inputs(network: Any, pixels: Floats, patches: int) -> dict[str, Any]:
    """What a network is given for images (image, channel, height, width) of so many patches; 0: not known yet."""
    weight = next(each for each in network.parameters() if each.is_floating_point())
    made = {"pixel_values": torch.from_numpy(np.ascontiguousarray(pixels)).to(weight.device, weight.dtype)}
    if patches and "noise" in inspect.signature(network.forward).parameters:
        # ViT-MAE orders its patches by random numbers, to leave out the last of them.
        made["noise"] = torch.arange(patches, dtype=torch.float32, device=weight.device).expand(len(pixels), -1)
    return made


@contextmanager
def unmasked(network: Any) -> Iterator[None]:
    """Within this context ViT-MAE sees all of its image."""
    config: Any = getattr(network, "config", None)
    ratio = getattr(config, "mask_ratio", None)
    if ratio is None:
        yield
        return
    config.mask_ratio = 0.0
    try:
        yield
    finally:
        config.mask_ratio = ratio


@dataclass(frozen=True)
class _Probe:
    label: str
    network: Any
    shape: Shape

    def grid(self) -> tuple[int, int, tuple[int, int]]:
        """Rows and columns of patches, and their height and width: what the convolution that gets the image makes."""
        found: list[tuple[int, int, tuple[int, int]]] = []

        def cut(module: Any, args: tuple[Any, ...], made: torch.Tensor) -> None:
            if not found and tuple(args[0].shape[1:]) == self.shape:
                found.append((made.shape[2], made.shape[3], tuple(module.stride)))

        hooks = [each.register_forward_hook(cut) for each in self._all(torch.nn.Conv2d)]
        self._run(np.zeros((1, *self.shape), dtype=np.float32), 0, lambda sighting: None, hooks)
        if not found:
            raise self.refused("no convolution cuts its images into patches")
        return found[0]

    def before_attention(self, images: Floats, patches: int) -> torch.Tensor:
        """What enters the last linear map before the first attention: all tokens, not yet mixed."""
        seen: list[Sighting] = []
        entered: list[torch.Tensor] = []

        def enter(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if not seen and args and args[0].dim() == 3 and len(args[0]) == len(images):
                entered[:] = [args[0].float()]

        hooks = [each.register_forward_pre_hook(enter) for each in self._all(torch.nn.Linear)]
        self._run(images, patches, seen.append, hooks)
        if not seen:
            raise self.refused("it has no attention layers, or none with a softmax over patches")
        if not entered:
            raise self.refused("it attends in windows, or over something else than one row of tokens an image")
        return entered[0]

    def _all(self, kind: type[torch.nn.Module]) -> list[torch.nn.Module]:
        return [module for module in self.network.modules() if isinstance(module, kind)]

    def _run(self, images: Floats, patches: int, saw: Callable[[Sighting], None], hooks: Iterable[Any]) -> None:
        try:
            with watching(self.network, saw, batch=len(images)), unmasked(self.network), torch.inference_mode():
                self.network(**image_inputs(self.network, images, patches))
        except ModelError:
            raise
        except Exception as error:  # what models raise that want something else than an image, or one of another size
            first = next(iter(str(error).splitlines()), type(error).__name__)
            size = f"{self.shape[-1]} × {self.shape[-2]} pixels"
            raise self.refused(f"it does not run on an image of {size} alone: {first}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def refused(self, why: str) -> ModelError:
        kind = getattr(self.network.config, "model_type", type(self.network).__name__)
        return ModelError(f"{self.label}: the model type {kind!r} cannot be watched: {why}")

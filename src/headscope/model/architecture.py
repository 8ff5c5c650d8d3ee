"""Find a model's stacks, layers and heads by running it over a few tokens.

A *stack* is a series of layers with one kind of attention: an encoder's, a decoder's own (`decoder`), or a decoder's
attention to the encoder's outputs (`cross`). The run gives encoder and decoder different numbers of tokens, so the
shape of each map shows which stack it belongs to, without knowing any module names.

Which tokens of an image model are the patches of its image is also found by running it, not from its configuration:
changing one patch changes one token.
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

from headscope.array_types import Floats
from headscope.errors import ModelError, make_nonfinite_error
from headscope.model.capture.attention_interface import watch_attention
from headscope.model.capture.records import CapturedAttention, Projection, Route
from headscope.model.capture.verification import Recording, RunNetwork, verify_captures

TOKENS, DECODER_TOKENS = 5, 4
"""tokens in the probing run; the numbers differ, so that the shape of a map shows its stack"""
STACKS = ("encoder", "decoder", "cross")
NOT_SOFTMAX = re.compile(r"linear|lightning|delta|mamba|ssm|recurr|rwkv|retention|conv|mixer", re.IGNORECASE)
"""class names of modules without attention maps, even where the names contain `attention`"""
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")

PROBE_CHANGE = 4.0
"""added to a patch to see which token it becomes; pixels that reach a model lie within about ±2"""
CHANGE_TOLERANCE = 1e-3
"""a token has changed if it differs by more than this, relative to the largest value"""

ImageShape = tuple[int, ...]
"""channels, height, width of an image"""


@dataclass(frozen=True)
class StackArchitecture:
    """Layers and heads of one stack."""

    stack: str
    layers: int
    heads: int
    """of a layer; the largest number if layers differ"""
    head_counts: tuple[int, ...]
    """number of heads of each layer; in models with removed heads they differ"""
    causal: bool
    """no token attends to a later one"""
    numbers: tuple[int, ...]
    """the layers' numbers in the model; a hybrid has further layers without attention"""
    depth: int
    """number of all layers, including those without attention"""
    routes: tuple[Route, ...]
    verified: bool
    """what is captured is what every layer's output projection gets as input, and each map times its values"""
    gated: bool
    """the model changes each head's outputs before the projection; the changed outputs are captured"""
    width: int
    """of what a head writes, in the widest layer"""
    problem: str = ""
    """why it is not verified"""

    def list_heads(self) -> list[tuple[int, int]]:
        """Return the number of the layer and the number in the layer of every head, layer by layer."""
        pairs = zip(self.numbers, self.head_counts, strict=True)
        return [(layer, head) for layer, count in pairs for head in range(count)]


@dataclass(frozen=True)
class AttentionCall:
    """One attention computation: its module, and what was captured of it."""

    module: torch.nn.Module
    stack: str | None
    """None: not attention between tokens, so it is ignored"""
    queries: int
    keys: int
    heads: int
    width: int
    causal: bool
    route: Route
    projection: Projection | None
    """None: not verified, or no module"""
    nonfinite_head: int | None = None
    """the first head whose outputs are NaN or infinite"""
    problem: str = ""
    """why it is not verified"""

    @property
    def is_indirect(self) -> bool:
        """Whether the heads' outputs are known only from the projection's input."""
        return self.projection is not None and not self.projection.direct


@dataclass(frozen=True)
class AttentionPlan:
    """The attention computations of one run, in order, and the stacks they belong to."""

    calls: tuple[AttentionCall, ...]
    stacks: dict[str, StackArchitecture]

    def of(self, stacks: Sequence[str]) -> list[AttentionCall]:
        return [call for call in self.calls if call.stack in stacks]


def examine(name: str, network: Any, run: RunNetwork, *, patches: int | None = None) -> AttentionPlan:
    """Run a network over `TOKENS` tokens, and its decoder over `DECODER_TOKENS`, and return its attention computations.

    Args:
        run: Runs the network on the same tokens whenever it is called, with the callback observing its attention.
        patches: Number of tokens of an image, if the network is run on one.

    Raises:
        ModelError: If its attention cannot be captured, or is not between tokens.
    """
    has_decoder = has_encoder_and_decoder(network)
    recording = Recording.of_run(network, run)
    if patches is not None:
        _check_patches(name, network, recording.captures, patches)
    calls = [_make_call(captured, has_decoder, patches or TOKENS) for captured in recording.captures]
    if not calls:
        raise ModelError(
            f"{name}: nothing was captured: the model type {_get_model_type(network)!r} has no attention layers, "
            "or none with a softmax over tokens"
        )
    if not any(call.stack for call in calls):
        q, k = calls[0].queries, calls[0].keys
        raise ModelError(
            f"{name}: the attention of the model type {_get_model_type(network)!r} relates no tokens: for a text of "
            f"{TOKENS} tokens its maps are {q} × {k} (it attends in chunks, to fewer positions, or to positions of its "
            "own)"
        )
    if not has_decoder and all(call.causal for call in calls if call.stack):
        calls = [replace(call, stack=call.stack and "decoder") for call in calls]
    repeated = recording.find_repeated_attention()
    if repeated is not None:
        raise ModelError(
            f"{name}: the {type(repeated.module).__name__} of the model type {_get_model_type(network)!r} computes "
            "attention more than once before its output projection (differential attention subtracts one map from "
            "another): a layer has several maps, and a study holds one"
        )
    if not has_decoder and patches is None:
        _check_positions(name, network, calls)
    stacks = [stack for stack in STACKS if any(call.stack == stack for call in calls)]
    groups = [{number for number, call in enumerate(calls) if call.stack == stack} for stack in stacks]
    for number, verdict in verify_captures(network, run, recording, groups).items():
        calls[number] = replace(calls[number], projection=verdict.projection, problem=verdict.problem)
    return AttentionPlan(tuple(calls), {stack: _build_architecture(name, network, stack, calls) for stack in stacks})


def _check_patches(name: str, network: Any, captures: list[CapturedAttention], patches: int) -> None:
    """Raise if a layer does not relate all patches to each other.

    A single query is a pooling head, which is allowed.
    """
    for captured in captures:
        batch, *_, queries, keys = captured.attention.shape
        if captured.attention.dim() != 4 or batch != 1 or (queries > 1 and (queries, keys) != (patches, patches)):
            raise ModelError(
                f"{name}: the model type {_get_model_type(network)!r} cannot be watched: its layers do not all "
                f"relate the {patches:,} tokens of an image to each other, but {queries:,} to {keys:,} in {batch:,} "
                f"windows ({type(captured.module).__name__}): it attends in windows, or its maps shrink"
            )


def _check_positions(name: str, network: Any, calls: list[AttentionCall]) -> None:
    """Raise if some layers relate tokens and others something else: a study would silently lack the latter."""
    attention_types = {type(call.module) for call in calls if call.stack}
    others = [call for call in calls if call.stack is None and type(call.module) in attention_types]
    if others:
        q, k = others[0].queries, others[0].keys
        raise ModelError(
            f"{name}: {len(others)} of {len(calls)} attention layers of the model type {_get_model_type(network)!r} "
            f"relate no tokens: for a text of {TOKENS} tokens their maps are {q} × {k} (groups of tokens, or positions "
            "of their own)"
        )


def _make_call(captured: CapturedAttention, has_decoder: bool, tokens: int = TOKENS) -> AttentionCall:
    _, heads, queries, keys = captured.attention.shape
    stacks = {(tokens, tokens): "encoder"}
    if has_decoder:
        stacks |= {(DECODER_TOKENS, DECODER_TOKENS): "decoder", (DECODER_TOKENS, tokens): "cross"}
    if captured.output.shape[1] != queries or captured.output.shape[2] != heads:
        raise ModelError(
            f"{type(captured.module).__name__} writes {tuple(captured.output.shape)} for maps of "
            f"{tuple(captured.attention.shape)}: the heads of one are not those of the other"
        )
    future = captured.attention[0].triu(1)
    nonfinite = ~torch.isfinite(captured.output).all(3).all(1).all(0)
    return AttentionCall(
        module=captured.module,
        stack=stacks.get((queries, keys)),
        queries=queries,
        keys=keys,
        heads=heads,
        width=captured.output.shape[3],
        causal=not bool(future.any()),
        route=captured.route,
        projection=None,
        nonfinite_head=next(iter(nonfinite.nonzero().flatten().cpu().tolist()), None),
    )


def _build_architecture(name: str, network: Any, stack: str, calls: list[AttentionCall]) -> StackArchitecture:
    stack_calls = [call for call in calls if call.stack == stack]
    head_counts = tuple(call.heads for call in stack_calls)
    for call in stack_calls:
        # The configuration has one number for all layers: where they differ, heads were removed from some.
        sources = [call.module, *([network.config.get_text_config()] if len(set(head_counts)) == 1 else [])]
        expected = _find_declared_heads(sources)
        if expected is not None and expected != call.heads:
            raise ModelError(f"{name}: captured {call.heads} heads per layer where the model says {expected}")
    numbers, depth = _number_layers(name, network, stack_calls)
    pairs = list(zip(numbers, stack_calls, strict=True))
    for number, call in pairs:
        if call.nonfinite_head is not None:
            raise make_nonfinite_error(number, call.nonfinite_head)
    problems = [f"layer {number}: {call.problem}" for number, call in pairs if call.problem]
    return StackArchitecture(
        stack=stack,
        layers=len(stack_calls),
        heads=max(head_counts),
        head_counts=head_counts,
        # In cross-attention, no token is later than another.
        causal=stack != "cross" and all(call.causal for call in stack_calls),
        numbers=numbers,
        depth=depth,
        routes=tuple(sorted({call.route for call in stack_calls})),
        verified=not problems,
        gated=any(call.is_indirect for call in stack_calls),
        problem="".join(problems[:1]),
        width=max(call.width for call in stack_calls),
    )


def _find_declared_heads(sources: Iterable[Any]) -> int | None:
    """Return the number of heads according to the first of some modules and configurations that has one."""
    for source in sources:
        for attribute in HEAD_COUNTS:
            count = getattr(source, attribute, None)
            if isinstance(count, int):
                return count
    return None


def _number_layers(name: str, network: Any, calls: list[AttentionCall]) -> tuple[tuple[int, ...], int]:
    """Return the numbers of the layers with attention, and the number of all layers."""
    positions = find_layer_positions(network, calls)
    if positions is None:
        # One module serves several layers (ALBERT): the order of its calls numbers them.
        declared = getattr(network.config.get_text_config(), "num_hidden_layers", None)
        if isinstance(declared, int) and declared != len(calls):
            raise ModelError(f"{name}: captured {len(calls)} layers where its configuration says {declared}")
        return tuple(range(len(calls))), len(calls)
    container, numbers = positions
    layers = list(network.get_submodule(container))
    attention_types = {type(call.module) for call in calls}
    for number, layer in enumerate(layers):
        if number not in numbers:
            _verify_no_attention(name, number, layer, attention_types)
    return numbers, len(layers)


def find_layer_positions(network: Any, calls: list[AttentionCall]) -> tuple[str, tuple[int, ...]] | None:
    """Return the path of the list of layers that holds these modules, and their positions in it.

    Return None if the modules are not in one list, in order.
    """
    paths: dict[int, list[str]] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    positions: list[tuple[str, int]] = []
    for call in calls:
        # A module shared by several layers has several paths, and is called once for each, in order.
        remaining = paths[id(call.module)]
        match = re.match(r"(.*?)\.?(\d+)(?:\.|$)", remaining.pop(0)) if remaining else None
        if match is None:
            return None
        positions.append((match[1], int(match[2])))
    containers, numbers = {container for container, _ in positions}, tuple(number for _, number in positions)
    if len(containers) > 1 or any(a >= b for a, b in pairwise(numbers)):
        return None
    return containers.pop(), numbers


def _verify_no_attention(name: str, number: int, layer: torch.nn.Module, attention_types: set[type]) -> None:
    """Raise if a layer of which nothing was captured has attention: a study would silently lack it."""
    for module in layer.modules():
        kind = type(module).__name__
        if type(module) in attention_types or (
            re.search("attention|attn", kind, re.IGNORECASE) and not NOT_SOFTMAX.search(kind)
        ):
            raise ModelError(
                f"{name}: layer {number} has attention ({kind}) of which nothing was captured: it cannot be watched"
            )


def has_encoder_and_decoder(network: Any) -> bool:
    """Return whether a network has an encoder and a decoder, each with its own text.

    One half alone may have a configuration that claims so; its `forward` takes no text for a decoder.
    """
    return bool(getattr(network.config, "is_encoder_decoder", False)) and (
        "decoder_input_ids" in inspect.signature(network.forward).parameters
    )


def _get_model_type(network: Any) -> str:
    return str(getattr(network.config, "model_type", type(network).__name__))


@dataclass(frozen=True)
class Layout:
    """Order of a model's tokens of one image: special ones, all patches row by row, maybe more special ones."""

    rows: int
    columns: int
    first: int
    """position of the first patch: the number of special tokens before it"""
    length: int
    distilled: bool = False
    """the second token is DeiT's distillation token"""

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    def format_name(self, position: int) -> str:
        """Return the name of a token: `r3c5` for a patch, `[CLS]`, `[REG1]`, … before the patches, `[DET1]`, … after.

        >>> [Layout(2, 2, 2, 7).format_name(k) for k in range(7)]
        ['[CLS]', '[REG1]', 'r0c0', 'r0c1', 'r1c0', 'r1c1', '[DET1]']
        """
        if position < self.first:
            return "[CLS]" if position == 0 else "[DIST]" if self.distilled else f"[REG{position}]"
        patch = position - self.first
        if patch >= self.patches:
            return f"[DET{patch - self.patches + 1}]"
        return "r{}c{}".format(*divmod(patch, self.columns))


def find_layout(label: str, network: Any, shape: ImageShape) -> Layout:
    """Find which token each patch becomes, by running a network on images of which one patch is changed."""
    probe = _ImageProbe(label, network, shape)
    rows, columns, (height, width) = probe.find_grid()
    images = np.zeros((3, *shape), dtype=np.float32)
    images[1, :, :height, :width] += PROBE_CHANGE
    down, right = height * (rows - 1), width * (columns - 1)
    images[2, :, down : down + height, right : right + width] += PROBE_CHANGE
    base, *changed = probe.capture_embeddings(images, rows * columns)
    moved = [
        ((image - base).abs().amax(-1) > CHANGE_TOLERANCE * base.abs().max()).nonzero().flatten().tolist()
        for image in changed
    ]
    if [len(places) for places in moved] != [1, 1] or moved[1][0] - moved[0][0] != rows * columns - 1:
        raise probe.make_error(
            f"its {len(base):,} tokens are not its {rows} × {columns} patches, one for each, in order: it attends in "
            "windows, or its maps shrink"
        )
    distilled = any(name.endswith("distillation_token") for name, _ in network.named_parameters())
    return Layout(rows, columns, moved[0][0], len(base), distilled)


def make_image_inputs(network: Any, pixels: Floats, patches: int) -> dict[str, Any]:
    """Return the arguments of `forward` for images.

    Args:
        pixels: (image, channel, height, width).
        patches: Number of patches of an image; 0 if it is not known yet.
    """
    weight = next(parameter for parameter in network.parameters() if parameter.is_floating_point())
    inputs = {"pixel_values": torch.from_numpy(np.ascontiguousarray(pixels)).to(weight.device, weight.dtype)}
    if patches and "noise" in inspect.signature(network.forward).parameters:
        # ViT-MAE orders its patches by random numbers, to leave out the last of them.
        inputs["noise"] = torch.arange(patches, dtype=torch.float32, device=weight.device).expand(len(pixels), -1)
    return inputs


@contextmanager
def disable_image_masking(network: Any) -> Iterator[None]:
    """Let ViT-MAE use all patches of its images, within this context."""
    config: Any = getattr(network, "config", None)
    mask_ratio = getattr(config, "mask_ratio", None)
    if mask_ratio is None:
        yield
        return
    config.mask_ratio = 0.0
    try:
        yield
    finally:
        config.mask_ratio = mask_ratio


@dataclass(frozen=True)
class _ImageProbe:
    label: str
    network: Any
    shape: ImageShape

    def find_grid(self) -> tuple[int, int, tuple[int, int]]:
        """Return the number of rows and columns of patches, and a patch's height and width.

        They are the output shape and the stride of the first convolution that gets the image.
        """
        grids: list[tuple[int, int, tuple[int, int]]] = []

        def record(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> None:
            if not grids and tuple(args[0].shape[1:]) == self.shape:
                grids.append((output.shape[2], output.shape[3], tuple(module.stride)))

        hooks = [convolution.register_forward_hook(record) for convolution in self._list_modules(torch.nn.Conv2d)]
        self._run_network(np.zeros((1, *self.shape), dtype=np.float32), 0, lambda captured: None, hooks)
        if not grids:
            raise self.make_error("no convolution cuts its images into patches")
        return grids[0]

    def capture_embeddings(self, images: Floats, patches: int) -> torch.Tensor:
        """Return the input of the last linear map before the first attention: all tokens, not yet mixed.

        Its shape is (image, token, width).
        """
        captures: list[CapturedAttention] = []
        inputs: list[torch.Tensor] = []

        def record(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
            if not captures and args and args[0].dim() == 3 and len(args[0]) == len(images):
                inputs[:] = [args[0].float()]

        hooks = [linear.register_forward_pre_hook(record) for linear in self._list_modules(torch.nn.Linear)]
        self._run_network(images, patches, captures.append, hooks)
        if not captures:
            raise self.make_error("it has no attention layers, or none with a softmax over patches")
        if not inputs:
            raise self.make_error("it attends in windows, or not over one row of tokens per image")
        return inputs[0]

    def _list_modules(self, module_type: type[torch.nn.Module]) -> list[torch.nn.Module]:
        return [module for module in self.network.modules() if isinstance(module, module_type)]

    def _run_network(
        self, images: Floats, patches: int, on_capture: Callable[[CapturedAttention], None], hooks: Iterable[Any]
    ) -> None:
        try:
            with (
                watch_attention(self.network, on_capture, batch=len(images)),
                disable_image_masking(self.network),
                torch.inference_mode(),
            ):
                self.network(**make_image_inputs(self.network, images, patches))
        except ModelError:
            raise
        except Exception as error:  # of many kinds: the model may need other inputs, or another size
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            size = f"{self.shape[-1]} × {self.shape[-2]} pixels"
            raise self.make_error(f"it does not run on an image of {size} alone: {reason}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def make_error(self, reason: str) -> ModelError:
        model_type = getattr(self.network.config, "model_type", type(self.network).__name__)
        return ModelError(f"{self.label}: the model type {model_type!r} cannot be watched: {reason}")

"""Verification of the capture for any architecture, and the table of the verified ones.

The captured outputs of the heads, concatenated and put through the module's output projection, equal what that
projection returned while the model ran; and the model's result is the same, bit for bit, when nothing is captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from headscope.array_types import Bools, Ints
from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Batch
from headscope.model.architecture import StackArchitecture, disable_image_masking
from headscope.model.image_patches import Patches
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.families import FAMILIES, Family

LENGTHS = (11, 7, 2)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class LeftPadded(Batch):
    """A batch padded on the left. headscope never makes one, but must capture models correctly on it too."""

    sources: Ints | None = None

    @property
    def source(self) -> tuple[Ints, Bools] | None:
        return None if self.sources is None else (self.sources, self.real)


@cache
def build_network(name: str) -> PreTrainedModel:
    return tiny.network(name)


def watched(name: str) -> Model:
    images = FAMILIES[name].padding == "none"
    return load(build_network(name), tiny.image_processor() if images else tiny.tokenizer())


def batch(model: Model, family: Family, side: str) -> Batch:
    """Return windows of several lengths as the model's stack reads them, padded on one side.

    For a model that reads images, return images, which need no padding.
    """
    if isinstance(model.tokens, Patches):
        pictures = as_corpus(tiny.pictures(len(LENGTHS), seed=3))
        return Batch.of(window for picture in pictures for window in model.tokens.windows(picture))
    windows = [model.adapt_window(window) for window in tiny.batch(*LENGTHS, seed=3).windows]
    right = Batch.of(windows, family.pad_id)
    if side == "right":
        return right
    flipped = [_pad_left(rows, right.real) for rows in (right.ids, *(right.source or ())[:1])]
    return LeftPadded(windows, flipped[0], right.real[:, ::-1].copy(), family.pad_id, *flipped[1:])


def _pad_left(rows: Ints, real: Bools) -> Ints:
    """Return the same rows with their padding in front."""
    return np.stack([np.roll(row, len(row) - int(is_real.sum())) for row, is_real in zip(rows, real, strict=True)])


def inputs(model: Model, batch: Batch) -> dict[str, torch.Tensor]:
    if isinstance(model.tokens, Patches):
        return model.tokens.inputs(np.stack([window.pixels for window in batch.windows]))
    ids, mask = torch.from_numpy(batch.ids), torch.from_numpy(batch.real.astype(np.int64))
    if batch.source is None:
        return {"input_ids": ids, "attention_mask": mask}
    source = torch.from_numpy(batch.source[0])
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": ids, "decoder_attention_mask": mask}


def result(model: Model, batch: Batch) -> torch.Tensor:
    """Return the last hidden state of a run over a batch."""
    network = model.network
    if model.is_encoder_decoder and batch.source is None:
        network = network.get_encoder()
    with torch.inference_mode(), disable_image_masking(network):
        return network(
            **inputs(model, batch), **({"use_cache": False} if _has_cache(network) else {})
        ).last_hidden_state


def _has_cache(network: Any) -> bool:
    return "use_cache" in inspect.signature(network.forward).parameters


@dataclass(frozen=True)
class ProjectionCall:
    """One call of an output projection."""

    module: torch.nn.Module
    given: tuple[Any, ...]
    returned: torch.Tensor


def _get_first(returned: Any) -> torch.Tensor:
    return returned[0] if isinstance(returned, tuple) else returned


@contextmanager
def record_projections(model: Model) -> Iterator[list[ProjectionCall]]:
    """Record inputs and results of each call of an output projection of the observed stack, within this context."""
    calls = model.attention_plan.of([model.architecture.stack])
    modules = {id(call.projection.module): call.projection.module for call in calls if call.projection is not None}
    recorded: list[ProjectionCall] = []
    handles = [
        projection.register_forward_hook(
            lambda module, args, returned: recorded.append(ProjectionCall(module, args, _get_first(returned)))
        )
        for projection in modules.values()
    ]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def measure_error(model: Model, batch: Batch) -> float:
    """Return the largest relative difference between projected captures and what the projections returned."""
    seen = tiny.LayerRecorder()
    with record_projections(model) as projections:
        model.observe(batch, seen)
    assert len(seen.outputs) == len(projections) == model.architecture.layers
    largest_error = 0.0
    for output, call in zip(seen.outputs, projections, strict=True):
        largest = call.returned.abs().max()
        assert largest > 1e-3, "nothing to compare"
        with torch.inference_mode():
            projected = _get_first(call.module(_match_layout(output.flatten(2), call.given[0]), *call.given[1:]))
        largest_error = max(largest_error, float((projected - call.returned).abs().max() / largest))
    return largest_error


def _match_layout(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the concatenated heads in the layout in which this projection gets them."""
    if target.shape == outputs.transpose(1, 2).shape and target.shape != outputs.shape:
        return outputs.transpose(1, 2)  # channels first
    if target.shape == outputs.transpose(0, 1).shape and target.shape != outputs.shape:
        return outputs.transpose(0, 1)  # one text beside the other
    if target.numel() > outputs.numel():
        return torch.cat([outputs, target[..., outputs.shape[2] :]], dim=-1)  # followed by features that are no heads
    return outputs.reshape(target.shape)


@dataclass(frozen=True)
class Row:
    """A row of the table: what is known of an architecture."""

    name: str
    stacks: str
    heads: str
    route: str
    verified: str
    note: str


@cache
def verify(name: str) -> Row:
    """Examine an architecture and verify its capture on every stack, with padding on each side that it supports."""
    family, model = FAMILIES[name], watched(name)
    sides = ("left", "right") if family.padding == "both" else (family.padding,)
    errors = [
        measure_error(stack_model, batch(stack_model, family, side)) if family.verified else 0.0
        for stack_model in map(model.on, model.stacks)
        for side in sides
    ]
    stacks = [model.on(stack).architecture for stack in model.stacks]
    heads = sorted({architecture.heads for architecture in stacks})
    keys = _get_key_heads(model)
    return Row(
        name,
        ", ".join(model.stacks),
        f"{heads[0]}" + (f" on {keys} key–value heads" if keys not in (None, heads[0]) else ""),
        " + ".join(sorted({route for architecture in stacks for route in architecture.routes})),
        _describe_verified(stacks) if all(error <= TOLERANCE for error in errors) else "NO",
        family.note,
    )


def _describe_verified(stacks: list[StackArchitecture]) -> str:
    if not all(architecture.verified for architecture in stacks):
        return "NO"
    return f"maps, {'projection’s input' if any(architecture.gated for architecture in stacks) else 'outputs'}"


def _get_key_heads(model: Model) -> int | None:
    config = model.network.config
    if getattr(config, "multi_query", False):
        return 1
    count = getattr(config, "num_key_value_heads", None)
    return count if isinstance(count, int) else None


def make_table() -> str:
    """Return the table of docs/architectures.md."""
    rows = [verify(name) for name in FAMILIES]
    lines = ["| architecture | stacks | heads | route | verified | |", "|---|---|---|---|---|---|"]
    lines += [f"| `{r.name}` | {r.stacks} | {r.heads} | {r.route} | {r.verified} | {r.note} |" for r in rows]
    return "\n".join(lines) + "\n"

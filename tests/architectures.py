"""The invariant that proves a capture, for any architecture, and the table of what it was shown for.

What the heads were seen to write, joined and put through the module's own output projection, is what that projection
returned while the model ran; and the model's result is, bit for bit, what it is when nobody watches.
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

from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Batch
from headscope.model.anatomy import unmasked
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.types import Bools, Ints
from tests import tiny
from tests.families import FAMILIES, Family

LENGTHS = (11, 7, 2)
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Leftward(Batch):
    """A batch padded on the left, which headscope itself never makes, but models must be watched right on it too."""

    sources: Ints | None = None

    @property
    def source(self) -> tuple[Ints, Bools] | None:
        return None if self.sources is None else (self.sources, self.real)


@cache
def built(name: str) -> PreTrainedModel:
    return tiny.network(name)


def watched(name: str) -> Model:
    images = FAMILIES[name].padding == "none"
    return load(built(name), tiny.image_processor() if images else tiny.tokenizer())


def batch(model: Model, family: Family, side: str) -> Batch:
    """Windows of several lengths as the model's stack reads them, padded on one side; or images, which need none."""
    if isinstance(model.tokens, Patches):
        pictures = as_corpus(tiny.pictures(len(LENGTHS), seed=3))
        return Batch.of(window for held in pictures for window in model.tokens.windows(held))
    windows = [model.reads(window) for window in tiny.batch(*LENGTHS, seed=3).windows]
    right = Batch.of(windows, family.pad_id)
    if side == "right":
        return right
    turned = [_turned(rows, right.real) for rows in (right.ids, *(right.source or ())[:1])]
    return Leftward(windows, turned[0], right.real[:, ::-1].copy(), family.pad_id, *turned[1:])


def _turned(rows: Ints, real: Bools) -> Ints:
    """The same rows with their padding in front."""
    return np.stack([np.roll(row, len(row) - int(held.sum())) for row, held in zip(rows, real, strict=True)])


def inputs(model: Model, made: Batch) -> dict[str, torch.Tensor]:
    if isinstance(model.tokens, Patches):
        return model.tokens.inputs(np.stack([window.pixels for window in made.windows]))
    ids, mask = torch.from_numpy(made.ids), torch.from_numpy(made.real.astype(np.int64))
    if made.source is None:
        return {"input_ids": ids, "attention_mask": mask}
    source = torch.from_numpy(made.source[0])
    return {"input_ids": source, "attention_mask": mask, "decoder_input_ids": ids, "decoder_attention_mask": mask}


def result(model: Model, made: Batch) -> torch.Tensor:
    """The last hidden state of a run over a batch."""
    network = model.network
    if model.two_stacks and made.source is None:
        network = network.get_encoder()
    with torch.inference_mode(), unmasked(network):
        return network(**inputs(model, made), **({"use_cache": False} if _caches(network) else {})).last_hidden_state


def _caches(network: Any) -> bool:
    return "use_cache" in inspect.signature(network.forward).parameters


@dataclass(frozen=True)
class Through:
    """One call of an output projection."""

    module: torch.nn.Module
    given: tuple[Any, ...]
    returned: torch.Tensor


def _first(returned: Any) -> torch.Tensor:
    return returned[0] if isinstance(returned, tuple) else returned


@contextmanager
def returning(model: Model) -> Iterator[list[Through]]:
    """What enters each output projection of the watched stack, and what it returns, call by call."""
    calls = model._plan.of([model.anatomy.stack])
    modules = {id(call.projection.module): call.projection.module for call in calls if call.projection is not None}
    held: list[Through] = []
    handles = [
        each.register_forward_hook(lambda module, args, returned: held.append(Through(module, args, _first(returned))))
        for each in modules.values()
    ]
    try:
        yield held
    finally:
        for handle in handles:
            handle.remove()


def broken_by(model: Model, made: Batch) -> float:
    """How far, relative to the largest value, what was captured and projected is from what the projection returned."""
    see = tiny.Seen()
    with returning(model) as held:
        model.observe(made, see)
    assert len(see.outputs) == len(held) == model.anatomy.layers
    worst = 0.0
    for output, through in zip(see.outputs, held, strict=True):
        largest = through.returned.abs().max()
        assert largest > 1e-3, "nothing to compare"
        with torch.inference_mode():
            again = _first(through.module(_in_form(output.flatten(2), through.given[0]), *through.given[1:]))
        worst = max(worst, float((again - through.returned).abs().max() / largest))
    return worst


def _in_form(joined: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The joined heads in the form in which this projection is given them."""
    if given.shape == joined.transpose(1, 2).shape and given.shape != joined.shape:
        return joined.transpose(1, 2)  # channels first
    if given.shape == joined.transpose(0, 1).shape and given.shape != joined.shape:
        return joined.transpose(0, 1)  # one text beside the other
    if given.numel() > joined.numel():
        return torch.cat([joined, given[..., joined.shape[2] :]], dim=-1)  # beside what are no heads
    return joined.reshape(given.shape)


@dataclass(frozen=True)
class Row:
    """What the table says of an architecture."""

    name: str
    stacks: str
    heads: str
    route: str
    verified: str
    about: str


@cache
def row(name: str) -> Row:
    """Examine an architecture and prove its capture, on every stack, with padding on each side that it takes."""
    family, model = FAMILIES[name], watched(name)
    sides = ("left", "right") if family.padding == "both" else (family.padding,)
    errors = [
        broken_by(on, batch(on, family, side)) if family.verified else float("nan")
        for on in map(model.on, model.stacks)
        for side in sides
    ]
    verified = all(error <= TOLERANCE for error in errors)
    anatomies = [model.on(stack).anatomy for stack in model.stacks]
    heads = sorted({anatomy.heads for anatomy in anatomies})
    keys = _key_heads(model)
    return Row(
        name,
        ", ".join(model.stacks),
        f"{heads[0]}" + (f" on {keys} key–value heads" if keys not in (None, heads[0]) else ""),
        " + ".join(sorted({route for anatomy in anatomies for route in anatomy.routes})),
        "yes" if verified else "by hand" if not family.verified else "NO",
        family.about,
    )


def _key_heads(model: Model) -> int | None:
    config = model.network.config
    if getattr(config, "multi_query", False):
        return 1
    found = getattr(config, "num_key_value_heads", None)
    return found if isinstance(found, int) else None


def table() -> str:
    """The table of docs/architectures.md."""
    rows = [row(name) for name in FAMILIES]
    lines = ["| architecture | stacks | heads | route | verified | |", "|---|---|---|---|---|---|"]
    lines += [f"| `{r.name}` | {r.stacks} | {r.heads} | {r.route} | {r.verified} | {r.about} |" for r in rows]
    return "\n".join(lines) + "\n"

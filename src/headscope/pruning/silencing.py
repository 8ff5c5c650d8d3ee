"""Run a model with selected heads silenced, or with a gate on each head, and leave it unchanged afterwards.

What a head writes is changed where it enters the output projection, so all other computation is the model's own,
however it is called: by headscope, by user code, by `generate`. Two threads cannot use it on the same model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch

from headscope.array_types import Floats
from headscope.corpus.windows import Batch
from headscope.devices import send, to_float64
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.pruning.head_names import Head, Heads, as_mask, format_head, parse_heads, resolve_heads
from headscope.pruning.projection_sites import edit_outputs, find_sites

__all__ = ["Head", "Heads", "SilencingMode", "compute_head_means", "format_head", "gated", "parse_heads", "silenced"]

SilencingMode = Literal["zero", "mean"]
"""what a silenced head writes: zero, or its mean output"""


@contextmanager
def silenced(model: Model, heads: Heads, *, by: SilencingMode = "zero", means: Floats | None = None) -> Iterator[Model]:
    """Run the model with these heads silent within this context.

    Nothing of what they write reaches the output projection; with `by="mean"`, their mean output does, for every token.
    Contexts can be nested. What `observe` reports of a silenced head is what it would have written.

    Args:
        heads: Heads of the observed stack, such as `L0H1,L3H4-7`, or pairs (layer, head).
        means: (layers, heads, width), as `head_means` returns them; required for `by="mean"`.

    >>> import headscope
    >>> model = headscope.load()
    >>> with headscope.silenced(model, "L0H1,L3H4-7"):
    ...     study = headscope.study(model, headscope.documents(limit=2))
    """
    architecture = model.architecture
    if by not in get_args(SilencingMode):
        raise StudyError(f"by is {by!r}: choose one of {', '.join(get_args(SilencingMode))}")
    silent = as_mask(architecture, resolve_heads(architecture, heads))
    layers = set(np.flatnonzero(silent.any(axis=1)).tolist())
    masks = torch.from_numpy(silent).to(model.device)[..., None]
    values = _convert_means(model, means) if by == "mean" else None

    def silence(layer: int, written: torch.Tensor) -> torch.Tensor:
        mask = masks[layer, : architecture.head_counts[layer]]
        if values is None:
            # Not multiplied by 0, which would turn infinite outputs into NaN.
            return written.masked_fill(mask, 0)
        return torch.where(mask, values[layer, : len(mask)].to(written.dtype), written)

    with edit_outputs(model, silence, layers):
        yield model


@contextmanager
def gated(model: Model, gates: torch.Tensor) -> Iterator[Model]:
    """Multiply what each head writes with its gate within this context.

    Results of the network are a differentiable function of the gates. 1 leaves a head as it is, 0 silences it.

    Args:
        gates: (layers, heads)
    """
    architecture = model.architecture
    if tuple(gates.shape) != (architecture.layers, architecture.heads):
        raise StudyError(
            f"gates are {tuple(gates.shape)}: {model.name} needs one for each of its {architecture.layers} × "
            f"{architecture.heads} heads"
        )
    gates_on_device = gates.to(model.device)

    def apply_gate(layer: int, written: torch.Tensor) -> torch.Tensor:
        return written * gates_on_device[layer, : architecture.head_counts[layer], None].to(written.dtype)

    with edit_outputs(model, apply_gate, set(range(architecture.layers))):
        yield model


def compute_head_means(model: Model, batches: Iterable[Batch]) -> Floats:
    """Return the mean output of each head over all real tokens of these batches: (layers, heads, width), float64."""
    widths = find_sites(model).widths
    if len(set(widths)) > 1:
        raise ModelError(
            f"{model.name}: the heads of its layers are of different width ({', '.join(map(str, sorted(set(widths))))})"
            ": silence them by zero"
        )
    sums: list[torch.Tensor | float] = [0.0] * model.architecture.layers
    tokens = 0
    for batch in batches:
        (real,) = send([batch.real], model.device)

        def add_outputs(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            # Outputs of padding may be NaN: they are left out, not multiplied by 0.
            sums[layer] = sums[layer] + to_float64(output[real]).sum(dim=0)

        model.observe(batch, add_outputs)
        tokens += int(batch.real.sum())
    if not tokens:
        raise StudyError("means need at least one text")
    return np.stack([torch.as_tensor(layer_sum).cpu().numpy() for layer_sum in sums]) / tokens


def _convert_means(model: Model, means: Floats | None) -> torch.Tensor:
    """Check the means, and return them as float32 on the model's device."""
    architecture, widths = model.architecture, find_sites(model).widths
    if means is None:
        raise StudyError('silencing by="mean" needs the means: pass means=compute_head_means(model, batches)')
    array = np.asarray(means)
    expected = (architecture.layers, architecture.heads, *sorted(set(widths)))
    if array.shape != expected:
        raise StudyError(f"means are {array.shape}: {model.name} needs {expected}, for each layer, head and width")
    if not np.isfinite(array).all():
        raise StudyError("means contain numbers that are not finite")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(model.device)

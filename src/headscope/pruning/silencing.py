"""Running a model with chosen heads silenced, or with a gate on each head, and leaving it as it was.

What a head writes is changed where it enters the output projection, so the model runs its own arithmetic in all else,
however it is called: by headscope, by hand, by `generate`. Two threads cannot share a model in this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch

from headscope.corpus.windows import Batch
from headscope.devices import send, to_float64
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.pruning.naming import Head, Heads, as_mask, chosen, name_of, parse_heads
from headscope.pruning.sites import changing, sites
from headscope.types import Floats

__all__ = ["By", "Head", "Heads", "gated", "head_means", "name_of", "parse_heads", "silenced"]

By = Literal["zero", "mean"]
"""what a silenced head writes: nothing, or what it writes on average"""


@contextmanager
def silenced(model: Model, heads: Heads, *, by: By = "zero", means: Floats | None = None) -> Iterator[Model]:
    """Within this context the model runs with these heads silent: nothing of what they write reaches the output
    projection, or with `by="mean"` the same for every token: `means` (layer, head, width), as `head_means` gives them.

    `heads` are written `L0H1,L3H4-7`, or given as pairs (layer, head); they are those of the watched stack. Contexts
    may be nested. What `observe` shows of a silenced head is what it would have written.

    >>> import headscope
    >>> model = headscope.load()
    >>> with headscope.silenced(model, "L0H1,L3H4-7"):
    ...     study = headscope.study(model, headscope.documents(limit=2))
    """
    anatomy = model.anatomy
    if by not in get_args(By):
        raise StudyError(f"by is {by!r}: choose one of {', '.join(get_args(By))}")
    silent = as_mask(anatomy, chosen(anatomy, heads))
    layers = set(np.flatnonzero(silent.any(axis=1)).tolist())
    masks = torch.from_numpy(silent).to(model.device)[..., None]
    values = _values(model, means) if by == "mean" else None

    def silence(layer: int, written: torch.Tensor) -> torch.Tensor:
        if values is None:
            # Not multiplied with 0: a head that writes infinite numbers is silent too.
            return written.masked_fill(masks[layer], 0)
        return torch.where(masks[layer], values[layer].to(written.dtype), written)

    with changing(model, silence, layers):
        yield model


@contextmanager
def gated(model: Model, gates: torch.Tensor) -> Iterator[Model]:
    """Within this context what each head writes is multiplied with its gate (layers, heads), of which the network's
    results are then a differentiable function: 1 leaves a head as it is, 0 silences it."""
    anatomy = model.anatomy
    if tuple(gates.shape) != (anatomy.layers, anatomy.heads):
        raise StudyError(
            f"gates are {tuple(gates.shape)}: {model.name} needs one for each of its {anatomy.layers} × "
            f"{anatomy.heads} heads"
        )
    here = gates.to(model.device)

    def gate(layer: int, written: torch.Tensor) -> torch.Tensor:
        return written * here[layer, :, None].to(written.dtype)

    with changing(model, gate, set(range(anatomy.layers))):
        yield model


def head_means(model: Model, batches: Iterable[Batch]) -> Floats:
    """What each head writes on average over all real tokens of these batches: (layers, heads, width), float64."""
    widths = sites(model).widths
    if len(set(widths)) > 1:
        raise ModelError(
            f"{model.name}: the heads of its layers are of different width ({', '.join(map(str, sorted(set(widths))))})"
            ": silence them by zero"
        )
    sums: list[torch.Tensor | float] = [0.0] * model.anatomy.layers
    tokens = 0
    for batch in batches:
        (real,) = send([batch.real], model.device)

        def see(layer: int, output: torch.Tensor, attention: torch.Tensor, real: torch.Tensor = real) -> None:
            # Padding may hold anything, NaN too: it is left out, not multiplied with 0.
            sums[layer] = sums[layer] + to_float64(output[real]).sum(dim=0)

        model.observe(batch, see)
        tokens += int(batch.real.sum())
    if not tokens:
        raise StudyError("means need at least one text")
    return np.stack([torch.as_tensor(each).cpu().numpy() for each in sums]) / tokens


def _values(model: Model, means: Floats | None) -> torch.Tensor:
    anatomy, widths = model.anatomy, sites(model).widths
    if means is None:
        raise StudyError('silencing by="mean" needs the means: give head_means(model, batches)')
    given = np.asarray(means)
    expected = (anatomy.layers, anatomy.heads, *sorted(set(widths)))
    if given.shape != expected:
        raise StudyError(f"means are {given.shape}: {model.name} needs {expected}, for each layer, head and width")
    if not np.isfinite(given).all():
        raise StudyError("means hold numbers that are not finite")
    return torch.from_numpy(np.ascontiguousarray(given, dtype=np.float32)).to(model.device)

"""What every head writes for a piece of a text: its outputs, averaged over the piece's tokens.

The mean of C over two pieces is the dot product of these averages, so nothing of the size of a matrix has to be kept:
a region average of the paper's Fig. 5, for sentences as far apart as one likes. Each piece is read by itself. Pieces of
one window share their context, which makes all of them alike and drowns what they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from headscope.corpus.windows import Batch, Encoding, Window, grouped
from headscope.devices import send
from headscope.errors import CorpusError, ModelError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.model.tokens import ModelTokens
from headscope.run.batch_size import choose_batch_size
from headscope.types import Floats

LONGEST = 256
"""tokens of a piece that are read; sentences are shorter, and what is not is about one thing all the same"""
Done = Callable[[int], None]


def head_means(model: Model, texts: Sequence[str], done: Done | None = None) -> Floats:
    """(pieces, heads, width), the heads of all layers in one row. A piece without tokens has zeros; where none has
    any, there are no heads either.

    `done` is told the number of pieces read since it was last told.
    """
    if isinstance(model.tokens, Patches):
        raise ModelError(f"{model.name} reads images: choose a model of texts")
    length = min(LONGEST, model.max_length or LONGEST)
    size = choose_batch_size(model, min(length, 128))
    windows = [_Numbered(k, window) for k, window in enumerate(_windows(model, model.tokens, texts, length))]
    means = np.zeros((len(texts), 0, 0), dtype=np.float32)
    # Sorted by length over all of the text, where a study looks a few batches ahead: all of it is here already.
    order = sorted((each for each in windows if len(each)), key=len)
    for group in grouped(order, size, alike=not model.ignores_padding):
        found = _observed(model, [each.window for each in group])
        if not means.size:
            means = np.zeros((len(texts), *found.shape[1:]), dtype=np.float32)
        means[[each.number for each in group]] = found
        if done is not None:
            done(len(group))
    if not np.isfinite(means).all():
        raise ModelError(f"{model.name}: its heads write values that are no finite numbers: try --dtype float32")
    return means


class _Numbered:
    def __init__(self, number: int, window: Window) -> None:
        self.number, self.window = number, window

    def __len__(self) -> int:
        return len(self.window) if not self.window.special.all() else 0


def _windows(model: Model, tokens: ModelTokens, texts: Sequence[str], length: int) -> list[Window]:
    encoded: Iterable[list[Encoding]] | None = tokens.encode_all(texts, length, all_windows=False, offsets=False)
    if encoded is None:
        try:
            encoded = [tokens.encode(text, length, all_windows=False, offsets=False) for text in texts]
        except CorpusError as error:
            raise CorpusError(f"a sentence of the text: {error}") from None
    return [model.reads(_window(each[0])) for each in encoded]


def _window(encoding: Encoding) -> Window:
    none = np.zeros(len(encoding.ids), dtype=np.int64)
    return Window(encoding.ids, encoding.special, none, encoding.end, encoding.comma)


def _observed(model: Model, windows: list[Window]) -> Floats:
    batch = Batch.of(windows, model.tokens.pad_id)
    words = np.zeros_like(batch.real)
    for row, window in enumerate(windows):
        words[row, : len(window)] = ~window.special
    (chosen,) = send([words], model.device)
    share = chosen / chosen.sum(dim=1, keepdim=True).clamp(min=1)
    layers: list[torch.Tensor] = []

    def see(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        layers.append(torch.einsum("bnhd,bn->bhd", output.float(), share))

    model.observe(batch, see)
    if len({layer.shape for layer in layers}) > 1:
        raise ModelError(f"{model.name}: the heads of its layers are of different width, which segments cannot hold")
    return torch.cat(layers, dim=1).cpu().numpy()

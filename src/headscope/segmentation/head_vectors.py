"""Head outputs of the pieces of a text, averaged over the tokens of each piece.

The mean of C over two pieces, a region average of the paper's Fig. 5, is the dot product of their averages. So no
matrix needs to be stored, and pieces any distance apart can be compared. Each piece is read by itself: pieces in one
window share their context, which makes all of them similar and hides their subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from headscope.array_types import Floats
from headscope.corpus.windows import Batch, Encoding, Window, group_by_length
from headscope.devices import send
from headscope.errors import CorpusError, ModelError
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens
from headscope.run.batch_size import choose_batch_size
from headscope.segmentation.windows import count_tokens

LONGEST = 256
"""tokens of a piece that are read; sentences are shorter, and the beginning of a longer piece shows its subject"""
ReadCallback = Callable[[int], None]
"""called with the number of pieces read since the last call"""


def compute_head_means(model: Model, texts: Sequence[str], done: ReadCallback | None = None) -> Floats:
    """Return the mean outputs of all heads of all layers (piece, head, width).

    A piece without tokens has zeros; if no piece has any, there are no heads either.

    Args:
        done: Called with the number of pieces read since the last call.
    """
    if isinstance(model.tokens, Patches):
        raise ModelError(f"{model.name} reads images: choose a model of texts")
    length = limit_length(model)
    batch_size = choose_batch_size(model, min(length, 128))
    windows = [_NumberedWindow(k, window) for k, window in enumerate(_encode(model, model.tokens, texts, length))]
    means = np.zeros((len(texts), 0, 0), dtype=np.float32)
    # Unlike a study, which sorts a few batches at a time, this sorts all windows: they are in memory anyway.
    ordered = sorted((window for window in windows if len(window)), key=len)
    for group in group_by_length(ordered, model.limit_batch_size(batch_size), alike=not model.ignores_padding):
        batch_means = _average_outputs(model, [numbered.window for numbered in group])
        if not means.size:
            means = np.zeros((len(texts), *batch_means.shape[1:]), dtype=np.float32)
        means[[numbered.number for numbered in group]] = batch_means
        if done is not None:
            done(len(group))
    if not np.isfinite(means).all():
        raise ModelError(f"{model.name}: its head outputs are not finite: try --dtype float32")
    return means


def limit_length(model: Model) -> int:
    """Return how many tokens of a piece are read, special ones included."""
    return min(LONGEST, model.max_length or LONGEST)


def count_read_in_part(model: Model, texts: Sequence[str]) -> int:
    """Return how many texts are longer than what is read of each."""
    limit = limit_length(model)
    # A token has at least one byte, and a tokenizer adds few: most texts need no counting.
    return sum(len(text.encode()) > limit // 2 and count_tokens(model, text) > limit for text in texts)


class _NumberedWindow:
    def __init__(self, number: int, window: Window) -> None:
        self.number, self.window = number, window

    def __len__(self) -> int:
        return len(self.window) if not self.window.special.all() else 0


def _encode(model: Model, tokens: ModelTokens, texts: Sequence[str], length: int) -> list[Window]:
    encodings: Iterable[list[Encoding]] | None = tokens.encode_all(texts, length, all_windows=False, offsets=False)
    if encodings is None:
        try:
            encodings = [tokens.encode(text, length, all_windows=False, offsets=False) for text in texts]
        except CorpusError as error:
            raise CorpusError(f"a sentence of the text: {error}") from None
    return [model.adapt_window(_make_window(text_encodings[0])) for text_encodings in encodings]


def _make_window(encoding: Encoding) -> Window:
    no_sentences = np.zeros(len(encoding.ids), dtype=np.int64)
    return Window(encoding.ids, encoding.special, no_sentences, encoding.end, encoding.comma)


def _average_outputs(model: Model, windows: list[Window]) -> Floats:
    """Return the mean outputs of windows over their tokens that are not special (window, head, width)."""
    batch = Batch.of(windows, model.tokens.pad_id)
    is_word = np.zeros_like(batch.real)
    for row, window in enumerate(windows):
        is_word[row, : len(window)] = ~window.special
    (mask,) = send([is_word], model.device)
    token_weights = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
    layers: list[torch.Tensor] = []

    def record(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        present = output[:, :, : model.architecture.head_counts[layer]]
        layers.append(torch.einsum("bnhd,bn->bhd", present.float(), token_weights))

    model.observe(batch, record)
    width = max(layer.shape[2] for layer in layers)
    # Where heads of layers differ in width, zeros fill up the narrow ones: they add nothing to a product.
    widened = [torch.nn.functional.pad(layer, (0, width - layer.shape[2])) for layer in layers]
    return torch.cat(widened, dim=1).cpu().numpy()

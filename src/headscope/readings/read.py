"""Reading one text with a model: every head's outputs and maps, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope import manifest
from headscope.corpus.formats import Document
from headscope.corpus.images import as_picture
from headscope.corpus.windows import Batch, SentenceMode, Window
from headscope.errors import ReadingError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.model.tokens import ModelTokens
from headscope.readings.dataset import dataset
from headscope.readings.reading import Reading
from headscope.settings import Settings
from headscope.similarity import TAU, THETA
from headscope.studies.study import fit_settings
from headscope.tally.tally import not_finite
from headscope.types import Floats, Ints


def read(
    model: Model | str | Path,
    text: Any,
    *,
    length: int = 128,
    sentences: SentenceMode = "tokens",
    theta: float = THETA,
    tau: float = TAU,
    command: str = "",
) -> Reading:
    """Read a text: the first `length` tokens of it, as one window of a study.

    A vision model reads an image, of PIL or an array of bytes (height, width, 3).

    `model` comes from `headscope.load`, or is what `load` takes: a hub name, a folder, `minilm`.

    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> reading.similarity.sel(layer=1, head=6, position_i=2, position_j=6).token_i.item()
    'ravens'
    """
    document = _document(text)
    settings = Settings(length=length, sentences=sentences, min_tokens=1, theta=theta, tau=tau)
    watched = model if isinstance(model, Model) else load(model)
    settings = fit_settings(watched, settings)
    windows = watched.windows(document, settings.cut)
    if isinstance(windows, str):
        what = f"{document.name}:" if document.is_image else "the text is"
        raise ReadingError(f"{what} {windows}: there is nothing to relate in it")
    (window,) = windows
    if len(window) < 2:
        raise ReadingError("the text is one token: it takes two to relate")
    outputs, maps = _observed(watched, Batch.of([window], watched.tokens.pad_id))
    if isinstance(watched.tokens, Patches):
        spans, words, count = None, window.ids, len(window)
        shown = f"{document.name}, {document.excerpt}"
    else:
        given = text if isinstance(text, str) else document.text
        spans, words = _places(watched.tokens, given, length, window)
        count = watched.tokens.count(given)
        shown = given if spans is None else given[: spans.max()]
    return Reading(
        dataset(
            labels=watched.tokens.labels(window.ids),
            ids=window.ids,
            special=window.special,
            sentence=window.sentence,
            word=words,
            spans=spans,
            text=shown,
            outputs=outputs,
            # The columns of a cross-attention map are other tokens than its rows; a reading has one row of tokens.
            attention=None if window.crosses else maps,
            layers=watched.anatomy.numbers,
            attributes={
                **manifest.of_model(watched),
                "length": settings.length,
                "sentences": sentences,
                "theta": theta,
                "tau": tau,
                "tokens_in_text": count,
                "command": command,
                **manifest.of_run(),
            },
        )
    )


def _document(text: Any) -> Document:
    if isinstance(text, Document):
        return text
    if isinstance(text, str):
        return Document(text, "the text")
    image = as_picture(text)
    if image is None:
        raise ReadingError(
            f"the text is a {type(text).__name__}: give it as a string; an image as one of PIL, or as an array"
        )
    return Document.of_image(image, "the image")


def _places(tokens: ModelTokens, text: str, length: int, window: Window) -> tuple[Ints | None, Ints]:
    """Where each token stands in the text, if that is known, and the number of the word it belongs to."""
    (encoding,) = tokens.encode(text, length, all_windows=False, offsets=True)
    spans = None
    if encoding.starts is not None and encoding.ends is not None:
        spans = np.where(encoding.special[:, None], -1, np.stack([encoding.starts, encoding.ends], axis=1))
    words = tokens.word_numbers(encoding.ids, encoding.special) if encoding.words is None else encoding.words
    if window.source is not None:  # a decoder reads a token of its own first, which stands nowhere in the text
        spans = None if spans is None else np.concatenate([[[-1, -1]], spans[:-1]])
        words = np.concatenate([[0], words[:-1] + 1])
    return spans, words


def _observed(model: Model, batch: Batch) -> tuple[Floats, Floats]:
    outputs: list[Floats] = []
    maps: list[Floats] = []

    def see(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        kept = _plain(output[0])
        if not np.isfinite(kept).all():
            raise not_finite(model.anatomy.numbers[layer], int(np.flatnonzero(~np.isfinite(kept).all(axis=(0, 2)))[0]))
        outputs.append(kept)
        maps.append(_plain(attention[0]))

    model.observe(batch, see)
    return np.stack(outputs), np.stack(maps)


def _plain(tensor: torch.Tensor) -> Floats:
    # numpy knows no bfloat16, and float32 holds every float16 and bfloat16 exactly
    return np.asarray((tensor if tensor.dtype == torch.float64 else tensor.float()).cpu().numpy()).copy()

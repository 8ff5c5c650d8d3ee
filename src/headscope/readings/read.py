"""Reading one text with a model: every head's outputs and maps, kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from headscope import manifest
from headscope.corpus.formats import Document
from headscope.corpus.windows import Batch, SentenceMode
from headscope.errors import ReadingError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.readings.dataset import dataset
from headscope.readings.reading import Reading
from headscope.similarity import TAU, THETA
from headscope.studies.run import check_length
from headscope.studies.settings import Settings
from headscope.tally.tally import not_finite
from headscope.types import Floats


def read(
    model: Model | str | Path,
    text: str,
    *,
    length: int = 128,
    sentences: SentenceMode = "tokens",
    theta: float = THETA,
    tau: float = TAU,
    command: str = "",
) -> Reading:
    """Read a text: the first `length` tokens of it, as one window of a study.

    `model` comes from `headscope.load`, or is what `load` takes: a hub name, a folder, `minilm`.

    >>> import headscope
    >>> reading = headscope.read("minilm", "Two ravens met. The ravens left.")
    >>> reading.similarity.sel(layer=1, head=6, position_i=2, position_j=6).token_i.item()
    'ravens'
    """
    if not isinstance(text, str):
        raise ReadingError(f"the text is a {type(text).__name__}: give it as a string")
    settings = Settings(length=length, sentences=sentences, min_tokens=1, theta=theta, tau=tau)
    watched = model if isinstance(model, Model) else load(model)
    check_length(watched, settings)
    windows = settings.cut(Document(text, "the text"), watched.tokens)
    if isinstance(windows, str):
        raise ReadingError(f"the text is {windows}: there is nothing to relate in it")
    (window,) = map(watched.reads, windows)
    if len(window) < 2:
        raise ReadingError("the text is one token: it takes two to relate")
    (encoding,) = watched.tokens.encode(text, length, all_windows=False, offsets=True)
    outputs, maps = _observed(watched, Batch.of([window], watched.tokens.pad_id))
    spans = None
    if encoding.starts is not None and encoding.ends is not None:
        spans = np.where(encoding.special[:, None], -1, np.stack([encoding.starts, encoding.ends], axis=1))
    words = watched.tokens.word_numbers(encoding.ids, encoding.special) if encoding.words is None else encoding.words
    if window.source is not None:  # a decoder reads a token of its own first, which stands nowhere in the text
        spans = None if spans is None else np.concatenate([[[-1, -1]], spans[:-1]])
        words = np.concatenate([[0], words[:-1] + 1])
    return Reading(
        dataset(
            labels=watched.tokens.labels(window.ids),
            ids=window.ids,
            special=window.special,
            sentence=window.sentence,
            word=words,
            spans=spans,
            text=text if spans is None else text[: spans.max()],
            outputs=outputs,
            # The columns of a cross-attention map are other tokens than its rows; a reading has one row of tokens.
            attention=None if window.crosses else maps,
            layers=watched.anatomy.numbers,
            attributes={
                **manifest.of_model(watched),
                "length": length,
                "sentences": sentences,
                "theta": theta,
                "tau": tau,
                "tokens_in_text": watched.tokens.count(text),
                "command": command,
                **manifest.of_run(),
            },
        )
    )


def _observed(model: Model, batch: Batch) -> tuple[Floats, Floats]:
    outputs: list[Floats] = []
    maps: list[Floats] = []

    def see(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        kept = _plain(output[0])
        if not np.isfinite(kept).all():
            raise not_finite(layer, int(np.flatnonzero(~np.isfinite(kept).all(axis=(0, 2)))[0]))
        outputs.append(kept)
        maps.append(_plain(attention[0]))

    model.observe(batch, see)
    return np.stack(outputs), np.stack(maps)


def _plain(tensor: torch.Tensor) -> Floats:
    # numpy knows no bfloat16, and float32 holds every float16 and bfloat16 exactly
    return np.asarray((tensor if tensor.dtype == torch.float64 else tensor.float()).cpu().numpy()).copy()

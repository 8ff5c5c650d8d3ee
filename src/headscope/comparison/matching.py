"""Match the heads of two models that read the same tokens, by what they write in each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from headscope import registry
from headscope.array_types import Floats
from headscope.comparison.assignment import assign_rows
from headscope.corpus.documents import as_corpus
from headscope.corpus.windows import Batch, Window, WindowMode
from headscope.errors import StudyError
from headscope.model.loading import ModelSource, resolve_model
from headscope.model.model import Model
from headscope.pruning.objective import Documents, batch_windows, limit_corpus, read_windows
from headscope.run.executor import choose_batch_size
from headscope.settings import Settings
from headscope.studies.labels import HEAD_COLUMNS, format_head
from headscope.tally.head_similarity import HeadSimilarities
from headscope.tally.quantities import HEAD_PAIR

DEFAULT_LIMIT = 200
"""documents read by default: correlations of heads are known well with few"""
STRICTNESS = ("mixed lengths", "equal lengths", "single texts")


@dataclass(frozen=True, eq=False)
class HeadMatch:
    """How alike the heads of two models are, and which of them correspond. `headscope.match_heads` makes one.

    Examples
    --------
    >>> import headscope
    >>> match = headscope.match_heads("minilm", "minilm", ["Two ravens met. The ravens left."])
    >>> match
    <HeadMatch of minilm and minilm: 72 of 72 heads, 1 text>
    """

    models: tuple[str, str]
    similarity: xr.DataArray
    """mean correlation of the similarity matrices of two heads: layer and head of the first model, other_layer and
    other_head of the second; NaN where there is no such head, or one of the two never varies"""
    table: pd.DataFrame
    """one row per head of the first model, layer by layer: head, layer, head_number; the head of the second model that
    it is matched with, `other`, and their `correlation`; and `best`, the most similar head of the second, with
    `best_correlation`. `other` is empty where the second model has fewer heads."""
    texts: int
    """number of texts"""

    def __repr__(self) -> str:
        matched = int((self.table["other"] != "").sum())
        texts = f"{self.texts:,} text{'s' * (self.texts != 1)}"
        return f"<HeadMatch of {self.models[0]} and {self.models[1]}: {matched} of {len(self.table)} heads, {texts}>"


def match_heads(
    model: ModelSource,
    other: ModelSource,
    documents: Documents = None,
    *,
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = DEFAULT_LIMIT,
    batch_size: int | None = None,
    progress: bool | Callable[..., None] | None = None,
    allow_unverified: bool = False,
) -> HeadMatch:
    """Correlate every head of a model with every head of another over the same texts, and match them one to one.

    Parameters
    ----------
    model, other
        From `headscope.load`, or a hub name, a folder, `minilm`, or a pair (transformers model, tokenizer). Both must
        cut the texts into the same tokens.
    documents
        Texts, as `headscope.study` takes them; the bundled texts by default.
    field
        The column, or field, of `documents` that holds the text.
    length, windows
        How documents are cut, as in `headscope.study`.
    limit
        Read at most this many documents; None reads all.
    batch_size
        Texts per batch. By default as many as the device has room for.
    progress
        True shows it on stderr; a function is called with the current step, how much of it is done, and of how much
        in all.
    allow_unverified
        Take models whose captured heads cannot be verified, which is refused otherwise.

    Returns
    -------
    HeadMatch
        With the correlation that docs/method.md defines, across models, and the one-to-one assignment of heads with the
        largest sum of correlations.

    Raises
    ------
    StudyError
        The models cut the texts into different tokens, or there is no text.

    Examples
    --------
    >>> import headscope
    >>> match = headscope.match_heads("minilm", "minilm", ["Two ravens met. The ravens left."])
    >>> match.table.set_index("head").loc["L1H6", "other"]
    'L1H6'
    """
    Settings(length=length, windows=windows)
    models = [resolve_model(source, allow_unverified=allow_unverified) for source in (model, other)]
    texts_read = list(limit_corpus(as_corpus(documents, field), limit))  # the source may be readable only once
    corpus, other_corpus = (
        read_windows(loaded, texts_read, length=length, windows=windows, limit=None) for loaded in models
    )
    _check_same_tokens(models, corpus.windows, other_corpus.windows)
    strictest = max(models, key=lambda loaded: STRICTNESS.index(loaded.batching))
    if batch_size is None:
        batch_size = min(choose_batch_size(loaded, max(map(len, corpus.windows))) for loaded in models)
    batches = batch_windows(strictest, corpus.windows, batch_size)
    sums, texts = np.zeros((2, *(loaded.architecture.layers * loaded.architecture.heads for loaded in models)))
    with registry.open_progress(progress) as on_progress:
        for number, numbered in enumerate(batches, start=1):
            rows = [
                [corpus_windows[k] for k in numbered.places]
                for corpus_windows in (corpus.windows, other_corpus.windows)
            ]
            directions = [observe_directions(loaded, rows[0], own) for loaded, own in zip(models, rows, strict=True)]
            varies = [(values != 0).any(2).double() for values in directions]
            sums += torch.einsum("sap,sbp->ab", *directions).numpy()
            texts += torch.einsum("sa,sb->ab", *varies).numpy()
            if on_progress is not None:
                on_progress("matching heads", number, len(batches))
    means = np.divide(sums, texts, out=np.full_like(sums, np.nan), where=texts > 0)
    return _build_match(models, means, len(corpus.windows))


def observe_directions(model: Model, texts: Sequence[Window], windows: Sequence[Window]) -> torch.Tensor:
    """Return the similarities of every head in some texts, as unit vectors on the CPU: (text, head, pair).

    Args:
        model: Their heads are in the order of layers.
        texts: What decides the pairs of tokens.
        windows: The same texts as the model reads them.
    """
    similarities = HeadSimilarities.from_windows(texts, model.device)
    batch = Batch.of(windows, model.tokens.pad_id)
    model.observe(batch, lambda _, output, attention: similarities.add_layer(output))
    return torch.cat(similarities.layers, 1).double().cpu()


def _check_same_tokens(models: Sequence[Model], windows: Sequence[Window], others: Sequence[Window]) -> None:
    """Raise a StudyError if two models do not read the same tokens."""
    first, second = models
    reason = f"{first.name} and {second.name} read different tokens, so that what their heads write cannot be compared"
    if first.modality != second.modality:
        raise StudyError(f"{reason}: {first.modality}s here, {second.modality}s there")
    if len(windows) != len(others):
        raise StudyError(f"{reason}: {len(windows):,} windows of these texts here, {len(others):,} there")
    for number, (window, other) in enumerate(zip(windows, others, strict=True), start=1):
        names = [loaded.tokens.names(row.ids.tolist()) for loaded, row in zip(models, (window, other), strict=True)]
        if names[0] != names[1]:
            place = next((k for k, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), -1)
            shown = " and ".join(repr(row[place]) for row in names) if place >= 0 else "one of them is longer"
            raise StudyError(f"{reason}: text {number} differs, {shown}. Both need the same tokenizer")


def _build_match(models: Sequence[Model], means: Floats, texts: int) -> HeadMatch:
    shapes = [(loaded.architecture.layers, loaded.architecture.heads) for loaded in models]
    numbers = [loaded.architecture.numbers for loaded in models]
    coordinates: dict[str, Any] = dict(
        zip(HEAD_PAIR, (numbers[0], range(shapes[0][1]), numbers[1], range(shapes[1][1])), strict=True)
    )
    similarity = xr.DataArray(
        means.reshape(*shapes[0], *shapes[1]),
        {name: np.array(values, dtype=np.int64) for name, values in coordinates.items()},
        HEAD_PAIR,
        "head_similarity",
    )
    heads = [loaded.architecture.list_heads() for loaded in models]
    rows, columns = (
        [list(number).index(layer) * shape[1] + head for layer, head in listed]
        for number, shape, listed in zip(numbers, shapes, heads, strict=True)
    )
    present = means[np.ix_(rows, columns)]
    known = np.nan_to_num(present, nan=-1.0)
    assigned = assign_rows(known)
    names = [format_head(*head) for head in heads[1]]
    best = known.argmax(1)
    table = pd.DataFrame([(format_head(*head), *head) for head in heads[0]], columns=list(HEAD_COLUMNS)).assign(
        other=["" if column < 0 else names[column] for column in assigned],
        correlation=[np.nan if column < 0 else present[row, column] for row, column in enumerate(assigned)],
        best=[names[column] for column in best],
        best_correlation=present[np.arange(len(best)), best],
    )
    return HeadMatch((models[0].name, models[1].name), similarity, table, texts)

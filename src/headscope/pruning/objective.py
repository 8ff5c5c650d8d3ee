"""What silencing heads costs: a model's own objective, and the texts on which it is measured.

A model's own objective for each text: how well it predicts words, or how far its embedding has moved.

`next-token loss`    causal language models: mean cross-entropy in nats of each token given those before it;
                     encoder–decoder language models: of each token of the text that the encoder read, given those
                     before it
`masked-token loss`  encoders with a masked-language-modeling head: mean cross-entropy of masked tokens; 15 % of the
                     tokens that are not special, at least one, selected by the text alone
`embedding distance` all others: 1 − cosine between the mean of the last hidden states over the text's tokens, special
                     ones included, and the same of the untouched model

Padding is excluded everywhere.

Read the texts on which heads are silenced: the windows of a corpus, and batches of them.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.array_types import Floats, Ints
from headscope.corpus.documents import Corpus, as_corpus
from headscope.corpus.windows import Batch, Window, WindowMode, group_by_length
from headscope.devices import send, to_float64
from headscope.errors import CorpusError, ModelError, StudyError
from headscope.model.image_patches import Patches
from headscope.model.model import Model
from headscope.model.pruned_network import is_model_for
from headscope.run.executor import choose_batch_size
from headscope.run.state import CorpusStats
from headscope.settings import Settings
from headscope.studies.study import describe_short_texts, fit_settings

MASKED_SHARE = 0.15
NEXT_TOKEN, MASKED_TOKEN, EMBEDDING_DISTANCE = "next-token loss", "masked-token loss", "embedding distance"


class Objective(ABC):
    """What a model is trained for, as a number for each text; lower is better."""

    name: str

    def __init__(self, model: Model) -> None:
        self.model = model

    def record_baseline(self, batch: Batch) -> None:
        """Record what later results are compared with. Call it with the model untouched, before heads are silenced."""
        return  # losses have no baseline

    @abstractmethod
    def compute_losses(self, batch: Batch) -> torch.Tensor:
        """Return the objective of each text as a differentiable tensor (texts,). The model must be `prepared`."""

    def measure_texts(self, batch: Batch) -> Floats:
        """Return the objective of each text: (texts,), float64."""
        with self.model.prepared(), torch.inference_mode():
            losses = to_float64(self.compute_losses(batch)).cpu().numpy()
        if not np.isfinite(losses).all():
            raise ModelError(
                f"{self.model.name}: its {self.name} is no finite number on a text of "
                f"{len(batch.windows[int(np.argmin(np.isfinite(losses)))])} tokens: try --dtype float32"
            )
        return np.asarray(losses, dtype=np.float64)


class NextToken(Objective):
    """Next-token loss of causal models."""

    name = NEXT_TOKEN

    def compute_losses(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of tokens 1 … N−1, each given those before it."""
        if min(map(len, batch.windows)) < 2:
            raise StudyError("a text of one token has no next token to predict: give texts of at least 2 tokens")
        logits = _run_network(self.model.network, self.model.make_batch_inputs(batch)).logits
        return _compute_mean_losses(logits[:, :-1], batch.ids[:, 1:], batch.real[:, 1:])


class TextReconstruction(Objective):
    """Next-token loss of encoder–decoder models: at position i the decoder predicts token i of the encoder's text."""

    name = NEXT_TOKEN

    def compute_losses(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of all tokens of the encoder's text, each given that text and the tokens before it."""
        texts = [window.source or window for window in batch.windows]
        shifted = [text.shift_right(self.model.decoder_start_id, crosses=False) for text in texts]
        source, target = Batch.of(texts, batch.pad_id), Batch.of(shifted, batch.pad_id)
        inputs = self.model.make_token_inputs(source.ids, source.real) | self.model.make_decoder_inputs(
            target.ids, target.real
        )
        return _compute_mean_losses(_run_network(self.model.network, inputs).logits, source.ids, source.real)


class MaskedToken(Objective):
    """Masked-token loss of encoders that predict words."""

    name = MASKED_TOKEN

    def __init__(self, model: Model, mask_id: int) -> None:
        super().__init__(model)
        self.mask_id = mask_id

    def compute_losses(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the masked tokens, given the others."""
        masked = np.zeros_like(batch.real)
        for row, window in enumerate(batch.windows):
            masked[row, select_masked_tokens(window)] = True
        ids = np.where(masked, self.mask_id, batch.ids)
        logits = _run_network(self.model.network, self.model.make_token_inputs(ids, batch.real)).logits
        return _compute_mean_losses(logits, batch.ids, masked)


class EmbeddingDistance(Objective):
    """Embedding distance of models that do not predict words."""

    name = EMBEDDING_DISTANCE

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._baseline: dict[tuple[int, int], torch.Tensor] = {}

    def record_baseline(self, batch: Batch) -> None:
        """Record the embeddings of these texts, unless all are known."""
        if all(_get_key(window) in self._baseline for window in batch.windows):
            return
        with self.model.prepared(), torch.inference_mode():
            embeddings = to_float64(self.compute_embeddings(batch))
        for window, row in zip(batch.windows, embeddings, strict=True):
            self._baseline[_get_key(window)] = row.clone()

    def compute_embeddings(self, batch: Batch) -> torch.Tensor:
        """Return the mean of the last hidden states over each text's tokens: (texts, width)."""
        (real,) = send([batch.real], self.model.device)
        states = _compute_hidden_states(self.model, batch).float()
        states = states.masked_fill(~real[..., None], 0)  # states of padding may be anything, NaN included
        return states.sum(dim=1) / real.sum(dim=1, keepdim=True)

    def compute_losses(self, batch: Batch) -> torch.Tensor:
        """Return 1 − cosine to the recorded embeddings."""
        missing = [window for window in batch.windows if _get_key(window) not in self._baseline]
        if missing:
            raise StudyError(
                "the embedding distance is measured from the untouched model's embeddings: call record_baseline(batch) "
                f"before heads are silenced ({len(missing)} of {len(batch)} texts have no baseline)"
            )
        before = torch.stack([self._baseline[_get_key(window)] for window in batch.windows])
        cosine = torch.nn.functional.cosine_similarity(to_float64(self.compute_embeddings(batch)), before, dim=-1)
        return (1 - cosine).clamp(min=0)


def choose_objective(model: Model) -> Objective:
    """Return the loss of the model's language modeling head if it has one, else the embedding distance."""
    if isinstance(model.tokens, Patches):
        return EmbeddingDistance(model)
    if model.is_encoder_decoder:
        predicts_words = is_model_for("SEQ_TO_SEQ_CAUSAL_LM", model.network)
        return TextReconstruction(model) if predicts_words else EmbeddingDistance(model)
    if model.architecture.causal:
        return NextToken(model) if is_model_for("CAUSAL_LM", model.network) else EmbeddingDistance(model)
    mask_id = model.tokens.tokenizer.mask_token_id
    if mask_id is not None and is_model_for("MASKED_LM", model.network):
        return MaskedToken(model, int(mask_id))
    return EmbeddingDistance(model)


def select_masked_tokens(window: Window) -> Ints:
    """Return the positions of the tokens that are masked.

    They are those with the lowest hashes of the window's digest and their position, so they depend on the text alone.
    """
    plain = np.flatnonzero(~window.special)
    candidates = plain if plain.size else np.arange(len(window))
    count = max(1, int(MASKED_SHARE * len(candidates) + 0.5))
    seed = window.digest.to_bytes(8, "little")
    order = sorted(candidates.tolist(), key=lambda k: hashlib.blake2b(seed + k.to_bytes(4, "little")).digest())
    return np.array(sorted(order[:count]), dtype=np.int64)


def _compute_mean_losses(logits: torch.Tensor, ids: Ints, predicted: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the mean cross-entropy of each text's predicted tokens, text by text to save memory.

    Args:
        logits: (texts, tokens, vocabulary)
        ids: (texts, tokens)
        predicted: (texts, tokens), True for the tokens that count.
    """
    targets, masks = send([ids, predicted], logits.device)
    means = [
        torch.nn.functional.cross_entropy(row[mask].float(), target[mask])
        for row, target, mask in zip(logits, targets, masks, strict=True)
    ]
    return torch.stack(means)


def _compute_hidden_states(model: Model, batch: Batch) -> torch.Tensor:
    """Return the last hidden states of the encoder or decoder that the observed stack is in: (texts, tokens, width)."""
    body = getattr(model.network, "base_model", model.network)
    inputs = model.make_batch_inputs(batch)
    if batch.source is not None:
        inputs |= model.make_decoder_inputs(batch.ids, batch.real)
    elif model.is_encoder_decoder:
        body = body.get_encoder()
    output = _run_network(body, inputs)
    states = getattr(output, "last_hidden_state", None)
    if states is None or states.shape[:2] != batch.ids.shape:
        raise ModelError(
            f"{model.name}: the model type {model.type!r} gives no last hidden state for every token, of which an "
            "embedding could be made"
        )
    return torch.as_tensor(states)


def _run_network(network: Any, inputs: dict[str, Any]) -> Any:
    if "use_cache" in inspect.signature(network.forward).parameters:
        inputs["use_cache"] = False
    return network(**inputs)


def _get_key(window: Window) -> tuple[int, int]:
    return window.digest, len(window)


DEFAULT_LIMIT = 64
"""documents read by default: every head takes a run over all of them"""
MAX_LOGITS = 2**26
"""logits in one batch"""

Documents = Corpus | str | Path | Iterable[Any] | None


@dataclass(frozen=True)
class CorpusWindows:
    """The windows of a corpus in its order, and statistics of the documents they come from."""

    corpus: Corpus
    settings: Settings
    windows: list[Window]
    stats: CorpusStats
    leaves_out: bool
    """whether the corpus has documents beyond the limit"""


def check_limit(limit: int | None) -> None:
    """Raise a StudyError for a limit that leaves no document."""
    if limit is not None and limit < 1:
        raise StudyError(f"limit is {limit}: ask for at least one document")


def limit_corpus(corpus: Corpus, limit: int | None) -> Corpus:
    """Return a corpus of at most `limit` documents."""
    check_limit(limit)
    limits = [number for number in (corpus.limit, limit) if number is not None]
    return replace(corpus, limit=min(limits, default=None))


def has_more_documents(corpus: Corpus, limit: int | None, documents_read: int) -> bool:
    """Return whether a corpus has documents beyond a limit.

    Of a stream that can be read only once this is unknown: one that reached the limit is taken to have more.
    """
    if limit is None or documents_read < limit:
        return False
    try:
        return corpus.measure(limit)[0] is None
    except CorpusError:  # the next document cannot be read
        return True


def describe_limit(limit: int | None) -> str:
    """Return the message that documents beyond the limit are left out."""
    return f"only the first {limit} documents are used, the others are left out: choose a larger limit to use more"


def show_warning(message: str) -> None:
    """Issue a warning that names the line from which `ablate` or `prune` was called."""
    warnings.warn(message, stacklevel=3)


def read_windows(
    model: Model,
    documents: Documents = None,
    *,
    field: str = "text",
    length: int = 128,
    windows: WindowMode = "first",
    limit: int | None = DEFAULT_LIMIT,
) -> CorpusWindows:
    """Return the windows of at most `limit` documents, as the model's observed stack reads them."""
    settings = fit_settings(model, Settings(length=length, windows=windows))
    all_documents = as_corpus(documents, field)
    corpus = limit_corpus(all_documents, limit)
    selected: list[Window] = []
    stats = CorpusStats()
    for number, document in enumerate(corpus):
        stats.add_document(document, 0)
        cut = model.windows(document, settings.cut)
        if isinstance(cut, str):
            stats.add_skipped(cut)
        else:
            stats.add_excerpt((0, number), document)
            selected += cut
    if not selected:
        raise StudyError(
            f"{corpus.name}: no {model.modality} to run: {stats.documents} documents read{stats.describe_skipped()}"
            f"{describe_short_texts(model, corpus, stats, settings)}"
        )
    return CorpusWindows(corpus, settings, selected, stats, has_more_documents(all_documents, limit, stats.documents))


@dataclass(frozen=True)
class NumberedBatch:
    """A batch, and the positions of its texts among all."""

    places: list[int]
    batch: Batch


def batch_windows(model: Model, windows: Sequence[Window], size: int | None = None) -> list[NumberedBatch]:
    """Return windows in batches of similar lengths; of equal lengths if padding would change the model's results."""
    if size is not None and size < 1:
        raise StudyError(f"batch size is {size}: at least 1")
    if not windows:
        raise StudyError("there are no texts: give at least one window")
    items = [_Item(k, window) for k, window in enumerate(windows)]
    size = size or _choose_size(model, windows)
    return [
        NumberedBatch([item.place for item in group], Batch.of([item.window for item in group], model.tokens.pad_id))
        for group in group_by_length(items, model.limit_batch_size(size), alike=not model.ignores_padding)
    ]


def _choose_size(model: Model, windows: Sequence[Window]) -> int:
    longest = max(map(len, windows))
    size = choose_batch_size(model, longest)
    vocabulary = (
        getattr(model.network.config.get_text_config(), "vocab_size", None) if model.modality == "text" else None
    )
    if not isinstance(vocabulary, int) or not vocabulary:
        return size
    return max(1, min(size, MAX_LOGITS // (longest * vocabulary)))


@dataclass(frozen=True)
class _Item:
    place: int
    window: Window

    def __len__(self) -> int:
        return len(self.window)

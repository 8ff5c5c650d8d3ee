"""A model's own objective, for each text: how well it predicts words, or how far its embedding has moved.

`next-token loss`: of a causal model that predicts words, the mean cross-entropy in nats of each token given those
before it; of an encoder–decoder that does, of each token of the text that its encoder read, given those before it.
`masked-token loss`: of an encoder that predicts words, the mean cross-entropy of masked tokens: 15 % of those that are
not special, at least one, chosen by the text alone. `embedding distance`: of all others, 1 − cosine between the mean of
the last hidden states over the text's tokens, special ones included, and what it is in the untouched model. Padding
takes part in nothing.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from transformers.models.auto import modeling_auto

from headscope.corpus.windows import Batch, Window
from headscope.devices import send, to_float64
from headscope.errors import ModelError, StudyError
from headscope.model.model import Model
from headscope.model.patches import Patches
from headscope.types import Floats, Ints

MASKED_SHARE = 0.15
NEXT, MASKED, EMBEDDING = "next-token loss", "masked-token loss", "embedding distance"


class Objective(ABC):
    """What a model is there for, as a number for each text; less is better."""

    name: str

    def __init__(self, model: Model) -> None:
        self.model = model

    def learn(self, batch: Batch) -> None:
        """To be called with the model untouched, before `per_text` is with heads silenced: what it is compared with."""
        return  # most compare with nothing

    @abstractmethod
    def losses(self, batch: Batch) -> torch.Tensor:
        """(texts,), differentiable; the model has to be `prepared`."""

    def per_text(self, batch: Batch) -> Floats:
        """(texts,), float64."""
        with self.model.prepared(), torch.inference_mode():
            found = to_float64(self.losses(batch)).cpu().numpy()
        if not np.isfinite(found).all():
            raise ModelError(
                f"{self.model.name}: its {self.name} is no finite number on a text of "
                f"{len(batch.windows[int(np.argmin(np.isfinite(found)))])} tokens: try --dtype float32"
            )
        return np.asarray(found, dtype=np.float64)


class NextToken(Objective):
    """Of causal models."""

    name = NEXT

    def losses(self, batch: Batch) -> torch.Tensor:
        """Tokens 1 … N−1 given those before."""
        if min(map(len, batch.windows)) < 2:
            raise StudyError("a text of one token has no next token to predict: give longer ones")
        logits = _run(self.model.network, self.model._inputs_of(batch)).logits
        return _mean_losses(logits[:, :-1], batch.ids[:, 1:], batch.real[:, 1:])


class Rewriting(Objective):
    """Of models with encoder and decoder: place i of what the decoder reads is where token i of the text is written."""

    name = NEXT

    def losses(self, batch: Batch) -> torch.Tensor:
        """All tokens of the text that the encoder reads, given it and those before."""
        written = [window.source or window for window in batch.windows]
        reads = [window.shifted(self.model._start_id, crosses=False) for window in written]
        source, target = Batch.of(written, batch.pad_id), Batch.of(reads, batch.pad_id)
        inputs = self.model._inputs(source.ids, source.real) | self.model._decoder_inputs(target.ids, target.real)
        return _mean_losses(_run(self.model.network, inputs).logits, source.ids, source.real)


class MaskedToken(Objective):
    """Of encoders that predict words."""

    name = MASKED

    def losses(self, batch: Batch) -> torch.Tensor:
        """The masked tokens, given the others."""
        hidden = np.zeros_like(batch.real)
        for row, window in enumerate(batch.windows):
            hidden[row, masked_places(window)] = True
        ids = np.where(hidden, int(self.model._tokenizer.mask_token_id), batch.ids)
        logits = _run(self.model.network, self.model._inputs(ids, batch.real)).logits
        return _mean_losses(logits, batch.ids, hidden)


class EmbeddingDistance(Objective):
    """Of models that predict no words."""

    name = EMBEDDING

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._untouched: dict[tuple[int, int], torch.Tensor] = {}

    def learn(self, batch: Batch) -> None:
        """Keeps the embeddings of these texts, if they are new."""
        if all(_key(window) in self._untouched for window in batch.windows):
            return
        with self.model.prepared(), torch.inference_mode():
            found = to_float64(self.embeddings(batch))
        self._untouched |= {_key(window): row.clone() for window, row in zip(batch.windows, found, strict=True)}

    def embeddings(self, batch: Batch) -> torch.Tensor:
        """The mean of the last hidden states over each text's tokens."""
        (real,) = send([batch.real], self.model.device)
        states = _states(self.model, batch).float()
        kept = states.masked_fill(~real[..., None], 0)  # padding may hold anything
        return kept.sum(dim=1) / real.sum(dim=1, keepdim=True)

    def losses(self, batch: Batch) -> torch.Tensor:
        """1 − cosine to the embeddings that were learned."""
        absent = [window for window in batch.windows if _key(window) not in self._untouched]
        if absent:
            raise StudyError(
                "the embedding distance is to what the untouched model makes of a text: call learn(batch) before heads "
                f"are silenced ({len(absent)} of {len(batch)} texts were not learned)"
            )
        before = torch.stack([self._untouched[_key(window)] for window in batch.windows])
        cosine = torch.nn.functional.cosine_similarity(to_float64(self.embeddings(batch)), before, dim=-1)
        return (1 - cosine).clamp(min=0)


def objective_of(model: Model) -> Objective:
    """What the model says it is for: where it has a head that predicts words, that; else its embedding."""
    name, anatomy = type(model.network).__name__, model.anatomy
    if isinstance(model.tokens, Patches):
        return EmbeddingDistance(model)
    if model.two_stacks:
        predicts = name in _named("SEQ_TO_SEQ_CAUSAL_LM")
        return Rewriting(model) if predicts else EmbeddingDistance(model)
    if anatomy.causal and name in _named("CAUSAL_LM"):
        return NextToken(model)
    if not anatomy.causal and name in _named("MASKED_LM") and model.tokens.tokenizer.mask_token_id is not None:
        return MaskedToken(model)
    return EmbeddingDistance(model)


def masked_places(window: Window) -> Ints:
    """The tokens of a window that are masked: those whose digests, made of the window's and their place, are least."""
    plain = np.flatnonzero(~window.special)
    candidates = plain if plain.size else np.arange(len(window))
    count = max(1, int(MASKED_SHARE * len(candidates) + 0.5))
    seed = window.digest.to_bytes(8, "little")
    order = sorted(candidates.tolist(), key=lambda k: hashlib.blake2b(seed + k.to_bytes(4, "little")).digest())
    return np.array(sorted(order[:count]), dtype=np.int64)


def _named(kind: str) -> set[str]:
    """The names of transformers' classes that predict words in this way."""
    held: dict[str, str | tuple[str, ...]] = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    return {name for names in held.values() for name in ([names] if isinstance(names, str) else names)}


def _mean_losses(logits: torch.Tensor, ids: Ints, counted: np.ndarray[Any, Any]) -> torch.Tensor:
    """The mean cross-entropy of each text's counted tokens; text by text, because all at once take much memory."""
    targets, chosen = send([ids, counted], logits.device)
    means = [
        torch.nn.functional.cross_entropy(row[mask].float(), target[mask])
        for row, target, mask in zip(logits, targets, chosen, strict=True)
    ]
    return torch.stack(means)


def _states(model: Model, batch: Batch) -> torch.Tensor:
    """The last hidden states of the watched stack's half of the model: (text, token, width)."""
    body = getattr(model.network, "base_model", model.network)
    inputs = model._inputs_of(batch)
    if batch.source is not None:
        inputs |= model._decoder_inputs(batch.ids, batch.real)
    elif model.two_stacks:
        body = body.get_encoder()
    made = _run(body, inputs)
    states = getattr(made, "last_hidden_state", None)
    if states is None or states.shape[:2] != batch.ids.shape:
        raise ModelError(
            f"{model.name}: the model type {model.type!r} gives no last hidden state for every token, of which an "
            "embedding could be made"
        )
    return torch.as_tensor(states)


def _run(network: Any, inputs: dict[str, Any]) -> Any:
    if "use_cache" in inspect.signature(network.forward).parameters:
        inputs["use_cache"] = False
    return network(**inputs)


def _key(window: Window) -> tuple[int, int]:
    return window.digest, len(window)

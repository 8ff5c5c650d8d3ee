"""Sentence embeddings of the same model, for heads to be compared with: the mean of its last hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headscope import Model
from headscope.array_types import Floats
from headscope.segmentation.pieces import MAX_TOKENS


def embeddings(model: Model, texts: Sequence[str], size: int = 32) -> Floats:
    """(texts, width), the mean over all tokens, special ones included, as sentence encoders are trained to be read."""
    tokenizer, network = model._tokenizer, model.network
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    found: list[Any] = [None] * len(texts)
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        made = tokenizer(
            [texts[k] for k in chosen], padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        ).to(model.device)
        with torch.inference_mode():
            out = network(**made, output_hidden_states=True)
        mask = made["attention_mask"][..., None].float()
        means = (out.hidden_states[-1].float() * mask).sum(1) / mask.sum(1)
        for k, row in zip(chosen, means.cpu().numpy(), strict=True):
            found[k] = row
    return np.stack(found)


def unit(vectors: Floats) -> Floats:
    """Each of length 1, the document's mean taken off, and again of length 1."""
    held = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    held = held - held.mean(axis=0)
    return np.asarray(held / np.maximum(np.linalg.norm(held, axis=1, keepdims=True), 1e-12))

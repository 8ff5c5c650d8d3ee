"""A model whose heads can be watched: the transformer, its tokenizer, and what is known about both."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headscope.corpus.windows import Batch
from headscope.errors import ModelError
from headscope.model.capture import See, observing
from headscope.model.tokens import ModelTokens


@dataclass(frozen=True)
class Anatomy:
    """What one run over two tokens shows of a model."""

    layers: int
    heads: int
    causal: bool
    """no token looks at a later one"""


@dataclass(frozen=True, eq=False)
class Model:
    """Made by `headscope.load`. `network` is the transformers model, unchanged."""

    name: str
    network: Any
    tokens: ModelTokens
    weight_hash: str

    @property
    def device(self) -> torch.device:
        return torch.device(next(iter(self.network.parameters())).device)

    @property
    def dtype(self) -> str:
        return str(next(iter(self.network.parameters())).dtype).removeprefix("torch.")

    @property
    def type(self) -> str:
        return str(getattr(self.network.config, "model_type", type(self.network).__name__))

    @property
    def _config(self) -> Any:
        """The part of the configuration that speaks of the text model, where there are others (images, sound)."""
        return self.network.config.get_text_config()

    @property
    def max_length(self) -> int | None:
        """The longest window the model has positions for; None where nothing bounds it."""
        config = self._config
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if not isinstance(limit, int) or limit <= 0:
            return None
        # RoBERTa and its kin number positions from the padding id + 1, so the first rows of their table are never used.
        embeddings = next((m for m in self.network.modules() if hasattr(m, "position_embeddings")), None)
        table = getattr(embeddings, "position_embeddings", None)
        unused = getattr(table, "padding_idx", None)
        return limit if unused is None else limit - unused - 1

    @cached_property
    def anatomy(self) -> Anatomy:
        """Layers and heads as they show themselves, checked against the model's configuration."""
        seen: list[tuple[int, bool]] = []

        def see(layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
            seen.append((output.shape[2], bool((attention[0, :, 0, 1] == 0).all())))

        ids = np.full((1, 2), self.tokens.pad_id, dtype=np.int64)
        self._forward(ids, np.ones((1, 2), dtype=bool), see)
        if not seen:
            raise ModelError(
                f"{self.name}: nothing was captured: the model type {self.type!r} has no attention layers, "
                "or computes them outside transformers' attention registry, which headscope cannot watch yet"
            )
        counts = sorted({heads for heads, _ in seen})
        if len(counts) > 1:
            raise ModelError(
                f"{self.name}: its layers differ in their number of heads ({counts}), which a study cannot hold yet"
            )
        expected = getattr(self._config, "num_attention_heads", counts[0])
        if expected != counts[0]:
            raise ModelError(f"{self.name}: captured {counts[0]} heads a layer where its configuration says {expected}")
        # Layers are numbered as they are met: were some without attention, the others would bear wrong numbers.
        depth = getattr(self._config, "num_hidden_layers", len(seen))
        if depth != len(seen):
            raise ModelError(
                f"{self.name}: captured {len(seen)} layers where its configuration says {depth}: the model type "
                f"{self.type!r} has layers without attention, or with attention that headscope cannot watch yet"
            )
        return Anatomy(layers=len(seen), heads=counts[0], causal=all(causal for _, causal in seen))

    def observe(self, batch: Batch, see: See) -> None:
        """Run the model over a batch and show every layer to `see`."""
        layers = self._forward(batch.ids, batch.real, see)
        if layers != self.anatomy.layers:
            raise ModelError(f"{self.name}: captured {layers} layers where there are {self.anatomy.layers}")

    def _forward(self, ids: np.ndarray[Any, Any], real: np.ndarray[Any, Any], see: See) -> int:
        known = getattr(self.network.get_input_embeddings(), "num_embeddings", None)
        if known is not None and ids.max() >= known:
            raise ModelError(
                f"{self.name}: its tokenizer gives the token id {ids.max()}, but the model knows {known} tokens: "
                "the two do not belong together"
            )
        inputs = {
            "input_ids": torch.from_numpy(ids).to(self.device),
            "attention_mask": torch.from_numpy(real.astype(np.int64)).to(self.device),
        }
        accepted = inspect.signature(self.network.forward).parameters
        if "use_cache" in accepted:
            inputs["use_cache"] = False  # type: ignore[assignment]
        with observing(self.network, see) as observer, torch.inference_mode():
            self.network(**inputs)
        return observer.layers

"""Tiny random models of many architectures, and a tokenizer for them, made in memory: no download, no large file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast, ViTImageProcessorPil

from headscope.corpus.windows import Batch, Window
from headscope.model.capture.records import CapturedAttention
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers.families import COMMON, FAMILIES, GROUPED, HEADS, IMAGE, POSITIONS, UNSEEN, UNSEEN_VISION, WIDTH

__all__ = ["COMMON", "FAMILIES", "GROUPED", "HEADS", "POSITIONS", "UNSEEN", "WIDTH"]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (*SPECIAL, ".", ",", "!", "?", "the", *LETTERS, *(f"##{letter}" for letter in LETTERS))
"""A WordPiece vocabulary in which every lower-case word can be spelled."""


def network(kind: str, *, attention: str = "eager", seed: int = 0, **options: Any) -> PreTrainedModel:
    """Return a random model, the same for the same arguments, ready to run."""
    family = FAMILIES.get(kind)
    unsupported = {**UNSEEN, **UNSEEN_VISION}
    known = {**family.common, **family.options} if family else unsupported[kind][0] if kind in unsupported else COMMON
    config = AutoConfig.for_model(family.kind if family else kind, **{**known, **options})
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            # Initial weights make every map nearly flat, and biases are 0: neither would reveal an error.
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as training leaves it
    return model.eval()


def tokenizer(vocabulary: Iterable[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer like BERT's: [CLS] words [SEP]."""
    ids = {token: k for k, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def image_processor(size: int = IMAGE) -> ViTImageProcessorPil:
    """Return an image processor that resizes every image to a small square."""
    return ViTImageProcessorPil(size={"height": size, "width": size})


def vision_model(kind: str = "vit", **options: Any) -> Model:
    return load(network(kind, **options), image_processor())


def pictures(count: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Return images of large random squares, in several sizes."""
    random = np.random.default_rng(seed)
    squares = [random.integers(0, 256, (3, 3, 3), dtype=np.uint8) for _ in range(count)]
    return [np.kron(square, np.ones((4 + k % 3, 5, 1), dtype=np.uint8)) for k, square in enumerate(squares)]


def model(kind: str, **options: Any) -> Model:
    return load(network(kind, **options), tokenizer())


def batch(*lengths: int, seed: int = 0, pad_id: int = 0) -> Batch:
    """Return windows of random words, the shorter ones padded."""
    random = np.random.default_rng(seed)
    windows = []
    for length in lengths:
        windows.append(Window.plain(random.integers(len(SPECIAL), len(VOCABULARY), length)))
    return Batch.of(windows, pad_id)


def run(network: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Return the last hidden state."""
    with torch.inference_mode():
        result = network(input_ids=torch.from_numpy(batch.ids), attention_mask=torch.from_numpy(batch.real.astype(int)))
    return result.last_hidden_state


class LayerRecorder:
    """Record outputs and maps of each layer, in order."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.outputs: list[torch.Tensor] = []
        self.maps: list[torch.Tensor] = []

    def __call__(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.layers.append(layer)
        self.outputs.append(output)
        self.maps.append(attention)

    def record(self, captured: CapturedAttention) -> None:
        """Record what `watching` reports; layers are numbered in order."""
        self(len(self.layers), captured.output, captured.attention)

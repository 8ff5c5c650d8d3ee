"""Windows, tallies and studies made without a model, for tests that need exact or chosen numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window
from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.torch_backend import TorchTallier

TALLIERS = {"reference": ReferenceTallier, "torch": TorchTallier, "numba": NumbaTallier}
CLS, SEP, STOP, COMMA = 1, 2, 4, 5


def window(ids: list[int], sentence: list[int] | None = None) -> Window:
    """Return a window whose ids determine its tokens: 1 and 2 are special, 4 is a full stop, 5 a comma."""
    tokens = np.array(ids, dtype=np.int64)
    end = tokens == STOP
    numbers = np.concatenate([[0], np.cumsum(end[:-1])]) if sentence is None else np.array(sentence)
    return Window(
        ids=tokens,
        special=np.isin(tokens, [CLS, SEP]),
        sentence=numbers.astype(np.int64),
        end=end,
        comma=tokens == COMMA,
    )


def tally(
    kernel: str, counting: TallySettings, windows: list[Window], outputs: list[torch.Tensor], maps: list[torch.Tensor]
) -> Tally:
    """Return the tally of one batch, from outputs (batch, position, head, width) and maps of each layer."""
    tallier = TALLIERS[kernel](counting)
    tallier.begin(Batch.of(windows))
    for layer, (output, attention) in enumerate(zip(outputs, maps, strict=True)):
        tallier.observe_layer(layer, output, attention)
    tallier.end()
    return tallier.get_sums()


def manifest(shape: Shape, **changes: Any) -> dict[str, Any]:
    """Return a manifest like that of a run."""
    attributes = {
        "format": 1,
        "headscope": "0",
        "model": "synthetic",
        "model_type": "bert",
        "weight_hash": "0" * 64,
        "tokenizer": "Tokenizer",
        "first_special_token": "t1",
        "causal": 0,
        "layers": shape.layers,
        "heads": shape.heads,
        "length": shape.length,
        "windows": "first",
        "sentences": "tokens",
        "blocks": "documents",
        "min_tokens": 2,
        "theta": 0.3,
        "tau": 0.3,
        "sample": 1.0,
        "maps": int(shape.maps),
        "dtype": "float32",
        "device": "cpu",
        "batch_size": 8,
        "kernel": "torch",
        "corpus": "synthetic texts",
        "limit": "none",
        "corpus_hash": f"{1:032x}",
        "documents_read": 10,
        "documents_skipped": json.dumps({"empty": 1}),
        "excerpts": json.dumps([{"name": "text 1", "text": "An excerpt."}]),
        "complete": 1,
        "stopped_by": "",
        "versions": json.dumps({"torch": "2"}),
        "date": "2026-01-01T00:00:00+00:00",
        "platform": "linux",
        "command": "headscope study",
        "duration_seconds": 1.5,
    }
    return attributes | changes


def names(ids: list[int]) -> list[str]:
    return [f"t{k}" for k in ids]


def study_of(sums: Tally, **changes: Any) -> Study:
    """Return a study with these sums."""
    return Study(label_sums(sums, names).assign_attrs(manifest(sums.shape, **changes)))


def make_random_study(
    seed: int = 0, layers: int = 4, heads: int = 3, texts: int = 30, length: int = 16, maps: bool = True, **changes: Any
) -> Study:
    """Return a study of random outputs over random windows: every quantity is filled, none is meaningful."""
    random = np.random.default_rng(seed)
    shape = Shape(layers, heads, length, maps, width=4)
    windows = [
        window([CLS, *random.integers(3, 9, random.integers(4, length - 1)).tolist(), SEP]) for _ in range(texts)
    ]
    longest = max(len(w) for w in windows)
    outputs = [torch.from_numpy(random.normal(0.4, 1, (texts, longest, heads, 4))) for _ in range(layers)]
    maps_ = [make_masked_maps(random, windows, heads, longest) for _ in range(layers)]
    return study_of(tally("torch", TallySettings(shape, 0.3, 0.3, 1.0), windows, outputs, maps_), **changes)


def make_masked_maps(
    random: np.random.Generator, windows: list[Window], heads: int, longest: int, *, causal: bool = False
) -> torch.Tensor:
    """Return random attention maps whose rows sum to 1 over the real tokens, some of which receive much attention.

    Padding contains arbitrary values.
    """
    maps = random.random((len(windows), heads, longest, longest))
    maps *= random.choice([0.1, 1.0], (len(windows), 1, 1, longest), p=[0.7, 0.3])
    if causal:
        maps = np.tril(maps)
    for row, window in enumerate(windows):
        length = len(window)
        maps[row, :, :length, length:] = 0
        maps[row, :, :length] /= maps[row, :, :length].sum(-1, keepdims=True)
    return torch.from_numpy(maps)

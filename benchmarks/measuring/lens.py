"""The same job with TransformerLens 4: `TransformerBridge`, `run_with_cache`, then one tally over what the cache gives.

It is no dependency of headscope. To have it measured too, install it, or put it on PYTHONPATH without what it does not
need here:

    pip install --target FOLDER --no-deps transformer-lens==4.3.0 \\
        einops fancy-einsum jaxtyping wadler-lindig beartype 'typeguard<5'
    pip install accelerate datasets pandas rich

Two ways: all activations cached, which is its default, and only `hook_z` (heads' outputs) and `hook_pattern` (maps).
The statistics on the cache are headscope's own vectorised ones, all quantities of a study but those of the sample, so
the difference to headscope is how the heads are got at. The model has a small head (next sentence) in place of one over
the vocabulary, which would cost as much as several layers.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

import torch

from headscope.corpus.windows import Batch
from headscope.model.model import Model
from headscope.tally.tally import Tallier

HOOKS = ("attn.hook_z", "attn.hook_pattern")
ABSENT = "not installed: pip install transformer-lens"


def is_installed() -> bool:
    return importlib.util.find_spec("transformer_lens") is not None


def bridge_of(model: Model) -> Any:
    """A bridge to a copy of the model: it changes the modules and the tokenizer it is given."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import BertForNextSentencePrediction

    whole = BertForNextSentencePrediction(copy.deepcopy(model.network.config))
    whole.bert = copy.deepcopy(model.network)
    kind = next(model.network.parameters()).dtype
    whole.to(model.device, kind).eval()
    whole.config.architectures = ["BertForNextSentencePrediction"]
    logging.getLogger("transformer_lens").setLevel(logging.ERROR)
    words = copy.deepcopy(model.tokens.tokenizer)
    return TransformerBridge.boot_transformers(
        "google-bert/bert-base-uncased", hf_model=whole, tokenizer=words, device=str(model.device), dtype=kind
    )


def runner(model: Model, batches: list[Batch], tallier: Tallier, *, everything: bool) -> Callable[[], None]:
    """Runs the model over the batches and adds up what the cache holds."""
    bridge = bridge_of(model)
    layers = model.architecture.layers
    wanted = [f"blocks.{layer}.{hook}" for layer in range(layers) for hook in HOOKS]

    def run() -> None:
        for batch in batches:
            ids = torch.from_numpy(batch.ids).to(model.device)
            mask = torch.from_numpy(batch.real).long().to(model.device)
            with torch.inference_mode():
                _, cache = bridge.run_with_cache(ids, attention_mask=mask, names_filter=None if everything else wanted)
                tallier.begin(batch)
                for layer in range(layers):
                    tallier.observe_layer(layer, *(cache[f"blocks.{layer}.{hook}"] for hook in HOOKS))
                tallier.end()

    return run

"""Tiny random models with a language modeling head."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedModel

from headscope.corpus.windows import Batch
from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers import tiny
from tests.helpers.families import FAMILIES

PREDICTING = [
    name for name, family in FAMILIES.items() if family.padding != "none" and name not in ("xlnet",)
]  # xlnet's heads cannot be silenced


def get_auto_class(name: str) -> Any:
    stacks = FAMILIES[name].stacks
    if "cross" in stacks:
        return AutoModelForSeq2SeqLM
    return AutoModelForMaskedLM if "encoder" in stacks else AutoModelForCausalLM


@cache
def make_network(name: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random_network = get_auto_class(name).from_config(tiny.network(name).config, attn_implementation="eager")
        with torch.no_grad():
            for weight in random_network.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
            for module in random_network.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0
    return random_network.eval()


@cache
def load_model(name: str, stack: str | None = None) -> Model:
    """Return a model that is examined once for all tests."""
    return load(make_network(name), tiny.tokenizer(), stack=stack)


def make_windows(model: Model, *lengths: int, seed: int = 3) -> list[Any]:
    return [model.adapt_window(window) for window in tiny.batch(*lengths, seed=seed).windows]


def make_batch(model: Model, name: str, *lengths: int) -> Batch:
    return Batch.of(make_windows(model, *lengths), FAMILIES[name].pad_id)

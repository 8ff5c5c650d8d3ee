"""Tiny random models with the part that predicts words."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, PreTrainedModel

from headscope.corpus.windows import Batch
from headscope.model.loading import load
from headscope.model.model import Model
from tests import tiny
from tests.families import FAMILIES

PREDICTING = [
    name for name, family in FAMILIES.items() if family.padding != "none" and name not in ("xlnet",)
]  # xlnet's heads cannot be silenced


def opener(name: str) -> Any:
    stacks = FAMILIES[name].stacks
    if "cross" in stacks:
        return AutoModelForSeq2SeqLM
    return AutoModelForMaskedLM if "encoder" in stacks else AutoModelForCausalLM


@cache
def network(name: str) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = opener(name).from_config(tiny.network(name).config, attn_implementation="eager")
        with torch.no_grad():
            for weight in made.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
            for module in made.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0
    return made.eval()


@cache
def model(name: str, stack: str | None = None) -> Model:
    """Examined once for all tests."""
    return load(network(name), tiny.tokenizer(), stack=stack)


def windows(made: Model, *lengths: int, seed: int = 3) -> list[Any]:
    return [made.reads(window) for window in tiny.batch(*lengths, seed=seed).windows]


def batch(made: Model, name: str, *lengths: int) -> Batch:
    return Batch.of(windows(made, *lengths), FAMILIES[name].pad_id)

"""Helpers for the tests of pruning: heads to remove from every architecture, and the expected outcome."""

from __future__ import annotations

from typing import Any

import torch

from headscope.model.interventions import silenced
from headscope.model.model import Model
from tests.helpers import architectures
from tests.helpers.families import FAMILIES

TEXTS = [name for name, family in FAMILIES.items() if family.padding != "none" and name != "xlnet"]
"""models of text; XLNet mixes its heads with a weight that is in no module, and is refused"""

PATTERNS = ("uneven", "even")
MASKED = {"mpnet", "convbert", "olmo2", "bitnet", "bloom", "codegen", "mpt", "fsmt"}
"""parts of these that are shared by layers, or that mix all heads, depend on the number of heads"""
TOGETHER = {"t5", "switch_transformers"}
"""their layers share a table of biases with a column for each head: all of them lose the same heads, or none"""
PLAIN = {
    "nomic_bert", "eurobert", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi",
    "phi3", "cohere", "granite", "starcoder2", "deepseek_v3", "afmoe", "jamba", "bamba", "lfm2", "qwen3_next",
    "falcon_h1",
}  # fmt: skip
"""config.json can say how many heads there are without changing how wide they are"""


def choose_heads(model: Model, pattern: str) -> list[tuple[int, int]]:
    """Return heads to remove.

    Args:
        pattern: `uneven` for different numbers in each layer, if there are several layers; `even` for the same number,
            one of each pair of heads that share their keys.
    """
    heads = []
    for position, layer in enumerate(model.architecture.numbers):
        is_even = pattern == "even" or len({id(call.module) for call in model.attention_plan.calls}) == 1
        numbers = (1, 3) if is_even else (0, 1) if position == 0 else (1, 2, 3)
        heads += [(layer, head) for head in numbers if head < model.architecture.heads]
    return heads


def get_expected_outcome(name: str, pattern: str) -> str:
    masked = name in MASKED or (name in TOGETHER and pattern == "uneven")
    return "masked" if masked else "removed"


def get_expected_form(name: str, pattern: str) -> str:
    if get_expected_outcome(name, pattern) == "masked":
        return "masked"
    plain = name in PLAIN and (pattern == "even" or name == "bamba")  # bamba has one layer with attention
    return "plain" if plain else "with code"


def run_silenced(model: Model, heads: list[tuple[int, int]], batch: Any) -> torch.Tensor:
    """Run the model while nothing of these heads reaches their projections."""
    with silenced(model, heads):
        return architectures.result(model, batch)


def compute_error(one: torch.Tensor, other: torch.Tensor, batch: Any) -> float:
    """Return the largest difference at real tokens, relative to the largest value."""
    real = torch.from_numpy(batch.real)
    assert float(one[real].abs().max()) > 1e-3, "nothing to compare"
    return float((one[real] - other[real]).abs().max() / one[real].abs().max())

"""What the tests of pruning share: heads to remove from every architecture, and what becomes of them."""

from __future__ import annotations

from typing import Any

import torch

from headscope.model.model import Model
from headscope.pruning.silencing import silenced
from tests import architectures
from tests.families import FAMILIES

TEXTS = [name for name, family in FAMILIES.items() if family.padding != "none" and name != "xlnet"]
"""XLNet mixes its heads with a weight that is in no module, and is refused"""

PATTERNS = ("uneven", "even")
MASKED = {"mpnet", "convbert", "olmo2", "bitnet", "bloom", "codegen", "mpt", "fsmt"}
"""parts of these that are shared by layers, or that mix all heads, know the number of heads"""
TOGETHER = {"t5", "switch_transformers"}
"""their layers share a table of biases with a column for each head: all of them lose the same heads, or none"""
PLAIN = {
    "nomic_bert", "eurobert", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi",
    "phi3", "cohere", "granite", "starcoder2", "deepseek_v3", "afmoe", "jamba", "bamba", "lfm2", "qwen3_next",
    "falcon_h1",
}  # fmt: skip
"""config.json can say how many heads there are without changing how wide they are"""


def heads_of(model: Model, pattern: str) -> list[tuple[int, int]]:
    """Different numbers in each layer, where there are several; or the same, one of each pair that shares its keys."""
    out = []
    for place, layer in enumerate(model.anatomy.numbers):
        alike = pattern == "even" or len({id(call.module) for call in model._plan.calls}) == 1
        heads = (1, 3) if alike else (0, 1) if place == 0 else (1, 2, 3)
        out += [(layer, head) for head in heads if head < model.anatomy.heads]
    return out


def way(name: str, pattern: str) -> str:
    masked = name in MASKED or (name in TOGETHER and pattern == "uneven")
    return "masked" if masked else "removed"


def form(name: str, pattern: str) -> str:
    if way(name, pattern) == "masked":
        return "masked"
    plain = name in PLAIN and (pattern == "even" or name == "bamba")  # which has one layer with attention
    return "plain" if plain else "with code"


def expected(model: Model, heads: list[tuple[int, int]], made: Any) -> torch.Tensor:
    """What the model makes of a batch while nothing of these heads reaches their projections."""
    with silenced(model, heads):
        return architectures.result(model, made)


def far(one: torch.Tensor, other: torch.Tensor, made: Any) -> float:
    """The largest difference of real tokens, relative to the largest value."""
    real = torch.from_numpy(made.real)
    assert float(one[real].abs().max()) > 1e-3, "nothing to compare"
    return float((one[real] - other[real]).abs().max() / one[real].abs().max())

"""Tiny random models of many families, and a tokenizer for them, all made in memory: no download, no large file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from headscope.corpus.windows import Batch, Window
from headscope.model.loading import load
from headscope.model.model import Model

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (*SPECIAL, ".", ",", "!", "?", "the", *LETTERS, *(f"##{letter}" for letter in LETTERS))
"""A WordPiece vocabulary in which every lower-case word can be spelled."""

HEADS = 4
WIDTH = 32
POSITIONS = 48
COMMON: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}


@dataclass(frozen=True)
class Family:
    """One architecture: its options beside COMMON, whether it looks ahead, and what its output projection is called."""

    kind: str
    causal: bool
    projection: str
    options: Mapping[str, Any] = field(default_factory=dict)


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES = {
    "bert": Family("bert", False, "attention.output.dense"),
    "roberta": Family("roberta", False, "attention.output.dense", {"pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": Family(
        "distilbert", False, "attention.out_lin", {"dim": WIDTH, "hidden_dim": 40, "n_layers": 2, "n_heads": HEADS}
    ),
    "albert": Family("albert", False, "attention.dense", {"num_hidden_layers": 3, "embedding_size": 16}),
    "electra": Family("electra", False, "attention.output.dense", {"embedding_size": 16}),
    # Its second layer looks at neighbours only.
    "modernbert": Family(
        "modernbert",
        False,
        "attn.Wo",
        {"local_attention": 4, "global_attn_every_n_layers": 2, "num_hidden_layers": 3},
    ),
    "gpt2": Family("gpt2", True, "attn.c_proj"),
    "llama": Family("llama", True, "self_attn.o_proj", GROUPED),
    "qwen3": Family("qwen3", True, "self_attn.o_proj", GROUPED),
    "gemma3": Family("gemma3_text", True, "self_attn.o_proj", {**GROUPED, "sliding_window": 4, "num_hidden_layers": 3}),
    "gpt_neox": Family("gpt_neox", True, "attention.dense"),
    "opt": Family("opt", True, "self_attn.out_proj", {"ffn_dim": 40, "word_embed_proj_dim": WIDTH}),
    "mistral": Family("mistral", True, "self_attn.o_proj", {**GROUPED, "sliding_window": 4}),
}
"""Architectures whose heads can be seen."""

UNSEEN: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4, "expand": 2, "time_step_rank": 4},
    "mpnet": {"pad_token_id": 1},
    "deberta-v2": {},
    "bloom": {},
    "gptj": {"rotary_dim": 4},
}
"""Architectures without attention, or with attention that transformers' registry does not know of."""

T5 = {"d_model": WIDTH, "d_ff": 40, "d_kv": 8, "num_layers": 2, "num_heads": HEADS}
"""The options of a tiny encoder–decoder."""


def network(kind: str, *, attention: str = "eager", seed: int = 0, **options: Any) -> PreTrainedModel:
    """A random model, the same for the same arguments, ready to be run."""
    family = FAMILIES.get(kind)
    known = dict(family.options) if family else UNSEEN.get(kind, {})
    config = AutoConfig.for_model(family.kind if family else kind, **{**COMMON, **known, **options})
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModel.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            # Fresh weights are so small that every map is nearly flat, and biases are 0: neither would show a mistake.
            for weight in made.parameters():
                weight.add_(torch.randn_like(weight) * 0.2)
    return made.eval()


def tokenizer(vocabulary: Iterable[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer as BERT's: [CLS] words [SEP]."""
    ids = {token: k for k, token in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def model(kind: str, **options: Any) -> Model:
    return load(network(kind, **options), tokenizer())


def batch(*lengths: int, seed: int = 0, pad_id: int = 0) -> Batch:
    """Windows of random words, the shorter ones padded."""
    random = np.random.default_rng(seed)
    windows = []
    for length in lengths:
        ids = random.integers(len(SPECIAL), len(VOCABULARY), length)
        none = np.zeros(length, dtype=bool)
        windows.append(Window(ids=ids, special=none, sentence=np.zeros(length, dtype=np.int64), end=none, comma=none))
    return Batch.of(windows, pad_id)


def run(network: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The last hidden state."""
    with torch.inference_mode():
        ran = network(input_ids=torch.from_numpy(batch.ids), attention_mask=torch.from_numpy(batch.real.astype(int)))
    return ran.last_hidden_state


class Seen:
    """Keeps what it is shown: each layer's outputs and maps, in order."""

    def __init__(self) -> None:
        self.layers: list[int] = []
        self.outputs: list[torch.Tensor] = []
        self.maps: list[torch.Tensor] = []

    def __call__(self, layer: int, output: torch.Tensor, attention: torch.Tensor) -> None:
        self.layers.append(layer)
        self.outputs.append(output)
        self.maps.append(attention)

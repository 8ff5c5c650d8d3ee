# ruff: noqa: D103
"""A model so small that a hundred thousand texts are a matter of minutes: random weights, always the same."""

from __future__ import annotations

from pathlib import Path


def saved(folder: Path) -> Path:
    """A BERT of 2 layers, 2 heads, width 16, with a tokenizer of letters."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "!", "?", *letters, *(f"##{k}" for k in letters)]
    words = Tokenizer(models.WordPiece({name: k for k, name in enumerate(names)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=words, **{f"{kind}_token": name for kind, name in special.items()}
    ).save_pretrained(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    network = BertModel(BertConfig(vocab_size=len(names), max_position_embeddings=32, **shape))
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)  # fresh weights are so small that every map is flat
    network.save_pretrained(folder)
    return folder


def options(model: Path) -> list[str]:
    asked = "--length 16 --sample 0.05 --batch-size 64 --checkpoint-interval 2 --device cpu --no-maps --json"
    return ["--model", str(model), *asked.split()]

"""Models and windows to measure on: real ones, or random ones of any shape, made in memory without a network.

Fresh random weights give flat maps, in which nearly every pair of tokens is high. Queries and keys are therefore made
larger and what heads write into the stream smaller, until a fifth to a half of the pairs is high, as in trained models.
"""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headscope.corpus.windows import Batch, Window, WindowSpec
from headscope.model.model import Model

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MARKS = (".", ",", "!", "?")
WORDS = 8000
SHARP, QUIET = 8.0, 0.2
"""how much larger queries and keys are than fresh ones, at width 768; how much smaller what heads write"""
SENTENCE, CLAUSE = 18, 11
"""words from one full stop to the next, and from one comma to the next, on average"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that choose what is measured on."""
    parser.add_argument("--model", default="minilm", help="minilm, a folder or a hub name")
    parser.add_argument("--shape", metavar="LAYERSxHEADSxWIDTH", help="random weights of this shape, no model needed")
    parser.add_argument("--source", metavar="FILE", help="texts for a real model; without it the bundled ones")
    parser.add_argument("--length", type=int, default=128, help="tokens of a window")
    parser.add_argument("--ragged", action="store_true", help="with --shape: windows of a quarter of it and more")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=tuple(DTYPES))
    parser.add_argument(
        "--tf32", action=argparse.BooleanOptionalAction, default=True, help="float32 products on CUDA; for all ways"
    )


def model_of(options: argparse.Namespace) -> Model:
    """The model to measure on, and float32 products as asked for, for every way alike."""
    if options.device == "cuda":
        torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    from headscope.model.loading import load

    if not options.shape:
        return load(options.model, device=options.device, dtype=options.dtype)
    network = random_network(*sizes(options.shape), positions=max(512, options.length))
    return load(network.to(options.device, DTYPES[options.dtype]), word_tokenizer())


def sizes(shape: str) -> tuple[int, int, int]:
    layers, heads, width = map(int, shape.split("x"))
    return layers, heads, width


def random_network(layers: int, heads: int, width: int, positions: int = 512, words: int = WORDS) -> Any:
    """A BERT of random weights, the same for the same shape; `words` as many as its tokenizer is given."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=len(vocabulary([])) + words,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=width,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
    )
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = BertModel(config)
    with torch.no_grad():
        for layer in network.encoder.layer:
            attention = layer.attention
            for part in (attention.self.query, attention.self.key):
                part.weight.mul_(SHARP * (768 / width) ** 0.5)
            attention.output.dense.weight.mul_(QUIET)
    return network.eval()


def vocabulary(words: list[str]) -> list[str]:
    """These words, and the letters to spell others by; words of one letter are among those."""
    letters = string.ascii_lowercase + string.digits
    return [*SPECIAL, *MARKS, *letters, *(f"##{letter}" for letter in letters), *words]


def word_tokenizer(words: list[str] | None = None) -> Any:
    """A WordPiece tokenizer, [CLS] before and [SEP] behind; without words given, they are w0, w1, …"""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    held = words if words is not None else [f"w{k}" for k in range(WORDS)]
    ids = {token: k for k, token in enumerate(vocabulary(held))}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    roles = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=made, **roles)


def random_text(random: np.random.Generator, count: int, words: list[str] | None = None) -> str:
    """Words as often as their rank has it (Zipf), with full stops and commas."""
    held = words if words is not None else [f"w{k}" for k in range(WORDS)]
    ranks = np.minimum(random.zipf(1.3, count) - 1, len(held) - 1)
    marks = random.random(count)
    text = [held[rank] + _mark(draw) for rank, draw in zip(ranks.tolist(), marks.tolist(), strict=True)]
    return " ".join(text) + "."


def _mark(draw: float) -> str:
    return "." if draw < 1 / SENTENCE else "," if draw > 1 - 1 / CLAUSE else ""


def random_texts(count: int, length: int, ragged: bool = False, seed: int = 0) -> Iterator[str]:
    """Texts for a model of random weights, each long enough to fill a window unless ragged."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        yield random_text(random, int(random.integers(length // 4, length)) if ragged else length)


def texts_of(options: argparse.Namespace, count: int) -> Iterator[str]:
    """As many texts as asked for: random words, or real texts; used up, these begin anew with another first word."""
    if options.shape:
        return random_texts(count, options.length, options.ragged)
    return itertools.islice(_real_texts(options.source), count)


def _real_texts(source: str | None) -> Iterator[str]:
    import headscope

    for turn in itertools.count():
        for document in headscope.documents(source) if source else headscope.documents():
            yield f"{turn} {document.text}" if turn else document.text


def windows_of(model: Model, options: argparse.Namespace, count: int) -> list[Window]:
    """As many windows, cut and held in memory."""
    from headscope.corpus.formats import Document

    cut, made = WindowSpec(length=options.length), []
    for number, text in enumerate(texts_of(options, count)):
        windows = model.windows(Document(text, f"text {number}"), cut)
        made += windows if not isinstance(windows, str) else []
    return made


def batches_of(model: Model, windows: list[Window], size: int) -> list[Batch]:
    held = [windows[start : start + size] for start in range(0, len(windows), size)]
    return [Batch.of(each, model.tokens.pad_id) for each in held]

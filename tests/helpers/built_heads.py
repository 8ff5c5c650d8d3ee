"""Small transformers whose heads are built by hand: what each attends to and writes is exact, not trained.

The residual stream holds the token and the position of every token as one-hot vectors, and in the decoder's second
layer the previous token as well. All tokens then have the same mean and variance, so that layer norms are one affine
map, which the projections undo. A head is given by what its queries, keys and values read from these vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from headscope.model.loading import load
from headscope.model.model import Model
from tests.helpers.tiny import LETTERS, SPECIAL, tokenizer

VOCABULARY = (*SPECIAL, ".", ",", *LETTERS)
CLS, SEP, STOP, COMMA = (VOCABULARY.index(token) for token in ("[CLS]", "[SEP]", ".", ","))
TOKENS, LENGTH, SENTENCE = len(VOCABULARY), 32, 6
SEEN = 2 * TOKENS + LENGTH
"""what a head can read: the token, its position, and the previous token where a layer before has written it"""
TOKEN, POSITION, PREVIOUS = slice(0, TOKENS), slice(TOKENS, TOKENS + LENGTH), slice(TOKENS + LENGTH, SEEN)
WIDTH = TOKENS + LENGTH
"""of a head: enough for one-hot tokens and positions"""
SHARP = 40.0
"""logit of what a head attends to; everything else has 0, so that e⁻⁴⁰ of the attention goes astray"""


@dataclass(frozen=True)
class BuiltHead:
    """What queries, keys and values read, each of shape (WIDTH, SEEN)."""

    query: Tensor
    key: Tensor
    value: Tensor


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of random letters, in sentences of one length, so that positions tell the sentences apart."""
    random = np.random.default_rng(seed)
    letters = np.array(list(LETTERS))
    return [
        " ".join(
            word for words in random.choice(letters, ((LENGTH - 2) // SENTENCE, SENTENCE - 1)) for word in [*words, "."]
        )
        for _ in range(count)
    ]


# -- heads -------------------------------------------------------------------------------------------------------------


def attend_previous() -> BuiltHead:
    return _attend_offset(-1)


def attend_next() -> BuiltHead:
    return _attend_offset(1)


def attend_self() -> BuiltHead:
    return _attend_offset(0)


def attend_duplicates() -> BuiltHead:
    """Attend to the same token elsewhere; evenly to all other tokens where there is none."""
    query, key = _make_zeros(), _make_zeros()
    query[:TOKENS, TOKEN] = SHARP * torch.eye(TOKENS)
    query[TOKENS:, POSITION] = -2 * SHARP * torch.eye(LENGTH)
    key[:TOKENS, TOKEN] = torch.eye(TOKENS)
    key[TOKENS:, POSITION] = torch.eye(LENGTH)
    return BuiltHead(query, key, read_token())


def attend_followers() -> BuiltHead:
    """Attend to what followed an earlier occurrence: to tokens whose previous token is that of the query."""
    head = attend_duplicates()
    key = head.key.clone()
    key[:TOKENS, PREVIOUS], key[:TOKENS, TOKEN] = torch.eye(TOKENS), 0
    return BuiltHead(head.query, key, read_token())


def attend_tokens(*tokens: int) -> BuiltHead:
    """Attend to tokens of these values, wherever they are."""
    query, key = _make_zeros(), _make_zeros()
    query[0, TOKEN] = SHARP
    key[0, list(tokens)] = 1
    return BuiltHead(query, key, read_token())


def attend_first() -> BuiltHead:
    query, key = _make_zeros(), _make_zeros()
    query[0, TOKEN] = SHARP
    key[0, POSITION.start] = 1
    return BuiltHead(query, key, read_token())


def attend_sentence() -> BuiltHead:
    """Attend to all tokens of the sentence, and write which it is."""
    sentences = torch.zeros(WIDTH, SEEN)
    for position in range(LENGTH):
        sentences[max(position - 1, 0) // SENTENCE, POSITION.start + position] = 1
    return BuiltHead(SHARP * sentences, sentences, sentences)


def attend_evenly() -> BuiltHead:
    return BuiltHead(_make_zeros(), _make_zeros(), read_token())


def attend_at_random(seed: int, spread: float = 3.0) -> BuiltHead:
    """Attend by a random matrix, whose logits have this standard deviation, and write random outputs."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(WIDTH, SEEN, generator=generator) for _ in range(3))
    seen = 2  # ones among what is read
    return BuiltHead(query * spread / (seen * WIDTH**0.5), key, value)


def read_token() -> Tensor:
    value = _make_zeros()
    value[:TOKENS, TOKEN] = torch.eye(TOKENS)
    return value


def _attend_offset(offset: int) -> BuiltHead:
    query, key = _make_zeros(), _make_zeros()
    for position in range(LENGTH):
        key[position, POSITION.start + position] = 1
        if 0 <= position + offset < LENGTH:
            query[position + offset, POSITION.start + position] = SHARP
    return BuiltHead(query, key, read_token())


def _make_zeros() -> Tensor:
    return torch.zeros(WIDTH, SEEN)


# -- models ------------------------------------------------------------------------------------------------------------


def build_encoder(heads: Sequence[BuiltHead]) -> Model:
    """Return a BERT of one layer with these heads."""
    size = max(len(heads) * WIDTH, SEEN)
    config = BertConfig(
        vocab_size=TOKENS, hidden_size=size, num_hidden_layers=1, num_attention_heads=len(heads), intermediate_size=4,
        max_position_embeddings=LENGTH, layer_norm_eps=0.0, attn_implementation="eager",
    )  # fmt: skip
    network = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        embeddings, attention = network.embeddings, network.encoder.layer[0].attention.self
        _embed(embeddings.word_embeddings.weight, embeddings.position_embeddings.weight)
        embeddings.token_type_embeddings.weight.zero_()
        for projection, name in ((attention.query, "query"), (attention.key, "key"), (attention.value, "value")):
            weight, bias = _read_normalized([getattr(head, name) for head in heads], size, ones=2)
            projection.weight.copy_(weight * (WIDTH**0.5 if name == "query" else 1))
            projection.bias.copy_(bias * (WIDTH**0.5 if name == "query" else 1))
    return load(network, tokenizer(VOCABULARY))


def build_decoder(first: Sequence[BuiltHead], second: Sequence[BuiltHead]) -> Model:
    """Return a GPT-2 of two layers with these heads; the first head writes the previous token for the second layer."""
    size = max(len(first) * WIDTH, SEEN)
    config = GPT2Config(
        vocab_size=TOKENS, n_embd=size, n_layer=2, n_head=len(first), n_inner=4, n_positions=LENGTH,
        layer_norm_epsilon=0.0, bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    network = GPT2Model(config).eval()
    with torch.no_grad():
        _embed(network.wte.weight, network.wpe.weight)
        for number, (block, heads) in enumerate(zip(network.h, (first, second), strict=True)):
            parts = [
                _read_normalized([getattr(head, name) for head in heads], size, ones=2 + number)
                for name in ("query", "key", "value")
            ]
            weights, biases = ([part[k] for part in parts] for k in range(2))
            weights[0], biases[0] = weights[0] * WIDTH**0.5, biases[0] * WIDTH**0.5
            block.attn.c_attn.weight.copy_(torch.cat(weights).T)
            block.attn.c_attn.bias.copy_(torch.cat(biases))
            for parameter in (*block.attn.c_proj.parameters(), *block.mlp.parameters()):
                parameter.zero_()
        network.h[0].attn.c_proj.weight[:TOKENS, PREVIOUS] = torch.eye(TOKENS)
    return load(network, tokenizer(VOCABULARY))


def _embed(tokens: Tensor, positions: Tensor) -> None:
    tokens.zero_()
    positions.zero_()
    tokens[:, TOKEN] = torch.eye(TOKENS)
    positions[:, POSITION] = torch.eye(LENGTH)


def _read_normalized(parts: Sequence[Tensor], size: int, ones: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias that read vectors with this number of ones as they were before the layer norm."""
    weight = torch.zeros(len(parts) * WIDTH, size)
    weight[:, :SEEN] = torch.cat(list(parts))
    mean = ones / size
    deviation = (mean - mean**2) ** 0.5
    return weight * deviation, weight.sum(1) * mean

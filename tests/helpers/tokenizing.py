"""Small tokenizers of every kind that models use, made in memory: `KINDS` has a builder for each.

Where transformers has a class for them, that class is used; all but the slow ones are trained on `SENTENCES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

SENTENCES = [
    "The airport was closed, the port was open.",
    "Did the owls see the owl? They did! Don't stop at the well-known café.",
    "the owl saw the cat, the cat saw the owl.\n\nThe cat left.\n",
] * 5
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
MARKS = ".,!?;:'\"-_/=()…—"
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""how Llama 3 and Qwen split a text: line breaks belong to the punctuation before them"""
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


# Vocabularies


Bpe = tuple[dict[str, int], list[tuple[str, str]]]


@cache
def train_byte_bpe(pattern: str = "", *special: str) -> Bpe:
    """Train byte-level BPE, whose words are split by GPT-2's rule or by `pattern`."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = split_to_bytes(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 256 + 120,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return read_bpe(backend)


@cache
def train_piece_bpe(*special: str, fallback: bool = True) -> Bpe:
    """Train SentencePiece's BPE: `▁the`; with `fallback`, unknown characters become bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    known = [*special, *(BYTE_TOKENS if fallback else [])]
    trainer = trainers.BpeTrainer(vocab_size=len(known) + 140, special_tokens=known, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return read_bpe(backend)


@cache
def train_ended_bpe(*special: str, byte_level: bool = False) -> Bpe:
    """Train BPE that marks where words end: `the</w>`."""
    backend = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=special[0]))
    backend.normalizer = normalizers.Lowercase()
    steps: list[Any] = [pre_tokenizers.BertPreTokenizer()]
    alphabet = [*LETTERS, *MARKS]
    if byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet) + 100,
        initial_alphabet=alphabet,
        special_tokens=list(special),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    backend.train_from_iterator([*SENTENCES, " ".join([*LETTERS, *MARKS])], trainer)
    vocabulary, merges = read_bpe(backend)
    ends = [f"{character}</w>" for character in alphabet if f"{character}</w>" not in vocabulary]
    return vocabulary | {end: len(vocabulary) + k for k, end in enumerate(ends)}, merges


def read_bpe(backend: Tokenizer) -> Bpe:
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def make_unigram(*special: str) -> list[tuple[str, float]]:
    """Return a Unigram vocabulary; unknown characters stay unknown."""
    words = ["▁the", "▁air", "port", "▁owl", "s", "▁cat", "▁saw", "▁."]
    letters = [k for k in dict.fromkeys([*LETTERS, *MARKS, "é", "東", "京", "😀"]) if k not in words]
    return [
        *((token, 0.0) for token in special),
        ("▁", -3.0),
        *((token, -2.0) for token in words),
        *((token, -5.0) for token in letters),
    ]


def split_to_bytes(pattern: str) -> Any:
    if not pattern:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# Tokenizers


def build_bert() -> Any:
    known = [*dict.fromkeys(["the", "air", "owl", "cat", "saw", *LETTERS.lower(), *MARKS, "東", "京", "😀"])]
    pieces = [f"##{piece}" for piece in ("port", *dict.fromkeys(LETTERS.lower()))]
    vocabulary = {token: k for k, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known, *pieces])}
    return transformers.BertTokenizer(vocab=vocabulary)


def build_gpt2() -> Any:
    vocabulary, merges = train_byte_bpe("", "<|endoftext|>")
    return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)


def build_roberta() -> Any:
    vocabulary, merges = train_byte_bpe("", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)


def build_qwen2() -> Any:
    vocabulary, merges = train_byte_bpe(GPT4, "<|endoftext|>")
    return transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)


def build_llama3() -> Any:
    """Build one as from a folder that holds tokenizer.json and no class: no padding token, a special token first."""
    vocabulary, merges = train_byte_bpe(GPT4, "<|begin_of_text|>", "<|end_of_text|>")
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = split_to_bytes(GPT4)
    backend.decoder = decoders.ByteLevel()
    first = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", vocabulary["<|begin_of_text|>"])]
    )
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), first])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        clean_up_tokenization_spaces=True,
    )


def build_llama() -> Any:
    vocabulary, merges = train_piece_bpe("<unk>", "<s>", "</s>")
    return transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def build_gemma() -> Any:
    vocabulary, merges = train_piece_bpe("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def build_t5() -> Any:
    return transformers.T5Tokenizer(vocab=make_unigram("<pad>", "</s>", "<unk>"), extra_ids=2)


def build_albert() -> Any:
    return transformers.AlbertTokenizer(vocab=make_unigram("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))


def build_xlm_roberta() -> Any:
    return transformers.XLMRobertaTokenizer(vocab=make_unigram("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def build_mbart() -> Any:
    return transformers.MBartTokenizer(vocab=make_unigram("<s>", "<pad>", "</s>", "<unk>"), src_lang="en_XX")


def build_mbart50() -> Any:
    # It replaces SentencePiece's three special tokens by four.
    return transformers.MBart50Tokenizer(vocab=make_unigram("<unk>", "<s>", "</s>"), src_lang="en_XX")


def build_nllb() -> Any:
    vocabulary, merges = train_piece_bpe("<s>", "<pad>", "</s>", "<unk>", fallback=False)
    return transformers.NllbTokenizer(vocab=vocabulary, merges=merges, src_lang="eng_Latn")


def build_openai_gpt() -> Any:
    vocabulary, merges = train_ended_bpe("<unk>")
    return transformers.OpenAIGPTTokenizer(vocab=vocabulary, merges=merges)


def build_clip() -> Any:
    vocabulary, merges = train_ended_bpe("<|endoftext|>", "<|startoftext|>", byte_level=True)
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges)


def build_byt5() -> Any:
    return transformers.ByT5Tokenizer(extra_ids=2)


def build_canine() -> Any:
    return transformers.CanineTokenizer()


class Slow(PreTrainedTokenizer):
    """A tokenizer in Python, which gives no positions: BPE without merges, like that of XLM (`</w>`) or CTRL (`@@`)."""

    def __init__(self, ends: str = "", continuation: str = "", **options: Any) -> None:
        self.ends, self.continuation = ends, continuation
        letters = dict.fromkeys([*LETTERS, *MARKS, "air", "port", "the"])
        known = ["<unk>", "<s>", *(f"{k}{mark}" for mark in dict.fromkeys(("", ends, continuation)) for k in letters)]
        self.known = {token: k for k, token in enumerate(known)}
        self.token_of_id = known
        super().__init__(unk_token="<unk>", bos_token="<s>", special_tokens_pattern="none", **options)

    @property
    def vocab_size(self) -> int:
        return len(self.known)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.known)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        tokens: list[str] = []
        for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text):
            pieces = ["air", "port", *word[7:]] if word.startswith("airport") else [word] if word == "the" else [*word]
            tokens += [f"{piece}{self.continuation}" for piece in pieces[:-1]] + [f"{pieces[-1]}{self.ends}"]
        return tokens

    def _convert_token_to_id(self, token: str) -> int:
        return self.known.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.token_of_id[index]


KINDS: dict[str, Callable[[], Any]] = {
    "bert": build_bert,
    "gpt2": build_gpt2,
    "roberta": build_roberta,
    "qwen2": build_qwen2,
    "llama3": build_llama3,
    "llama": build_llama,
    "gemma": build_gemma,
    "t5": build_t5,
    "albert": build_albert,
    "xlm-roberta": build_xlm_roberta,
    "mbart": build_mbart,
    "mbart50": build_mbart50,
    "nllb": build_nllb,
    "openai-gpt": build_openai_gpt,
    "clip": build_clip,
    "byt5": build_byt5,
    "canine": build_canine,
    "slow ends": lambda: Slow(ends="</w>"),
    "slow goes on": lambda: Slow(continuation="@@"),
}
"""builders of a new tokenizer of each kind"""
SLOW = ("byt5", "canine", "slow ends", "slow goes on")

"""Small tokenizers of every kind that models come with, made in memory: `KINDS` has a builder for each.

Where transformers has the class, it is that class; all but the slow ones have learned from `SENTENCES`.
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
"""How Llama 3 and Qwen split a text: line breaks belong to the punctuation before them."""
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


# Vocabularies


Bpe = tuple[dict[str, int], list[tuple[str, str]]]


@cache
def byte_bpe(pattern: str = "", *special: str) -> Bpe:
    """Byte-level BPE, whose words are split by GPT-2's rule or by `pattern`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = split_to_bytes(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 256 + 120,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(special),
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    return learned(made)


@cache
def piece_bpe(*special: str, fallback: bool = True) -> Bpe:
    """SentencePiece's BPE: `▁the`, with `fallback` every unknown character in bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    known = [*special, *(BYTE_TOKENS if fallback else [])]
    trainer = trainers.BpeTrainer(vocab_size=len(known) + 140, special_tokens=known, show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    return learned(made)


@cache
def ended_bpe(*special: str, byte_level: bool = False) -> Bpe:
    """BPE that marks where words end: `the</w>`."""
    made = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=special[0]))
    made.normalizer = normalizers.Lowercase()
    steps: list[Any] = [pre_tokenizers.BertPreTokenizer()]
    alphabet = [*LETTERS, *MARKS]
    if byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet) + 100,
        initial_alphabet=alphabet,
        special_tokens=list(special),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    made.train_from_iterator([*SENTENCES, " ".join([*LETTERS, *MARKS])], trainer)
    vocabulary, merges = learned(made)
    ends = [f"{character}</w>" for character in alphabet if f"{character}</w>" not in vocabulary]
    return vocabulary | {end: len(vocabulary) + k for k, end in enumerate(ends)}, merges


def learned(made: Tokenizer) -> Bpe:
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def scored(*special: str) -> list[tuple[str, float]]:
    """A Unigram vocabulary; unknown characters stay unknown."""
    whole = ["▁the", "▁air", "port", "▁owl", "s", "▁cat", "▁saw", "▁."]
    letters = [k for k in dict.fromkeys([*LETTERS, *MARKS, "é", "東", "京", "😀"]) if k not in whole]
    return [
        *((token, 0.0) for token in special),
        ("▁", -3.0),
        *((token, -2.0) for token in whole),
        *((token, -5.0) for token in letters),
    ]


def split_to_bytes(pattern: str) -> Any:
    if not pattern:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# Tokenizers


def bert() -> Any:
    known = [*dict.fromkeys(["the", "air", "owl", "cat", "saw", *LETTERS.lower(), *MARKS, "東", "京", "😀"])]
    pieces = [f"##{piece}" for piece in ("port", *dict.fromkeys(LETTERS.lower()))]
    vocabulary = {token: k for k, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *known, *pieces])}
    return transformers.BertTokenizer(vocab=vocabulary)


def gpt2() -> Any:
    vocabulary, merges = byte_bpe("", "<|endoftext|>")
    return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges)


def roberta() -> Any:
    vocabulary, merges = byte_bpe("", "<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)


def qwen2() -> Any:
    vocabulary, merges = byte_bpe(GPT4, "<|endoftext|>")
    return transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)


def llama3() -> Any:
    """As in a folder that holds tokenizer.json and no class: no padding token, a special token first."""
    vocabulary, merges = byte_bpe(GPT4, "<|begin_of_text|>", "<|end_of_text|>")
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    made.pre_tokenizer = split_to_bytes(GPT4)
    made.decoder = decoders.ByteLevel()
    first = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", vocabulary["<|begin_of_text|>"])]
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), first])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        clean_up_tokenization_spaces=True,
    )


def llama() -> Any:
    vocabulary, merges = piece_bpe("<unk>", "<s>", "</s>")
    return transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def gemma() -> Any:
    vocabulary, merges = piece_bpe("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)


def t5() -> Any:
    return transformers.T5Tokenizer(vocab=scored("<pad>", "</s>", "<unk>"), extra_ids=2)


def albert() -> Any:
    return transformers.AlbertTokenizer(vocab=scored("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))


def xlm_roberta() -> Any:
    return transformers.XLMRobertaTokenizer(vocab=scored("<s>", "<pad>", "</s>", "<unk>", "<mask>"))


def mbart() -> Any:
    return transformers.MBartTokenizer(vocab=scored("<s>", "<pad>", "</s>", "<unk>"), src_lang="en_XX")


def mbart50() -> Any:
    # It puts four special tokens in the place of SentencePiece's three.
    return transformers.MBart50Tokenizer(vocab=scored("<unk>", "<s>", "</s>"), src_lang="en_XX")


def nllb() -> Any:
    vocabulary, merges = piece_bpe("<s>", "<pad>", "</s>", "<unk>", fallback=False)
    return transformers.NllbTokenizer(vocab=vocabulary, merges=merges, src_lang="eng_Latn")


def openai_gpt() -> Any:
    vocabulary, merges = ended_bpe("<unk>")
    return transformers.OpenAIGPTTokenizer(vocab=vocabulary, merges=merges)


def clip() -> Any:
    vocabulary, merges = ended_bpe("<|endoftext|>", "<|startoftext|>", byte_level=True)
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges)


def byt5() -> Any:
    return transformers.ByT5Tokenizer(extra_ids=2)


def canine() -> Any:
    return transformers.CanineTokenizer()


class Slow(PreTrainedTokenizer):
    """A tokenizer in Python, which knows no places: BPE without merges, in the way of XLM (`</w>`) or CTRL (`@@`)."""

    def __init__(self, ends: str = "", goes_on: str = "", **options: Any) -> None:
        self.ends, self.goes_on = ends, goes_on
        letters = dict.fromkeys([*LETTERS, *MARKS, "air", "port", "the"])
        known = ["<unk>", "<s>", *(f"{k}{mark}" for mark in dict.fromkeys(("", ends, goes_on)) for k in letters)]
        self.known = {token: k for k, token in enumerate(known)}
        self.written = known
        super().__init__(unk_token="<unk>", bos_token="<s>", special_tokens_pattern="none", **options)

    @property
    def vocab_size(self) -> int:
        return len(self.known)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.known)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        found: list[str] = []
        for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text):
            cut = ["air", "port", *word[7:]] if word.startswith("airport") else [word] if word == "the" else [*word]
            found += [f"{piece}{self.goes_on}" for piece in cut[:-1]] + [f"{cut[-1]}{self.ends}"]
        return found

    def _convert_token_to_id(self, token: str) -> int:
        return self.known.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return self.written[index]


KINDS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "gpt2": gpt2,
    "roberta": roberta,
    "qwen2": qwen2,
    "llama3": llama3,
    "llama": llama,
    "gemma": gemma,
    "t5": t5,
    "albert": albert,
    "xlm-roberta": xlm_roberta,
    "mbart": mbart,
    "mbart50": mbart50,
    "nllb": nllb,
    "openai-gpt": openai_gpt,
    "clip": clip,
    "byt5": byt5,
    "canine": canine,
    "slow ends": lambda: Slow(ends="</w>"),
    "slow goes on": lambda: Slow(goes_on="@@"),
}
"""A new tokenizer of each kind."""
SLOW = ("byt5", "canine", "slow ends", "slow goes on")

"""Words: which tokens form one, and how tokens and words are displayed, for every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import headscope
from headscope import Reading
from headscope.array_types import Bools
from headscope.model import token_text
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.model.tokenizer import ModelTokens
from tests.helpers import tiny

SENTENCES = [
    "the airport was closed, the port was open.",
    "don't stop at the well-known café in 2024.",
    "the owls saw the owl and the cat.",
] * 5


def wrap(backend: Tokenizer, **roles: str) -> ModelTokens:
    return ModelTokens(PreTrainedTokenizerFast(tokenizer_object=backend, **roles))


def train_byte_level(*, trim: bool = True, decoder: bool = True) -> ModelTokens:
    """Train one like GPT-2's: `Ġthe`; characters outside ASCII become bytes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=trim)
    if decoder:
        backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False),
    )
    return wrap(backend, eos_token="<|end|>")


def train_pieces(*, split: bool = True) -> ModelTokens:
    """Train one like Llama's: `▁the`, unknown characters as bytes; without `split` the text is one run of pieces."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    if not split:
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return wrap(backend, unk_token="<unk>", bos_token="<s>")


def build_unigram(*, decoder: bool = True) -> ModelTokens:
    """Build one like T5's and XLM-RoBERTa's."""
    scores = {"<unk>": 0.0, "▁": -3.0, "▁the": -1.0, "▁air": -2.0, "port": -2.0, "s": -3.0, ".": -3.0, "é": -3.0}
    letters = {letter: -5.0 for letter in "abcdefghijklmnopqrtuvwxyz'-,0123456789" if letter not in scores}
    backend = Tokenizer(models.Unigram(list((scores | letters).items()), unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    if decoder:
        backend.decoder = decoders.Metaspace()
    return wrap(backend, unk_token="<unk>")


def build_clip() -> ModelTokens:
    """Build one like CLIP's: `the</w>`."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["<unk>", *letters, "'", "Ã", *(f"{end}</w>" for end in (*letters, *".,-'0123456789", "©"))]
    known += ["th", "the</w>", "'t</w>", "po", "por", "port</w>"]
    merges = [("t", "h"), ("th", "e</w>"), ("'", "t</w>"), ("p", "o"), ("po", "r"), ("por", "t</w>")]
    ids = {token: k for k, token in enumerate(known)}
    backend = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Lowercase()
    pattern = Regex(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return wrap(backend, unk_token="<unk>")


def build_bert() -> ModelTokens:
    """Build one like multilingual BERT's.

    Every CJK character is a word, control characters are dropped, and accents are stripped.
    """
    letters = "abcdefghijklmnopqrstuvwxyz0123456789'-.,"
    known = [
        *tiny.SPECIAL,
        *letters,
        *(f"##{k}" for k in letters),
        "漢",
        "字",
        "か",
        "##な",
        "e",
        "é",
        "##é",
        "م",
        "##ی",
    ]
    known += ["##خ", "##و"]
    backend = Tokenizer(models.WordPiece({token: k for k, token in enumerate(dict.fromkeys(known))}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=True, lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return wrap(backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


TOKENIZERS: dict[str, Callable[[], ModelTokens]] = {
    "wordpiece": lambda: ModelTokens(tiny.tokenizer()),
    "bert": build_bert,
    "bytes": train_byte_level,
    "bytes untrimmed": lambda: train_byte_level(trim=False),
    "bytes undecoded": lambda: train_byte_level(decoder=False),
    "pieces": train_pieces,
    "pieces unsplit": lambda: train_pieces(split=False),
    "unigram": build_unigram,
    "unigram undecoded": lambda: build_unigram(decoder=False),
    "clip": build_clip,
}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, ModelTokens]:
    return {name: make() for name, make in TOKENIZERS.items()}


def find_words(tokens: ModelTokens, text: str) -> list[str]:
    """Return the words of a text as the text has them."""
    (encoding,) = tokens.encode(text, 256, all_windows=False, offsets=True)
    assert encoding.words is not None
    assert encoding.starts is not None
    assert encoding.ends is not None
    numbers = encoding.words
    assert numbers[0] == 0
    assert set(np.diff(numbers)) <= {0, 1}
    found_words = []
    for word in range(numbers[-1] + 1):
        inside = np.flatnonzero(numbers == word)
        if encoding.special[inside].any():
            found_words += tokens.labels(encoding.ids[inside])
        else:
            found_words.append(text[encoding.starts[inside[0]] : encoding.ends[inside[-1]]].strip())
    return [word for word in found_words if word]


CASES = [
    ("the airport was closed.", ["the", "airport", "was", "closed", "."]),
    ("owls saw airports", ["owls", "saw", "airports"]),
    ("airport,port", ["airport", ",", "port"]),
    ("o-p q", ["o", "-", "p", "q"]),
]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(("text", "expected"), CASES)
def test_words_of_every_tokenizer(tokenizers: dict[str, ModelTokens], name: str, text: str, expected: list[str]):
    found_words = find_words(tokenizers[name], text)
    assert [word for word in found_words if word not in ("[CLS]", "[SEP]", "<s>")] == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("wordpiece", "the owls", ["[CLS]", "the", "owls", "[SEP]"]),
        ("wordpiece", "a [SEP] b", ["[CLS]", "a", "[SEP]", "b", "[SEP]"]),
        ("wordpiece", "a[SEP]b", ["[CLS]", "a", "[SEP]", "b", "[SEP]"]),
        ("bert", "don't", ["don", "'", "t"]),
        ("bert", "in 2024, 3.5", ["in", "2024", ",", "3", ".", "5"]),
        ("bert", "b2b", ["b2b"]),
        ("bert", "漢字 かな", ["漢", "字", "かな"]),
        ("bert", "cafés cafe\u0301s", ["cafés", "cafe\u0301s"]),  # the mark is dropped, the word continues
        ("bert", "می\u200cخو", ["می\u200cخو"]),
        ("bert", "a\u00adb a\u200bb", ["a\u00adb", "a\u200bb"]),  # what this tokenizer drops divides nothing
        ("bytes", "don't", ["don", "'t"]),
        ("bytes", "well-known 3-2", ["well", "-", "known", "3", "-", "2"]),
        ("bytes", "in 2024, 3.5", ["in", "2024", ",", "3", ".", "5"]),
        ("bytes", "b2b", ["b", "2", "b"]),  # GPT-2 splits letters from digits
        ("bytes", "cafés naïve Ελλάδα", ["cafés", "naïve", "Ελλάδα"]),
        ("bytes", "cafe\u0301s na\u0308ive", ["cafe\u0301s", "na\u0308ive"]),
        ("bytes", "नमस्ते हिन्दी", ["नमस्ते", "हिन्दी"]),
        ("bytes", "می\u200cخواهم co\u00adop", ["می\u200cخواهم", "co\u00adop"]),
        ("bytes", "漢字 かな", ["漢字", "かな"]),
        ("bytes", "🦉 owl🦉🦉s", ["🦉", "owl", "🦉", "🦉", "s"]),
        ("bytes", "❤\ufe0f love", ["❤\ufe0f", "love"]),
        ("bytes", "a\u200bb", ["a", "\u200b", "b"]),
        ("bytes", "“the owl”", ["“", "the", "owl", "”"]),
        ("bytes", "\n\n  the\tcat\n", ["the", "cat"]),
        ("bytes", "the<|end|>cat", ["the", "<|end|>", "cat"]),
        ("bytes untrimmed", "the café 🦉 owl", ["the", "café", "🦉", "owl"]),
        ("pieces", "the cafés, 🦉", ["<s>", "the", "cafés", ",", "🦉"]),
        ("pieces", "qu'il 3.5", ["<s>", "qu", "'", "il", "3", ".", "5"]),
        ("pieces unsplit", "the cafés, 🦉", ["<s>", "the", "cafés", ",", "🦉"]),
        ("pieces unsplit", "qu'il 3.5 x-y", ["<s>", "qu", "'", "il", "3", ".", "5", "x", "-", "y"]),
        ("pieces unsplit", "漢字 かな e\u0301s", ["<s>", "漢字", "かな", "e\u0301s"]),
        ("pieces unsplit", "the\nport\n\nthe", ["<s>", "the", "port", "the"]),
        ("unigram", "the cafés x-y 2024", ["the", "cafés", "x", "-", "y", "2024"]),
        ("unigram", "🦉 owl", ["🦉", "owl"]),
        ("clip", "don't the Ports", ["don", "'t", "the", "Ports"]),
        ("clip", "café 42", ["café", "4", "2"]),  # CLIP splits every digit
    ],
)
def test_words_of_one_tokenizer(tokenizers: dict[str, ModelTokens], name: str, text: str, expected: list[str]):
    assert find_words(tokenizers[name], text) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(st.sampled_from("thear ports.,'-2é🦉漢न\u0301\u094d\u200c\u200d\u00ad\n<|end|>"), max_size=30))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_words_of_any_text(tokenizers: dict[str, ModelTokens], name: str, text: str):
    tokens = tokenizers[name]
    (encoding,) = tokens.encode(text, 256, all_windows=False, offsets=True)
    if not len(encoding.ids):
        return
    assert encoding.words is not None
    steps = np.diff(encoding.words)
    assert encoding.words[0] == 0
    assert ((steps == 0) | (steps == 1)).all()
    beside = encoding.special[1:] | encoding.special[:-1]
    assert (steps[beside] == 1).all()
    for label in tokens.labels(encoding.ids):
        assert label.strip() == label
        assert label


# From the marks alone


def mark_none_special(count: int) -> Bools:
    return np.zeros(count, dtype=bool)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["air", "##port", "##s", ".", "a"], [0, 0, 0, 1, 2]),
        (["##port", "##s"], [0, 0]),
        (["▁air", "port", ",", "▁a", "-", "b"], [0, 0, 1, 2, 3, 4]),
        (["▁the", "▁", "2", "0", "▁a"], [0, 1, 2, 2, 3]),
        (["▁", "<0xF0>", "<0x9F>", "<0xA6>", "<0x89>", "▁a"], [0, 1, 1, 1, 1, 2]),
        (["▁caf", "<0xC3>", "<0xA9>", "s"], [0, 0, 0, 0]),
        (["The", "Ġair", "port", ".", "Ċ", "Ċ", "It", "Ġis"], [0, 1, 1, 2, 3, 4, 5, 6]),  # a line break joins nothing
        (["Ġcaf", "Ã", "©", "s", "Ġa"], [0, 0, 0, 0, 1]),
        (["Ġna", "Ã¯", "ve"], [0, 0, 0]),
        (["ĠðŁ", "¦", "ī", "s"], [0, 0, 0, 1]),
        (["âĢľ", "the", "Ġowl", "âĢĿ"], [0, 1, 2, 3]),
        (["Ġe", "Ìģ", "s"], [0, 0, 0]),
        (["Ġdon", "'t", "Ġ", "3"], [0, 1, 2, 3]),
        (["air", "port</w>", "the</w>", "'t</w>"], [0, 0, 1, 2]),
        (["one", "two"], [0, 1]),
    ],
)
def test_words_by_marks(names: list[str], expected: list[int]):
    assert token_text.number_words_by_marks(names, mark_none_special(len(names))).tolist() == expected


def test_special_tokens_are_words_of_their_own_by_marks_too():
    for names in (["<s>", "Ġair", "port", "<s>", "port"], ["<s>", "air", "##port", "<s>", "##port"]):
        assert token_text.number_words_by_marks(names, np.array([1, 0, 0, 1, 0], dtype=bool)).tolist() == [
            0,
            1,
            1,
            2,
            3,
        ]
    assert token_text.number_words_by_marks(["a", "<s>", "port</w>"], np.array([0, 1, 0], dtype=bool)).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("name", ["bytes", "pieces"])
@pytest.mark.parametrize(
    "text",
    [
        *(f"the {text}" for text, _ in CASES),
        "a 🦉 owl🦉",
        "a cafés 漢字",
        "the “owl” e\u0301s",
        "a नमस्ते",
        "the\n\nowl saw",
    ],
)
def test_marks_and_places_give_the_same_words(tokenizers: dict[str, ModelTokens], name: str, text: str):
    (encoding,) = tokenizers[name].encode(text, 256, all_windows=False, offsets=True)
    assert encoding.words is not None
    assert tokenizers[name].number_words(encoding.ids, encoding.special).tolist() == encoding.words.tolist()


def test_bytes_are_written_as_tokenizers_writes_them():
    assert set(token_text.BYTE_LEVEL) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(token_text.BYTE_LEVEL.values()) == list(range(256))
    assert decoders.ByteLevel().decode(["ĠÃ©Ċ"]).encode() == bytes(
        token_text.BYTE_LEVEL[character] for character in "ĠÃ©Ċ"
    )


# Labels


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("wordpiece", "the owl.", ["[CLS]", "the", "o", "##w", "##l", ".", "[SEP]"]),
        ("bytes", "the owl was at", ["the", "owl", "was", "at"]),
        ("bytes undecoded", "the owl was at", ["the", "owl", "was", "at"]),
        ("bytes", "🦉", ["<0xF0>", "<0x9F>", "<0xA6>", "<0x89>"]),
        ("bytes", "a  the\n", ["a", "␣", "the", "⏎"]),
        ("bytes", "a<|end|>", ["a", "<|end|>"]),
        ("pieces", "the owl", ["<s>", "the", "owl"]),
        ("pieces unsplit", "the owl", ["<s>", "the", "owl"]),
        ("pieces", "the\n3", ["<s>", "the", "⏎", "3"]),
        ("unigram", "the airport", ["the", "air", "port"]),
        ("unigram undecoded", "the airport", ["the", "air", "port"]),
        ("unigram undecoded", "the 2", ["the", "␣", "2"]),
        ("clip", "the port", ["the", "port"]),
    ],
)
def test_labels_are_what_people_read(tokenizers: dict[str, ModelTokens], name: str, text: str, expected: list[str]):
    (encoding,) = tokenizers[name].encode(text, 64, all_windows=False, offsets=False)
    assert tokenizers[name].labels(encoding.ids) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_label_is_empty(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    labels = tokens.labels(np.arange(len(tokens.tokenizer) + 2))  # two more than the vocabulary has
    assert all(label.strip() for label in labels)
    assert not any("\N{REPLACEMENT CHARACTER}" in label for label in labels)


def test_tokens_that_cannot_be_seen_have_labels_that_can():
    written = ["", "\u200b", "\x07", "▁\u200e", "a\u200db"]
    backend = Tokenizer(models.WordLevel({token: k for k, token in enumerate(["<unk>", *written])}, unk_token="<unk>"))
    labels = wrap(backend, unk_token="<unk>").labels(np.arange(6))
    assert labels[1] == "<1>"
    assert labels[2:] == ["<U+200B>", "<0x07>", "<U+200E>", "a\u200db"]


# Words in a reading


def read_text(tokens: ModelTokens, text: str) -> Reading:
    network = tiny.network("gpt2", vocab_size=len(tokens.tokenizer), max_position_embeddings=128)
    return headscope.read(load(network, tokens.tokenizer), text, length=128)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("bytes", "the cafés,🦉owl", ["the", "cafés", ",", "🦉", "owl"]),
        ("bytes", "the नमस्ते", ["the", "␣", "नमस्ते"]),
        ("pieces", "the cafés 🦉", ["<s>", "the", "cafés", "␣", "🦉"]),
        ("pieces unsplit", "É the", ["<s>", "É", "the"]),
        ("unigram", "xy airports", ["xy", "airports"]),
        ("clip", "don't port é", ["don", "'t", "port", "é"]),
    ],
)
def test_words_are_shown_as_people_read_them(
    tokenizers: dict[str, ModelTokens], name: str, text: str, expected: list[str]
):
    result = read_text(tokenizers[name], text)
    assert result.word_labels().tolist() == expected
    pairs = result.pairs(words=True)
    assert set(pairs["token_i"]) | set(pairs["token_j"]) <= set(expected)
    starts = [int(np.flatnonzero(result.tokens["word"].values == k)[0]) for k in range(len(expected))]
    assert {*pairs["index_i"], *pairs["index_j"]} <= set(starts)


def test_the_bundled_models_words(minilm: Model):
    read = headscope.read(minilm, "Two owlets, met at O'Hare.")
    assert read.tokens.values.tolist()[:5] == ["[CLS]", "two", "owl", "##ets", ","]
    assert read.word_labels().tolist() == ["[CLS]", "two", "owlets", ",", "met", "at", "o", "'", "hare", ".", "[SEP]"]
    assert read.tokens["word"].values.tolist()[:6] == [0, 1, 2, 2, 3, 4]

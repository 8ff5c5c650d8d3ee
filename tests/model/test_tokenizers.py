"""Tokenizers of every kind: sentence ends, words, labels, positions, windows, first tokens."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import headscope
from headscope.corpus.formats import Document
from headscope.corpus.windows import Window, WindowSpec
from headscope.errors import CorpusError, ModelError
from headscope.model import token_text
from headscope.model.loading import load
from headscope.model.tokenizer import ModelTokens, check_windows_are_complete
from headscope.studies.claims import CLAIMS
from headscope.studies.findings import Finding, measure_claim
from headscope.studies.result import Study
from tests.helpers import tiny
from tests.helpers.synthetic import make_random_study
from tests.helpers.tokenizing import KINDS, SLOW

FAST = [name for name in KINDS if name not in SLOW]
PLACED = [*FAST, "byt5", "canine"]
"""kinds whose tokens' positions in the text are known"""
BYTES = ("gpt2", "roberta", "qwen2", "llama3")


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, ModelTokens]:
    return {name: ModelTokens(make()) for name, make in KINDS.items()}


def cut(text: str, tokens: ModelTokens, **options: Any) -> list[Window]:
    windows = WindowSpec(**options)(Document(text, "a text"), tokens)
    assert isinstance(windows, list), windows
    return windows


# Sentence ends and commas


@pytest.mark.parametrize("name", KINDS)
def test_sentence_ends_and_commas(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    (window,) = cut("the owl saw, the cat. the air! the owl , the cat ?", tokens)
    assert tokens.labels(window.ids[window.end]) == [".", "!", "?"]
    assert tokens.labels(window.ids[window.comma]) == [",", ","]
    wordless = [label for label in tokens.labels(window.ids[window.punctuation]) if label != "␣"]
    assert wordless == [",", ".", "!", ",", "?"]
    ends = np.flatnonzero(window.end)
    assert window.sentence[ends].tolist() == [0, 1, 2]
    assert window.sentence[ends[:2] + 1].tolist() == [1, 2]


def test_bytes_can_be_sentence_ends():
    """A SentencePiece vocabulary without `.` and `,` writes them as bytes."""
    known = ["<unk>", "▁", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE({token: k for k, token in enumerate(known)}, [], byte_fallback=True))
    tokens = ModelTokens(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    (window,) = cut("a,a.a!a?a\na", tokens)
    assert tokens.names(window.ids.tolist())[1] == "<0x2C>"
    assert tokens.labels(window.ids) == ["a", ",", "a", ".", "a", "!", "a", "?", "a", "⏎", "a"]
    assert np.flatnonzero(window.end).tolist() == [3, 5, 7]
    assert np.flatnonzero(window.comma).tolist() == [1]
    assert np.flatnonzero(window.punctuation).tolist() == [1, 3, 5, 7, 9]
    assert window.sentence.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_a_full_stop_in_one_token_with_a_line_break_ends_no_sentence_of_tokens(
    tokenizers: dict[str, ModelTokens], name: str
):
    tokens, text = tokenizers[name], "the owl saw.\nThe cat left."
    (by_tokens,) = cut(text, tokens)
    (by_text,) = cut(text, tokens, sentences="text")
    labels = tokens.labels(by_tokens.ids)
    merged = labels.index(".⏎")
    assert not by_tokens.end[merged]
    assert set(by_tokens.sentence) == {0}
    assert by_text.sentence.tolist() == [int(k > merged) for k in range(len(labels))]


@pytest.mark.parametrize("name", ["gpt2", "llama3"])
def test_tokens_of_several_marks_are_no_sentence_ends(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    known = [".", "Ġ.", "...", '."', "?!", ".Ċ", "Ġ,", '",', ",Ċ"]
    backend = Tokenizer(models.WordLevel({token: k for k, token in enumerate(known)}, unk_token="."))
    backend.pre_tokenizer = tokens.tokenizer.backend_tokenizer.pre_tokenizer
    texts = ModelTokens(PreTrainedTokenizerFast(tokenizer_object=backend)).texts(np.arange(len(known)))
    assert texts == [".", ".", "...", '."', "?!", ".\n", ",", '",', ",\n"]


# Words


TEXT = "the airports, don't! café 東京 😀👍🏽 3.5"
END = ["3", ".", "5"]
EACH = ["the", "airports", ",", "don", "'", "t", "!", "café", "東京", "😀", "👍🏽", *END]
BY_LETTERS = ["the", "airports", ",", "don", "'t", "!", "café", "東京", "😀", "👍🏽", *END]
UNSPLIT = ["the", "airports", ",", "don't", "!", "café", "東京", "😀", "👍🏽", *END]
WORDS = {
    **dict.fromkeys(PLACED, EACH),
    **dict.fromkeys(BYTES, BY_LETTERS),
    # These have the piece "on't", which is never split; nllb knows no emoji.
    **dict.fromkeys(("llama", "gemma"), UNSPLIT),
    "nllb": ["the", "airports", ",", "don't", "!", "café", "東京", "😀👍🏽", *END],
    # These treat every CJK character as a word.
    "bert": ["the", "airports", ",", "don", "'", "t", "!", "café", "東", "京", "😀👍🏽", *END],
    "openai-gpt": ["the", "airports", ",", "don", "'", "t", "!", "café", "東", "京", "😀", "👍🏽", *END],
}


def find_words(tokens: ModelTokens, text: str) -> list[str]:
    """Return the words of a text as the text has them, without blanks."""
    (encoding,) = tokens.encode(text, 256, all_windows=False, offsets=True)
    assert encoding.words is not None
    assert encoding.starts is not None
    assert encoding.ends is not None
    found_words = []
    for word in range(encoding.words[-1] + 1):
        inside = np.flatnonzero((encoding.words == word) & ~encoding.special)
        if len(inside):
            found_words.append(text[encoding.starts[inside[0]] : encoding.ends[inside[-1]]].strip())
    return [word for word in found_words if word]


@pytest.mark.parametrize("name", PLACED)
def test_words(tokenizers: dict[str, ModelTokens], name: str):
    assert find_words(tokenizers[name], TEXT) == WORDS[name]


@pytest.mark.parametrize("name", PLACED)
def test_no_space_joins_words(tokenizers: dict[str, ModelTokens], name: str):
    text = "the  cat\tsaw\n\nthe owl  s\u3000cat"
    assert [word for word in find_words(tokenizers[name], text) if word.split() != [word]] == []
    assert "".join(find_words(tokenizers[name], text)) == "thecatsawtheowlscat"


@pytest.mark.parametrize("name", ["gpt2", "llama", "byt5", "canine"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("👩\u200d💻 x", ["👩\u200d💻", "x"]),
        ("👍🏽👍", ["👍🏽", "👍"]),
        ("❤\ufe0f\u200d🔥", ["❤\ufe0f\u200d🔥"]),
        ("مرحبا، عالم؟", ["مرحبا", "،", "عالم", "؟"]),
        ("東京タワー。", ["東京タワー", "。"]),
        ("e\u0301s n\u0303", ["e\u0301s", "n\u0303"]),
        ("http://a.b/c?d=e", ["http", ":", "/", "/", "a", ".", "b", "/", "c", "?", "d", "=", "e"]),
    ],
)
def test_words_in_pieces(tokenizers: dict[str, ModelTokens], name: str, text: str, expected: list[str]):
    assert find_words(tokenizers[name], text) == expected


@pytest.mark.parametrize("name", ["slow ends", "slow goes on"])
def test_words_of_slow_tokenizers(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    (encoding,) = tokens.encode("the airports, don't 3.5", 64, all_windows=False, offsets=True)
    assert encoding.words is None
    assert encoding.starts is None
    assert tokens.labels(encoding.ids) == [*("the", "air", "port", "s", ",", "d", "o", "n", "'", "t", "3", ".", "5")]
    numbers = tokens.number_words(encoding.ids, encoding.special)
    assert numbers.tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("names", "alphabet", "expected"),
    [
        (["air@@", "port@@", "s", "the"], None, [0, 0, 0, 1]),
        (["air", "@@", "port"], None, [0, 1, 2]),
        (["æĿ", "±", "äº¬"], token_text.BYTE_LEVEL, [0, 0, 0]),  # no mark of a word's start shows that these are bytes
        (["t", "h", "e", " ", "c", "Ã", "©"], token_text.RAW_BYTES, [0, 0, 0, 1, 2, 2, 2]),
        (["3", ".", "5</w>", "a</w>"], None, [0, 1, 2, 3]),
        (["caf", "Ã", "©</w>", "a</w>"], token_text.BYTE_LEVEL, [0, 0, 0, 1]),
    ],
)
def test_words_by_marks(names: list[str], alphabet: Any, expected: list[int]):
    assert token_text.number_words_by_marks(names, np.zeros(len(names), dtype=bool), alphabet).tolist() == expected


@pytest.mark.parametrize("name", ["gpt2", "roberta", "qwen2", "llama3", "clip"])
def test_marks_and_places_agree_on_bytes_without_spaces(tokenizers: dict[str, ModelTokens], name: str):
    (encoding,) = tokenizers[name].encode("東京", 64, all_windows=False, offsets=True)
    assert encoding.words is not None
    assert sum(~encoding.special) == 6
    assert tokenizers[name].number_words(encoding.ids, encoding.special).tolist() == encoding.words.tolist()
    assert len(set(encoding.words[~encoding.special])) == 1


# Labels and names


LABELS = {
    "bert": ["[CLS]", "a", "the", "東", ".", "[SEP]"],
    "gpt2": ["a", "␣", "the", "⏎", "<0xE6>", "<0x9D>", "<0xB1>", "."],
    "llama3": ["<|begin_of_text|>", "a", "␣", "the", "⏎", "<0xE6>", "<0x9D>", "<0xB1>", "."],
    "llama": ["<s>", "␣", "a", "␣", "the", "⏎", "<0xE6>", "<0x9D>", "<0xB1>", "."],
    "gemma": ["<bos>", "a", "␣", "the", "⏎", "<0xE6>", "<0x9D>", "<0xB1>", "."],
    "t5": ["␣", "a", "the", "␣", "東", ".", "</s>"],
    "mbart50": ["en_XX", "␣", "a", "the", "<unk>", "東", ".", "</s>"],
    "nllb": ["eng_Latn", "␣", "a", "␣", "the", "⏎", "<unk>", ".", "</s>"],
    "openai-gpt": ["a", "the", "<unk>", "."],
    "clip": ["<|startoftext|>", "a", "the", "<0xE6>", "<0x9D>", "<0xB1>", ".", "<|endoftext|>"],
    "byt5": ["a", "␣", "␣", "t", "h", "e", "⏎", "<0xE6>", "<0x9D>", "<0xB1>", ".", "</s>"],
    "canine": ["[CLS]", "a", "␣", "␣", "t", "h", "e", "⏎", "東", ".", "[SEP]"],
    "slow goes on": ["a", "the", "<unk>", "."],
}


@pytest.mark.parametrize("name", LABELS)
def test_labels(tokenizers: dict[str, ModelTokens], name: str):
    (encoding,) = tokenizers[name].encode("a  the\n東.", 64, all_windows=False, offsets=False)
    assert tokenizers[name].labels(encoding.ids) == LABELS[name]


def list_ids(tokens: ModelTokens) -> np.ndarray:
    """Return all ids, and two that no token has; of CANINE's million, the first thousands."""
    size = len(tokens.tokenizer)
    return np.arange(size + 2) if size < 10_000 else np.arange(0x3100)


@pytest.mark.parametrize("name", KINDS)
def test_every_label_can_be_seen_and_breaks_nothing(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    ids = list_ids(tokens)[: -2 if name in SLOW else None]
    for label in tokens.labels(ids):
        assert label.strip() == label
        assert any(token_text._is_visible(character) for character in label)
        assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in label)
        assert not set(label) & token_text.DIRECTION_CONTROLS
        assert "▁" not in label
        assert "</w>" not in label
        assert name == "canine" or not set(label) & {"Ġ", "Ċ"}  # CANINE knows them as letters


@pytest.mark.parametrize("name", KINDS)
def test_every_name_is_its_token_s_own(tokenizers: dict[str, ModelTokens], name: str):
    tokens = tokenizers[name]
    names = tokens.names(list_ids(tokens)[: -2 if name in SLOW else None].tolist())
    assert len(set(names)) == len(names)
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for token_name in names for character in token_name)
    assert all(token_name.strip() for token_name in names)


def test_names_of_what_cannot_be_seen(tokenizers: dict[str, ModelTokens]):
    for name, expected in {
        "byt5": ["a", "<0x20>", "<0xC3>", "<0xA9>", "<0x0A>", "</s>"],
        "canine": ["[CLS]", "a", "<U+0020>", "é", "<U+000A>", "[SEP]"],
    }.items():
        (encoding,) = tokenizers[name].encode("a é\n", 64, all_windows=False, offsets=False)
        assert tokenizers[name].names(encoding.ids.tolist()) == expected


@pytest.mark.parametrize(
    ("name", "alphabet", "expected"),
    [
        ("ĠthÃ©", token_text.BYTE_LEVEL, "thé"),
        ("ðŁĺ", token_text.BYTE_LEVEL, "<0xF0><0x9F><0x98>"),
        ("Ġâ", token_text.BYTE_LEVEL, "<0xE2>"),
        ("Ã©Ã", token_text.BYTE_LEVEL, "é<0xC3>"),
        ("ĠĠ", token_text.BYTE_LEVEL, "␣␣"),
        ("Ġ" * 12, token_text.BYTE_LEVEL, "␣×12"),
        ("ĠĠthe", token_text.BYTE_LEVEL, "␣the"),
        (".ĊĊ", token_text.BYTE_LEVEL, ".⏎⏎"),
        ("čĊ", token_text.BYTE_LEVEL, "␍⏎"),
        ("ĉ", token_text.BYTE_LEVEL, "⇥"),
        ("##", token_text.BYTE_LEVEL, "##"),
        ("▁a▁b", None, "a b"),
        ("▁▁▁▁", None, "␣×4"),
        ("a\u202eb", None, "a<U+202E>b"),
        ("\x1b[31m", None, "<0x1B>[31m"),
        ("\u2028", None, "<U+2028>"),
        ("\xa0", None, "<U+00A0>"),
        ("a\u200db", None, "a\u200db"),
        ("ġobon", None, "ġobon"),
        ("Ġurnata", None, "Ġurnata"),
        ("##\u0301", None, "##\u0301"),
    ],
)
def test_how_a_token_is_shown(name: str, alphabet: Any, expected: str):
    assert token_text.format_label(name, alphabet) == expected


def test_a_reading_with_a_tokenizer_of_bytes(tokenizers: dict[str, ModelTokens]):
    tokenizer = tokenizers["byt5"].tokenizer
    model = load(tiny.network("gpt2", vocab_size=len(tokenizer) + 8, max_position_embeddings=64), tokenizer)
    reading = headscope.read(model, "the café 東京.", length=64)
    assert reading.word_labels().tolist() == ["the", "␣", "café", "␣", "東京", ".", "</s>"]
    assert reading.text == "the café 東京."


# Places in the text


@pytest.mark.parametrize("name", PLACED)
def test_sentences_of_the_text(tokenizers: dict[str, ModelTokens], name: str):
    text = "Dr. Ito paid 3.5 dollars. She left the café 東京. U.S. owls saw the cat!"
    (window,) = cut(text, tokenizers[name], sentences="text")
    (encoding,) = tokenizers[name].encode(text, 128, all_windows=False, offsets=True)
    assert encoding.starts is not None
    assert encoding.ends is not None
    sentences = []
    for number in range(window.sentence[-1] + 1):
        inside = np.flatnonzero((window.sentence == number) & ~window.special)
        sentences.append(text[encoding.starts[inside].min() : encoding.ends[inside].max()].rstrip())
    assert sentences == ["Dr. Ito paid 3.5 dollars.", "She left the café 東京.", "U.S. owls saw the cat!"]


@pytest.mark.parametrize("name", ["slow ends", "slow goes on"])
def test_slow_tokenizers_know_no_places(tokenizers: dict[str, ModelTokens], name: str):
    with pytest.raises(CorpusError, match=r"does not say where its tokens start.*--sentences tokens"):
        cut("The owl saw. The cat left.", tokenizers[name], sentences="text")


def test_a_text_that_a_slow_tokenizer_changes_has_no_places(tokenizers: dict[str, ModelTokens]):
    (encoding,) = tokenizers["byt5"].encode("a </s> b", 64, all_windows=False, offsets=True)  # eats the spaces around
    assert encoding.starts is None


def test_places_of_a_cut_character(tokenizers: dict[str, ModelTokens]):
    (encoding,) = tokenizers["byt5"].encode("é東", 5, all_windows=False, offsets=True)
    assert encoding.starts is not None
    assert encoding.ends is not None
    assert encoding.starts.tolist() == [0, 0, 1, 1, 2]
    assert encoding.ends.tolist() == [1, 1, 2, 2, 2]


# Windows


AROUND = {
    "bert": (["[CLS]"], ["[SEP]"]),
    "gpt2": ([], []),
    "roberta": (["<s>"], ["</s>"]),
    "qwen2": ([], []),
    "llama3": (["<|begin_of_text|>"], []),
    "llama": (["<s>"], []),
    "gemma": (["<bos>"], []),
    "t5": ([], ["</s>"]),
    "albert": (["[CLS]"], ["[SEP]"]),
    "xlm-roberta": (["<s>"], ["</s>"]),
    "mbart": ([], ["</s>", "en_XX"]),
    "mbart50": (["en_XX"], ["</s>"]),
    "nllb": (["eng_Latn"], ["</s>"]),
    "openai-gpt": ([], []),
    "clip": (["<|startoftext|>"], ["<|endoftext|>"]),
}
"""what each window starts and ends with"""


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("mode", ["tokens", "text"])
def test_all_windows(tokenizers: dict[str, ModelTokens], name: str, mode: str):
    tokens, (first, last) = tokenizers[name], AROUND[name]
    text = "the owl saw the cat, the café. Don't stop 😀 at the airports!\n" * 9
    all_ids = tokens.tokenizer(text, add_special_tokens=False).input_ids
    length = 24
    windows = cut(text, tokens, length=length, windows="all", sentences=mode)
    step = length - len(first) - len(last)
    window_ids = []
    for window in windows:
        names = tokens.names(window.ids.tolist())
        assert names[: len(first)] == first
        assert names[len(names) - len(last) :] == last
        inside = window.ids[len(first) : len(window) - len(last)]
        assert not window.special[len(first) : len(window) - len(last)].any()
        window_ids += inside.tolist()
    assert [len(window) for window in windows[:-1]] == [length] * (len(windows) - 1)
    dropped = len(all_ids) % step if len(all_ids) % step < length / 2 else 0
    assert window_ids == all_ids[: len(all_ids) - dropped]
    assert len(windows) > 3
    assert tokens.special_count == len(first) + len(last)


@pytest.mark.parametrize("name", SLOW)
def test_slow_tokenizers_have_no_windows_but_the_first(tokenizers: dict[str, ModelTokens], name: str):
    with pytest.raises(ModelError, match=r"slow tokenizer.*--windows first"):
        cut("the owl saw the cat", tokenizers[name], windows="all")


@pytest.mark.parametrize("name", ["gpt2", "llama3", "llama", "openai-gpt"])
def test_no_padding_token_is_needed(tokenizers: dict[str, ModelTokens], name: str):
    tokenizer = tokenizers[name].tokenizer
    assert tokenizer.pad_token_id is None
    model = load(tiny.network("gpt2", vocab_size=len(tokenizer), max_position_embeddings=64), tokenizer)
    texts = ["the owl saw the cat.", "the cat saw the owl, the owls, the airports and the port."]
    together = headscope.study(model, texts, length=32, batch_size=2)
    apart = headscope.study(model, texts, length=32, batch_size=1)
    np.testing.assert_array_equal(together.data["pairs"], apart.data["pairs"])
    np.testing.assert_allclose(together.data["attention_received"], apart.data["attention_received"], rtol=1e-5)


# Folders


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("slow")])
def test_a_tokenizer_from_a_folder_is_the_same(tokenizers: dict[str, ModelTokens], name: str, tmp_path: Path):
    KINDS[name]().save_pretrained(tmp_path)
    here, there = tokenizers[name], ModelTokens(AutoTokenizer.from_pretrained(tmp_path))
    expected, actual = (tokens.encode(TEXT, 64, all_windows=False, offsets=True)[0] for tokens in (here, there))
    assert expected.ids.tolist() == actual.ids.tolist()
    assert expected.words is not None
    assert actual.words is not None
    assert expected.words.tolist() == actual.words.tolist()
    assert here.labels(expected.ids) == there.labels(actual.ids)
    assert (here.find_first_special(), here.describe_first_special()) == (
        there.find_first_special(),
        there.describe_first_special(),
    )


# What stands first, in words


ROLES = {
    "bert": ("[CLS]", "the classification token"),
    "albert": ("[CLS]", "the classification token"),
    "canine": ("[CLS]", "the classification token"),
    "roberta": ("<s>", "the start-of-text token"),
    "xlm-roberta": ("<s>", "the start-of-text token"),
    "llama": ("<s>", "the start-of-text token"),
    "llama3": ("<|begin_of_text|>", "the start-of-text token"),
    "gemma": ("<bos>", "the start-of-text token"),
    "clip": ("<|startoftext|>", "the start-of-text token"),
    "mbart50": ("en_XX", "the language code"),
    "nllb": ("eng_Latn", "the language code"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_stands_first(tokenizers: dict[str, ModelTokens], name: str):
    assert (tokenizers[name].find_first_special() or "", tokenizers[name].describe_first_special()) == ROLES.get(
        name, ("", "")
    )


def test_roles_of_other_special_tokens(tokenizers: dict[str, ModelTokens]):
    bert = tokenizers["bert"]
    named = {
        token: bert.describe_role(bert.tokenizer.convert_tokens_to_ids(token)) for token in ("[SEP]", "[PAD]", "[MASK]")
    }
    assert named == {"[SEP]": "the separator token", "[PAD]": "the padding token", "[MASK]": "the mask token"}
    t5 = tokenizers["t5"]
    assert t5.describe_role(t5.tokenizer.eos_token_id) == "the end-of-text token"
    assert t5.describe_role(t5.tokenizer.convert_tokens_to_ids("<extra_id_0>")) == "a special token"
    mbart = tokenizers["mbart"]
    assert mbart.describe_role(mbart.tokenizer.convert_tokens_to_ids("ro_RO")) == "the language code"


def get_finding(study: Study, number: int) -> Finding:
    return measure_claim(CLAIMS[number - 1], study)


@pytest.fixture(scope="module")
def study() -> Study:
    return make_random_study(0, layers=4, heads=3, texts=60)


def test_finding_2_names_the_first_token(study: Study):
    without_role = get_finding(study, 2)  # a study from before roles were recorded
    assert without_role.explanation.startswith("t1 is the most attended token in ")
    with_role = get_finding(Study(study.data.assign_attrs(first_token_role="the start-of-text token")), 2)
    assert with_role.explanation == without_role.explanation.replace("t1 is", "t1, the start-of-text token, is")
    assert (with_role.value, with_role.details["role"]) == (without_role.value, "the start-of-text token")


def test_finding_2_without_a_special_token_tells_what_the_first_token_receives(study: Study):
    data = study.data.copy(deep=True)
    shares = data["attention_received_share"]
    shares[:] = 0.1
    shares.loc[{"receiver": "first token"}] = [0.25, 0.4, 0.7, 0.5]
    data["attention_spread"][:] = 1
    data["attention_spread"].loc[{"receiver": "first token"}] = 2  # of 8
    finding = get_finding(Study(data.assign_attrs(first_special_token="")), 2)
    assert finding.verdict == "not measurable"
    assert finding.value is None
    assert "no special token first" in finding.explanation
    assert "What stands first in a text, whatever it is, receives " in finding.explanation
    assert "of the attention, spread evenly 25.0 %, in layer 0; most in layer 2: 70.0 %" in finding.explanation


@pytest.mark.parametrize("name", [".", "Ġ.", "▁.", ".</w>", "<0x2E>", ",", "Ġ,", "▁,", ",</w>", "<0x2C>"])
def test_finding_3_knows_separators_however_they_are_written(study: Study, name: str):
    data = study.data.copy(deep=True)
    data = data.assign_coords(token=[name if token == "t4" else token for token in data["token"].values])
    sums = data["most_attended_blocks"]
    sums[:, 3] = 0
    sums.loc[{"token": name, "layer": 3}] = data["texts_blocks"]
    finding = get_finding(Study(data.assign(most_attended=sums.sum("block"))), 3)
    assert finding.value == 1.0


@pytest.mark.parametrize("name", ["..", '."', ".⏎", "t.", "##."])
def test_finding_3_takes_nothing_else_for_one(study: Study, name: str):
    data = study.data.copy(deep=True)
    data = data.assign_coords(token=[name if token == "t4" else token for token in data["token"].values])
    sums = data["most_attended_blocks"]
    sums[:, 3] = 0
    sums.loc[{"token": name, "layer": 3}] = data["texts_blocks"]
    assert get_finding(Study(data.assign(most_attended=sums.sum("block"))), 3).value == 0


def test_a_study_says_what_stands_first(tokenizers: dict[str, ModelTokens]):
    for name, (token, role) in {"llama": ROLES["llama"], "gpt2": ("", "")}.items():
        tokenizer = tokenizers[name].tokenizer
        model = load(tiny.network("gpt2", vocab_size=len(tokenizer), max_position_embeddings=64), tokenizer)
        result = headscope.study(model, ["the owl saw the cat.", "the cat saw, the owl."], length=32)
        assert (result.manifest["first_special_token"], result.manifest["first_token_role"]) == (token, role)
        finding = get_finding(result, 2)
        if token:
            assert "<s>, the start-of-text token, is the most attended token in " in finding.explanation
        else:
            assert finding.verdict == "not measurable"
            assert "What stands first in a text, whatever it is, receives " in finding.explanation


def test_a_version_of_tokenizers_that_loses_windows_is_refused(monkeypatch: pytest.MonkeyPatch):
    import tokenizers

    class Lossy:
        def __init__(self, model: object) -> None: ...

        def enable_truncation(self, length: int) -> None: ...

        def encode(self, text: str) -> SimpleNamespace:
            return SimpleNamespace(overflowing=[])

    tokens = ModelTokens(tiny.tokenizer())
    check_windows_are_complete.cache_clear()
    monkeypatch.setattr(tokenizers, "Tokenizer", Lossy)
    with pytest.raises(ModelError, match="returns only the first window of a text"):
        tokens.encode("a b c", 4, all_windows=True, offsets=False)
    with pytest.raises(ModelError, match="returns only the first window of a text"):
        tokens.encode_all(["a b c"], 4, all_windows=True, offsets=False)
    assert len(tokens.encode("a b c", 4, all_windows=False, offsets=False)) == 1

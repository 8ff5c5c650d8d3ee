"""Segmentations by models: planted subjects are found, segments cover the text, and errors are reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import headscope
from headscope import Reading, Segmentation
from headscope.errors import CorpusError, ModelError, ReadingError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from headscope.segmentation import topic
from headscope.segmentation import topic as backgrounds
from headscope.segmentation.fine import cut_reading, select_last_layers
from headscope.segmentation.pieces import compute_head_means
from headscope.segmentation.result import Segment, list_votes
from headscope.segmentation.segment import segment
from tests.helpers import tiny
from tests.helpers.subjects import BANK, COOK, RAIN, TEXT
from tests.helpers.tokenizing import KINDS

pytestmark = pytest.mark.usefixtures("shared_cache")

TINY = "The owl sat, the cat ran. A dog hid! The sun set? The moon rose, the day was done. The end came"


@pytest.fixture
def few_bundled_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Measure backgrounds with few sentences, for models with random weights, in an empty cache."""
    texts, sources = backgrounds.load_bundled_sentences()
    monkeypatch.setattr(backgrounds, "load_bundled_sentences", lambda: (texts[:30], sources[:30]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def example(minilm: Model) -> Segmentation:
    return segment(minilm, TEXT)


def assert_covers(segmentation: Segmentation, text: str) -> None:
    parts = list(segmentation)
    assert [part.number for part in parts] == list(range(len(segmentation)))
    assert all(part.text == text[part.start : part.end] for part in parts)
    assert all(part.text for part in parts)
    assert all(a.end == b.start and a.first + a.pieces == b.first for a, b in pairwise(parts))
    assert segmentation.strengths.shape == (len(segmentation.edges) - 2,)
    assert segmentation.cells[-1] == len(segmentation.edges) - 1
    assert segmentation.similarity.shape == 2 * (len(segmentation.cells) - 1,)
    assert sum(vote.weight for vote in segmentation.heads) == pytest.approx(1)
    assert segmentation.text == text
    assert "".join(part.text for part in parts) == text


# Subjects


def test_planted_subjects_are_found(example: Segmentation):
    assert [part.text for part in example] == [RAIN, BANK, COOK]
    assert_covers(example, TEXT)
    assert example.boundaries.tolist() == [6, 11]
    assert [part.pieces for part in example] == [6, 5, 6]
    assert example.segments[0].strength is None
    gaps = np.arange(1, 17)
    there = np.isin(gaps, example.boundaries)
    assert (example.strengths[there] >= 1).all()
    assert (example.strengths[~there] <= 1 + 1e-9).all()
    assert example.segments[1].strength == example.strengths[5]


def test_planted_subjects_in_another_order(minilm: Model):
    assert [part.text for part in segment(minilm, BANK + COOK + " " + RAIN)] == [BANK, COOK + " ", RAIN]
    assert len(segment(minilm, RAIN)) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 17, np.int64(3)])
def test_a_count_is_honoured(minilm: Model, example: Segmentation, count: int):
    segmentation = segment(minilm, TEXT, count=count)
    assert len(segmentation) == len(segmentation.segments) == count
    assert_covers(segmentation, TEXT)
    if count == 3:
        assert segmentation.boundaries.tolist() == example.boundaries.tolist()
    assert json.loads(segmentation.to_json())["manifest"]["count"] == count


def test_granularity(minilm: Model):
    counts = [len(segment(minilm, TEXT, granularity=g)) for g in (0.01, 0.2, 1, np.float32(2), 100)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[2] == 3
    half, full = (segment(minilm, TEXT, count=3, granularity=g).strengths for g in (0.5, 1))
    np.testing.assert_allclose(half, full / 2)
    assert json.loads(segment(minilm, TEXT, granularity=np.float32(2)).to_json())["manifest"]["granularity"] == 2


def test_a_list_of_sentences_is_cut_where_its_text_is(minilm: Model, example: Segmentation):
    sentences = [TEXT[a:b].strip() for a, b in pairwise(example.edges)]
    for listed_sentences in (sentences, tuple(sentences)):
        from_list = segment(minilm, listed_sentences)
        assert from_list.boundaries.tolist() == example.boundaries.tolist()
        assert from_list.edges.tolist() == example.edges.tolist()
        assert_covers(from_list, " ".join(sentences))
    np.testing.assert_allclose(from_list.strengths, example.strengths, atol=1e-4)


def test_twice_the_same(minilm: Model, example: Segmentation):
    again = segment(minilm, TEXT)
    assert {**again.as_dict(), "manifest": 0} == {**example.as_dict(), "manifest": 0}
    assert (again.similarity == example.similarity).all()


def test_headings_go_with_what_they_announce(minilm: Model):
    text = f"Weather\n\n{RAIN}\n\n2.\n\n{BANK}\n\nLasagne\n\n{COOK}\n"
    segmentation = segment(minilm, text)
    assert [part.text.split()[0] for part in segmentation] == ["Weather", "2.", "Lasagne"]
    assert_covers(segmentation, text)
    assert np.isnan(segmentation.strengths).sum() == segmentation.manifest["sentences_joined"] == 3
    assert segmentation.as_dict()["strengths"][0] is None
    with pytest.raises(StudyError, match="18 segments are asked for, and the text has 17 sentences"):
        segment(minilm, text, count=18)


ODD = {
    "windows line ends": TEXT.replace(". ", ".\r\n"),
    "tabs and blank lines": "\t\n\n  " + TEXT.replace(". ", ".\t \n\n\n\n", 8) + "\n\n \t",
    "emoji": TEXT.replace("rain", "🌧️").replace(". ", ". 😀 "),
    "arabic": "هطل المطر طوال اليوم. " * 3 + BANK + "رفع البنك أسعار الفائدة مرة أخرى. ",
    "half a character": RAIN + "The caf\ud800 was closed. \udfff " + BANK,
    "null bytes": "\x00" + RAIN.replace(". ", ".\x00 ") + BANK,
    "languages": RAIN
    + "Die Bank erhöhte die Zinsen. Les actions ont chuté hier. 今天下雨了。株価が下がりました。 "
    + COOK,
    "one sentence": "Rain fell on the hills.",
    "one word": "Hello",
    "one letter": "a",
    "no punctuation": RAIN.replace(".", ""),
    "many empty paragraphs": "\n\n\n\n".join(["", "", RAIN, "", BANK, "", ""]),
    "list": "- rain\n- wind\n\n* bank\n* loan\n\n1. butter\n2. onions\n",
    "fragments": "1. 2. A. B. ) ] x",
    "one unknown thing": "\u0378\u0379",
}


@pytest.mark.parametrize("level", ["topic", "fine"])
@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_segments_cover_the_text(minilm: Model, text: str, level: Any):
    segmentation = segment(minilm, text, level=level)
    assert_covers(segmentation, text)
    assert (np.diff(segmentation.edges) > 0).all()
    content = json.loads(segmentation.to_json())
    assert "".join(part["text"] for part in content["segments"]) == text
    assert all(part["text"] == text[part["start"] : part["end"]] for part in content["segments"])
    assert content["characters"] == len(text)
    assert content["edges"] == segmentation.edges.tolist()


def test_a_text_longer_than_a_sentence_may_be(minilm: Model):
    text = "word and others " * 300
    segmentation = segment(minilm, text)
    assert_covers(segmentation, text)
    assert len(segmentation.edges) - 1 == 3


# Output formats


def test_sentences_that_are_read_in_part_are_counted(minilm: Model, example: Segmentation):
    long = "The rain fell " + "and fell " * 130 + "on the hills. "
    assert 256 < minilm.tokens.count(long) < 300
    segmentation = segment(minilm, TEXT + long + TEXT)
    assert segmentation.leaves_out
    assert segmentation.manifest["sentences_read_in_part"] == 1
    assert repr(segmentation).endswith("sentences, 1 of them read in part>")
    assert not example.leaves_out
    assert example.manifest["sentences_read_in_part"] == 0
    just = "The rain fell " + "and fell " * 122 + "on hills. "
    assert minilm.tokens.count(just) == 256 - 4
    assert not segment(minilm, TEXT + just).leaves_out


def test_plain_text_json_and_names(minilm: Model, example: Segmentation):
    assert example.to_text() == f"{RAIN.strip()}\n==========\n{BANK.strip()}\n==========\n{COOK}\n"
    assert example.to_text("--").count("\n--\n") == 2
    assert repr(example) == "<Segmentation, topic: 3 segments of 17 sentences>"
    assert repr(segment(minilm, "Rain fell.", level="topic")) == "<Segmentation, topic: 1 segment of 1 sentence>"
    content = example.as_dict()
    assert (content["level"], content["pieces"], example.piece_name, len(example)) == ("topic", 17, "sentence", 3)
    assert content["segments"][1]["first_piece"] == 6
    assert content["heads"][0]["head"] == example.heads[0].name
    manifest = example.manifest
    assert (manifest["model"], manifest["level"]) == ("minilm", "topic")
    assert (manifest["count"], manifest["granularity"]) == ("found", 1.0)
    assert manifest["sentences_joined"] == 0
    assert manifest["weight_hash"] == minilm.weight_hash
    assert isinstance(next(iter(example)), Segment)


def test_head_votes(minilm: Model, example: Segmentation):
    votes = example.heads
    assert 1 <= len(votes) <= 72
    assert all(vote.weight > 0 and 0 <= vote.layer < 6 and 0 <= vote.head < 12 for vote in votes)
    assert [vote.weight for vote in votes] == sorted((vote.weight for vote in votes), reverse=True)
    assert len({vote.name for vote in votes}) == len(votes)


def test_votes_name_layers_as_the_model_counts_them():
    """Only two of a hybrid's four layers have attention."""
    votes = list_votes(np.arange(8) / 28, np.arange(8.0), tiny.model("jamba").architecture.list_heads())
    assert [(vote.layer, vote.head) for vote in votes] == [(3, 3), (3, 2), (3, 1), (3, 0), (1, 3), (1, 2), (1, 1)]
    assert [vote.contrast for vote in votes] == [7, 6, 5, 4, 3, 2, 1]
    segmentation = segment(tiny.model("jamba"), TEXT, count=3)
    assert {vote.layer for vote in segmentation.heads} <= {1, 3}


def test_the_map_is_the_mean_similarity(monkeypatch: pytest.MonkeyPatch, example: Segmentation):
    assert example.similarity.shape == (17, 17)
    np.testing.assert_allclose(np.diag(example.similarity), 1, atol=1e-5)
    inside = example.similarity[:6, :6].mean()
    assert inside > example.similarity[:6, 6:11].mean() + 0.1
    vectors = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
    starts = np.array([0, 1, 3, 4, 5, 6, 7, 9, 10, 11, 12])
    monkeypatch.setattr(topic, "CELLS", 4)
    similarity, cells = topic.compute_overview(vectors, starts, 14)
    all_similarities = vectors @ vectors.T
    parts = [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11)]
    np.testing.assert_allclose(similarity, [[all_similarities[a, b].mean() for b in parts] for a in parts], rtol=1e-5)
    assert cells.tolist() == [0, 4, 7, 11, 14]


def test_progress_is_shown_on_stderr(
    minilm: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], few_bundled_texts: None
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # stderr is a terminal
    segment(minilm, TEXT, progress=True)
    output = capsys.readouterr()
    assert "reading: " in output.err  # the last step stays until the end
    assert output.out == ""


def test_progress_is_reported(minilm: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, few_bundled_texts: None):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    calls: list[tuple[str, int, int]] = []
    segment(minilm, TEXT, progress=lambda *call: calls.append(call))
    learning, reading = ([call for call in calls if call[0].startswith(word)] for word in ("learning", "reading"))
    assert learning[-1][1] == 30
    assert reading[-1][1:] == (17, 17)
    assert [call[1] for call in reading] == sorted(call[1] for call in reading)
    calls.clear()
    segment(minilm, TEXT, progress=lambda *call: calls.append(call))
    assert {call[0] for call in calls} == {"reading"}  # the background is cached


# Vectors


def list_texts() -> list[str]:
    return ["the owl sat.", "a", "the cat ran from the dog, and the dog ran from the cat", "the moon rose!"]


@pytest.mark.parametrize("kind", ["minilm", "bert", "llama", "t5", "openai-gpt"])
def test_a_piece_is_read_by_itself(minilm: Model, kind: str):
    model = minilm if kind == "minilm" else tiny.model(kind)
    together = compute_head_means(model, list_texts())
    for k, text in enumerate(list_texts()):
        np.testing.assert_allclose(together[k], compute_head_means(model, [text])[0], atol=1e-5, rtol=1e-4)
    turned = compute_head_means(model, list_texts()[::-1])
    np.testing.assert_allclose(turned[::-1], together, atol=1e-5, rtol=1e-4)
    assert together.shape[:2] == (4, model.architecture.heads * len(model.architecture.numbers))


def test_vectors_are_means_of_outputs_without_special_tokens():
    model = tiny.model("bert")
    reading = headscope.read(model, "the owl sat.", length=40)
    words = ~reading.data["special"].values.astype(bool)
    expected = reading.outputs.values[:, words].mean(axis=1).reshape(-1, 8)
    np.testing.assert_allclose(compute_head_means(model, ["the owl sat."])[0], expected, atol=1e-5)


def test_pieces_without_tokens(minilm: Model):
    means = compute_head_means(minilm, ["", "Rain fell.", "\x00"])
    assert means[0].tolist() == means[2].tolist() == np.zeros_like(means[0]).tolist()
    assert np.abs(means[1]).max() > 0
    assert compute_head_means(minilm, ["", "\x00"]).size == 0


def test_read_pieces_are_reported(minilm: Model):
    counts: list[int] = []
    compute_head_means(minilm, list_texts(), counts.append)
    assert sum(counts) == 4


# Other models


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "t5", "bart", "qwen3_next", "deepseek_v3", "openai-gpt"])
def test_families(few_bundled_texts: None, kind: str):
    model = tiny.model(kind)
    for level in ("topic", "fine"):
        segmentation = segment(model, TINY, level=level, length=40)
        assert_covers(segmentation, TINY)
        assert {vote.layer for vote in segmentation.heads} <= set(model.architecture.numbers)
        assert {vote.head for vote in segmentation.heads} <= set(range(tiny.HEADS))
    assert segmentation.manifest["stack"] == next(iter(tiny.FAMILIES[kind].stacks))
    assert len(segment(model, TINY, count=3)) == 3


@pytest.mark.parametrize("kind", ["bert", "gpt2", "roberta", "qwen2", "llama3", "llama", "gemma", "t5", "byt5"])
def test_tokenizers(few_bundled_texts: None, kind: str):
    tokenizer = KINDS[kind]()
    model = load(tiny.network("t5" if kind in ("t5", "byt5") else "bert", vocab_size=600), tokenizer)
    text = "\nThe owl saw the cat, the cat saw 3.5 owls.\n\nThe port was open! Did it close?  It did. \n "
    for level, length in (("topic", 40), ("fine", 40), ("fine", 16)):
        segmentation = segment(model, text, level=level, length=length)
        assert_covers(segmentation, text)
        assert (np.diff(segmentation.edges) > 0).all()


def test_a_vision_model_is_refused_by_name():
    model = tiny.vision_model()
    with pytest.raises(StudyError, match="ViTModel reads images: choose a model of texts"):
        segment(model, TEXT)
    with pytest.raises(ModelError, match="ViTModel reads images"):
        compute_head_means(model, [TEXT])


def test_a_model_given_by_name(minilm: Model, example: Segmentation, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    monkeypatch.setattr("headscope.model.loading.load", lambda name, **options: loaded.append(name) or minilm)
    assert headscope.segment("minilm", TEXT).boundaries.tolist() == example.boundaries.tolist()
    assert loaded == ["minilm"]


# Errors


@pytest.mark.parametrize("level", ["topic", "fine"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text is empty: there is nothing to cut"),
        (" \n\t ", "the text is empty"),
        ([], "the text is empty"),
        (["", " "], "the text is empty"),
        ("article.txt", "the name of a file, 'article.txt': give what is in it"),
        (None, "the text is a NoneType: give it as a string, or as a list of sentences"),
        (b"Rain fell.", "the text is a bytes"),
        (bytearray(b"Rain"), "the text is a bytearray"),
        (7, "the text is a int"),
        ({"Rain fell."}, "the text is a set"),
        (["Rain fell.", 3], "sentence 1 is a int: sentences are strings"),
        ([None], "sentence 0 is a NoneType"),
    ],
)
def test_what_is_no_text(minilm: Model, level: Any, text: Any, words: str):
    with pytest.raises(CorpusError, match=words):
        segment(minilm, text, level=level)


def test_a_text_without_tokens(minilm: Model):
    with pytest.raises(CorpusError, match=r"has no token that .* knows: there is nothing to cut"):
        segment(minilm, "\x00\x00")
    with pytest.raises(ReadingError, match="only special tokens"):
        segment(minilm, "\x00\x00", level="fine")


@pytest.mark.parametrize("count", [0, -1, 2.0, "3", True, [3]])
def test_a_count_that_is_none(minilm: Model, count: Any):
    with pytest.raises(StudyError, match="it is the number of segments wanted, 1 or more"):
        segment(minilm, TEXT, count=count)


@pytest.mark.parametrize("granularity", [0, -1, np.nan, np.inf, 0.001, 101, "much", None, [1, 2]])
def test_a_granularity_that_is_none(minilm: Model, granularity: Any):
    with pytest.raises(StudyError, match=r"it is a number from 0\.01 to 100; 1 is the default"):
        segment(minilm, TEXT, granularity=granularity)


def test_questions_are_checked_before_a_model_is_loaded():
    with pytest.raises(StudyError, match="level 'coarse': there are topic and fine"):
        segment("no/such/model", TEXT, level="coarse")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="count is 0"):
        segment("no/such/model", TEXT, count=0)
    with pytest.raises(CorpusError, match="empty"):
        segment("no/such/model", "")


def test_more_segments_than_sentences(minilm: Model):
    with pytest.raises(StudyError, match=r"18 segments are asked for, and the text has 17 sentences .*ask for fewer"):
        segment(minilm, TEXT, count=18)
    with pytest.raises(StudyError, match="2 segments are asked for, and the text has 1 sentence to"):
        segment(minilm, "Rain fell.", count=2)


# Fine


FINE = (
    "Rain fell on the hills, and clouds hid the sun; the storm brought 3.5 inches of rain. Banks (all of them) failed!"
)


def list_blocks(segmentation: Segmentation) -> list[str]:
    return [segmentation.text[a:b] for a, b in pairwise(segmentation.edges)]


def test_blocks_end_at_separators(minilm: Model):
    segmentation = segment(minilm, FINE, level="fine", tau=0.001)
    assert_covers(segmentation, FINE)
    assert list_blocks(segmentation) == [
        "Rain fell on the hills, ",
        "and clouds hid the sun; ",
        "the storm brought 3.5 inches of rain. ",
        "Banks (all of them) ",
        "failed!",
    ]
    fewer = segment(minilm, FINE, level="fine", tau=0.95)
    assert 1 <= len(list_blocks(fewer)) < 5
    assert set(fewer.edges) < set(segmentation.edges)
    assert (segmentation.manifest["windows"], segmentation.manifest["tau"]) == (1, 0.001)
    assert repr(segmentation).endswith("of 5 blocks>")
    np.testing.assert_allclose(np.diag(segmentation.similarity), 1, atol=1e-5)


def test_fine_asks_the_last_layers(minilm: Model):
    reading = headscope.read(minilm, FINE)
    assert select_last_layers(reading) == [4, 5]
    assert select_last_layers(reading.select(layers=[0, 3])) == [3]
    assert {vote.layer for vote in segment(minilm, FINE, level="fine").heads} == {4, 5}
    assert {vote.layer for vote in cut_reading(reading.select(layers=[1], heads=[3, 7])).heads} == {1}
    assert {vote.head for vote in cut_reading(reading.select(layers=[1], heads=[3, 7])).heads} == {3, 7}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_count_in_one_window(minilm: Model, count: int):
    segmentation = segment(minilm, FINE, level="fine", tau=0.001, count=count)
    assert len(segmentation) == count
    assert_covers(segmentation, FINE)


def test_fine_over_several_windows(minilm: Model):
    segmentation = segment(minilm, TEXT, level="fine", length=40)
    windows = segmentation.manifest["windows"]
    assert windows > 3
    assert_covers(segmentation, TEXT)
    assert np.isnan(segmentation.strengths).sum() == windows - 1
    # A window ends where a sentence does, and a segment with it.
    ends = [segmentation.edges[k] for k in np.flatnonzero(np.isnan(segmentation.strengths)) + 1]
    assert all(TEXT[:end].endswith(". ") for end in ends)
    assert set(np.flatnonzero(np.isnan(segmentation.strengths)) + 1) <= set(segmentation.boundaries.tolist())
    assert all(minilm.tokens.count(TEXT[a:b]) <= 40 for a, b in pairwise([0, *ends, len(TEXT)]))
    # Blocks of different windows were not compared; those of one were.
    first = int(np.flatnonzero(np.isnan(segmentation.strengths))[0]) + 1
    assert np.isnan(segmentation.similarity[:first, first:]).all()
    assert np.isfinite(segmentation.similarity[:first, :first]).all()
    json.loads(segmentation.to_json())
    with pytest.raises(StudyError, match=rf"takes {windows} windows of 40 tokens.*a count is for"):
        segment(minilm, TEXT, level="fine", length=40, count=4)


def test_sentences_longer_than_a_window(minilm: Model):
    text = "rain and wind and snow " * 12 + "ended. " + "x" * 90 + " was said."
    segmentation = segment(minilm, text, level="fine", length=16)
    assert_covers(segmentation, text)
    ends = segmentation.edges[np.flatnonzero(np.isnan(segmentation.strengths)) + 1]
    assert all(minilm.tokens.count(text[a:b]) <= 16 for a, b in pairwise([0, *ends, len(text)]))


def test_without_separators_blocks_end_with_words(minilm: Model):
    text = "rain fell on the unforgettable hills and windows"
    segmentation = segment(minilm, text, level="fine", tau=0.001)
    assert list_blocks(segmentation) == [*(f"{word} " for word in text.split()[:-1]), "windows"]


def test_fine_is_the_same_twice(minilm: Model):
    a, b = (segment(minilm, FINE, level="fine").as_dict() for _ in range(2))
    assert {**a, "manifest": 0} == {**b, "manifest": 0}


def test_a_list_is_cut_finely_too(minilm: Model):
    sentences: Sequence[str] = ["Rain fell on the hills.", "Banks failed, all of them."]
    segmentation = segment(minilm, sentences, level="fine")
    assert_covers(segmentation, " ".join(sentences))


def test_readings_that_have_no_lines():
    reading = Reading.from_arrays(["a", ".", "b"], np.random.default_rng(0).normal(size=(1, 3, 2, 4)))
    with pytest.raises(ReadingError, match="no attention lines to cut at"):
        cut_reading(reading)
    cross = load(tiny.network("bart"), tiny.tokenizer(), stack="cross")
    with pytest.raises(ReadingError, match="no attention lines to cut at"):
        segment(cross, TINY, level="fine", length=40)


def test_windows_the_model_cannot_read(minilm: Model):
    for length, words in ((0, "at least 3"), (600, "512")):
        with pytest.raises(StudyError, match=words):
            segment(minilm, FINE, level="fine", length=length)
    with pytest.raises(StudyError, match="tau"):
        segment(minilm, FINE, level="fine", tau=2.0)


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "llama3"])
def test_a_separator_before_a_line_break(kind: str):
    model = load(tiny.network("llama", vocab_size=600), KINDS[kind]())
    text = "The owl saw the cat.\n\nThe airport was closed. The port was open."
    assert 22 in segment(model, text, level="fine", length=48, tau=0.001).edges

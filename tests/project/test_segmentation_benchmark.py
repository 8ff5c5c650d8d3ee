"""The segmentation benchmark: it segments like `headscope.segment`, and its measurements are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import headscope
from headscope import Model

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import segmentation  # noqa: E402
from measuring import embeddings, segmenters  # noqa: E402

TOPICS = [
    [
        "Rain fell on the hills all night .",
        "Clouds hid the sun and the wind grew cold .",
        "The storm brought thunder and heavy rain .",
    ],
    ["1 .", "The bank raised its interest rates again .", "Loans became expensive .", "Investors sold their bonds ."],
    ["The violin was built in Cremona .", "Its strings are made of gut .", "The orchestra tunes to the oboe ."],
]


@pytest.fixture(scope="module")
def ways(minilm: Model) -> segmenters.Ways:
    model_ways = segmenters.Ways.of(minilm)
    model_ways.read([[sentence for topic in TOPICS for sentence in topic]])
    return model_ways


def test_heads_cut_as_the_library_does(ways: segmenters.Ways):
    text = segmentation.Text.of(TOPICS)
    assert text.boundaries == [3, 7]
    for count in (None, 1, 2, 3, 5):
        expected = headscope.segment(ways.model, text.sentences, count=count)
        assert ways.by_heads(text.sentences, count) == expected.boundaries.tolist()
    assert ways.by_heads(text.sentences, None) == text.boundaries


def test_embeddings_are_means_of_the_last_hidden_states(ways: segmenters.Ways):
    (alone,) = embeddings.embeddings(ways.model, ["Loans became expensive ."])
    beside = embeddings.embeddings(
        ways.model, ["Loans became expensive .", "A much longer sentence stands beside it ."]
    )
    assert np.allclose(alone, beside[0], atol=1e-5)
    assert not np.allclose(beside[0], beside[1], atol=0.1)


def test_plain_embeddings_have_the_optimum_of_k_means(ways: segmenters.Ways):
    sentences = segmentation.Text.of(TOPICS).sentences
    vectors = embeddings.unit(np.stack([ways.embedded[sentence] for sentence in sentences]))

    def sum_squares(boundaries: list[int]) -> float:
        parts = np.split(vectors, boundaries)
        return sum(float(((part - part.mean(axis=0)) ** 2).sum()) for part in parts)

    n = len(sentences)
    options = [[a, b] for a in range(1, n) for b in range(a + 1, n)]
    assert ways.by_plain_embeddings(sentences, 3) == min(options, key=sum_squares)


def test_documents_of_other_numbers_of_segments():
    documents = [[[f"{d} {k} {i}" for i in range(k % 3 + 2)] for k in range(10)] for d in range(4)]
    four, twenty = segmentation.texts_of(documents, 4), segmentation.texts_of(documents, 20)
    assert {text.count for text in four} == {4}
    assert {text.count for text in twenty} == {20}
    assert four[0].sentences[0] == "0 0 0"
    assert twenty[1].sentences[0] == "2 0 0"
    assert len(twenty) == 2
    for text in (*four, *twenty):
        starts = [text.sentences[b] for b in text.boundaries]
        assert all(start.endswith(" 0") for start in starts)


def test_documents_are_joined_of_other_texts(tmp_path: Path):
    source = tmp_path / "texts.jsonl"
    texts = [{"text": " ".join(f"Text number {t} says thing {k}." for k in range(14))} for t in range(12)]
    short = {"text": "Too short. It is."}
    source.write_text("\n".join(json.dumps(text) for text in [*texts, short]), encoding="utf-8")
    documents = segmentation.joined(str(source), 3)
    assert documents == segmentation.joined(str(source), 3)
    assert [len(document) for document in documents] == [10] * 3
    for document in documents:
        assert all(3 <= len(part) <= 11 for part in document)
        sources = [{sentence.split()[2] for sentence in part} for part in document]
        assert all(len(numbers) == 1 for numbers in sources)
        assert len(set.union(*sources)) == 10
        for part in document:
            things = [int(sentence.rstrip(".").split()[-1]) for sentence in part]
            assert things == list(range(things[0], things[0] + len(part)))


def test_the_table_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "own.jsonl"
    lines = [{"segments": [*TOPICS, *TOPICS[::-1], *TOPICS, TOPICS[1]]} for _ in range(2)]
    file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    path = tmp_path / "made.json"
    monkeypatch.setattr(sys, "argv", ["x", str(file), "--segments", "10", "--json", str(path)])
    segmentation.main()
    shown = capsys.readouterr().out
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["documents"] == {"10": 2}
    for name in (*results["classics"], "minilm: heads", "minilm: embeddings, our cutter"):
        assert name in shown
    scores = results["models"]["minilm"]["heads"]["10"]
    assert 0 <= scores["known"]["pk"] < 25
    assert scores["known"]["pk"] <= results["classics"]["random"]["10"]["known"]["pk"]
    assert "unknown" not in results["models"]["minilm"]["embeddings, k-means"]["10"]


def test_without_documents_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(segmentation, "FILE", tmp_path / "none.jsonl.gz")
    monkeypatch.setattr(sys, "argv", ["x"])
    segmentation.main()
    assert "skipped" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "absent.jsonl")])
    with pytest.raises(SystemExit):
        segmentation.main()
    assert "is not there" in capsys.readouterr().err

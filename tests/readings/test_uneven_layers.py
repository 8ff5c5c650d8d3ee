"""Models whose layers differ in the number of their heads (some were removed) or in their width (Gemma 4)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import headscope
from headscope import Reading
from headscope.errors import ModelError, ReadingError, StudyError
from headscope.figures import draw
from headscope.model.model import Model
from headscope.pruning.removal import remove
from headscope.readings.files import open_reading, write_table
from headscope.readings.paper_alternatives import Published
from headscope.readings.paper_check import compare
from tests.helpers import tiny

TEXT = "the cat sat, a dog ran. the owl saw the cat. it ran, and a fox came."
GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "vocab_size_per_layer_input": len(tiny.VOCABULARY),
    "hidden_size_per_layer_input": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
}


def prune_tiny(kind: str, heads: str, **options: Any) -> Model:
    return headscope.load(remove(tiny.model(kind, **options), heads).network, tiny.tokenizer())


def make_model(kind: str) -> Model:
    if kind == "gemma4":  # layers with heads of 8 and of 16 numbers
        return headscope.load(tiny.network("gemma4_text", **GEMMA), tiny.tokenizer())
    if kind == "llama":  # of four heads on two key heads, two are left in the first layer
        return prune_tiny("llama", "L0H0,L0H1", num_key_value_heads=2, head_dim=8)
    return prune_tiny("bert", "L0H1,L0H2")


COUNTS = {"bert": (2, 4), "llama": (2, 4), "gemma4": (4, 4)}
WIDTHS = {"bert": (8, 8), "llama": (8, 8), "gemma4": (8, 16)}


@pytest.fixture(scope="module", params=COUNTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str) -> Model:
    return make_model(kind)


@pytest.fixture(scope="module")
def reading(model: Model) -> Reading:
    return headscope.read(model, TEXT, length=40)


@pytest.fixture(scope="module")
def bert() -> Model:
    return make_model("bert")


def test_outputs_are_those_of_the_model(model: Model, reading: Reading, kind: str):
    recorder = tiny.LayerRecorder()
    (window,) = model.windows(headscope.Document(TEXT, "text"), headscope.settings.Settings(length=40).cut)
    model.observe(headscope.corpus.windows.Batch.of([window], model.tokens.pad_id), recorder)
    assert [len(reading.heads_of(layer)) for layer in (0, 1)] == list(COUNTS[kind])
    for layer, output in enumerate(recorder.outputs):
        for head in reading.heads_of(layer):
            expected = output[0, :, head].double().numpy()
            assert reading.output(layer, head).shape[1] == WIDTHS[kind][layer]
            assert np.array_equal(reading.output(layer, head), expected)
            matrix = expected @ expected.T
            np.fill_diagonal(matrix, 0)
            assert np.allclose(reading.matrix(layer, head).values, matrix, rtol=1e-9)
            assert np.allclose(reading.attention_map(layer, head).sum("key"), 1, atol=1e-5)


def test_absent_heads_are_nan_and_missing_in_tables(reading: Reading, kind: str):
    present = [[head < count for head in range(4)] for count in COUNTS[kind]]
    for array in (reading.similarity, reading.attention):
        assert array.notnull().all(array.dims[2:]).values.tolist() == present
        assert array.isnull().all(array.dims[2:]).values.tolist() == (~np.array(present)).tolist()
    heads = [(layer, head) for layer in (0, 1) for head in range(COUNTS[kind][layer])]
    assert list(map(tuple, reading.dominant()[["layer", "head_number"]].values.tolist())) == heads
    assert set(map(tuple, reading.pairs()[["layer", "head_number"]].values.tolist())) == set(heads)
    assert np.isfinite(reading.matrix(0, "sum").values).all()
    sums = sum(reading.attention_map(0, head).values for head in reading.heads_of(0))
    assert np.allclose(reading.attention_map(0, "sum").values, sums)


def test_a_head_that_a_layer_lacks_is_refused(bert: Model):
    reading = headscope.read(bert, TEXT, length=40)
    message = "no head 3 in layer 0, which has heads 0, 1"
    calls = [reading.matrix, reading.attention_map, reading.output, reading.pairs, reading.lines, reading.explained]
    for call in calls:
        with pytest.raises(ReadingError, match=message):
            call(0, 3)
    with pytest.raises(ReadingError, match=message):
        draw(reading, "4", heads=[3])
    with pytest.raises(ReadingError, match="no head L0H3 in this reading"):
        reading.to_html(start=(0, 3))
    assert set(reading.pairs(head=3)["layer"]) == {1}
    assert (reading.select(heads=3).layers, reading.select(layers=0).head_numbers) == ([1], [0, 1])
    with pytest.raises(ReadingError, match=message):
        reading.select(layers=0, heads=3)


def test_saved_and_opened(reading: Reading, tmp_path: Path):
    opened = open_reading(reading.save(tmp_path / "reading.nc"))
    assert opened.data.identical(reading.data)
    table = pd.read_parquet(write_table(reading.pairs(), tmp_path / "pairs.parquet"))
    assert len(table) == len(reading.pairs())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["outputs", "attention"])
def test_other_missing_values_in_a_file_are_refused(reading: Reading, tmp_path: Path, name: str, value: float):
    data = reading.data.copy(deep=True)
    data[name].values[1, 1, 1, 1] = value
    path = Reading(data).save(tmp_path / "reading.nc")
    with pytest.raises(ReadingError, match=f"damaged: its {name} hold NaN or infinite values"):
        open_reading(path)


def test_figures_and_page(reading: Reading):
    for number in ("4", "5", "9", "12"):
        assert draw(reading, number).get_axes()
        assert draw(reading, number, layers=0).get_axes()
    page = reading.to_html()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["present"] == [[head in reading.heads_of(layer) for head in range(4)] + [True] for layer in (0, 1)]


def test_segments_use_the_heads_that_exist(model: Model, reading: Reading):
    existing = set(model.architecture.list_heads())
    for segmentation in (reading.segments(), headscope.segment(model, TEXT * 3)):
        assert {(vote.layer, vote.head) for vote in segmentation.heads} <= existing
        assert sum(vote.weight for vote in segmentation.heads) == pytest.approx(1)


def test_narrow_heads_get_the_segments_they_get_alone(monkeypatch: pytest.MonkeyPatch):
    """Zeros that fill up narrow heads change nothing: layers of one width, filled up, give the same vectors."""
    from headscope.segmentation import topic

    vectors = np.random.default_rng(0).normal(size=(12, 3, 4)).astype(np.float32)
    source = np.repeat(np.arange(4), 3)
    filled = np.concatenate([vectors, np.zeros((12, 3, 2), np.float32)], axis=2)
    narrow, wide = (topic._estimate_background(each, source) for each in (vectors, filled))
    assert np.allclose(wide.whiten(filled)[:, :, :4], narrow.whiten(vectors), atol=1e-5)
    assert np.allclose(wide.contrast.gain, narrow.contrast.gain, atol=1e-6)


def test_paper_check(bert: Model):
    reading = headscope.read(bert, TEXT, length=40)
    tokens = tuple(str(token) for token in reading.tokens.values)
    figure = Published(text=TEXT, tokens=tokens, layer=1, pairs={3: ((1, 2), (2, 5))})
    result = compare(reading, figure)
    assert result.heads[0].outcome.matched + result.heads[0].outcome.missing == 2
    with pytest.raises(ModelError, match=r"heads 0 to 1.*Fig. 9 shows heads 3 of layer 0"):
        compare(reading, dataclasses.replace(figure, layer=0))


def test_study_leaves_absent_heads_out(bert: Model, tmp_path: Path):
    study = headscope.study(bert, [TEXT, TEXT[10:], TEXT[20:]], length=32)
    names = ["L0H0", "L0H1", "L1H0", "L1H1", "L1H2", "L1H3"]
    assert study.present.values.tolist() == [[True, True, False, False], [True] * 4]
    assert study.heads()["head"].tolist() == names
    assert study.rate("same_sentence_rate").isnull().values[0].tolist() == [False, False, True, True]
    assert "of 6 heads" in study.findings()[0].explanation
    assert "absent: this layer has no such head" in study.report(tmp_path / "a.html").read_text("utf-8")
    reference = headscope.study(bert, [TEXT, TEXT[10:], TEXT[20:]], length=32, kernel="reference")
    for name in ("pairs", "equal", "same", "location", "distinct_dominants"):
        assert np.array_equal(study.data[name], reference.data[name])


def test_studied_heads_are_those_of_the_whole_model():
    """The heads of the first layer read the same text as before others were removed beside them."""
    whole, pruned = tiny.model("bert"), make_model("bert")
    before, after = (headscope.study(each, [TEXT, TEXT[10:]], length=32) for each in (whole, pruned))
    assert np.array_equal(after.data["pairs"].values[0, :2], before.data["pairs"].values[0, [0, 3]])


def test_ablation_and_pruning(bert: Model):
    ablation = headscope.ablate(bert, [TEXT, TEXT[10:]], length=32)
    assert ablation.table()["head"].tolist() == ["L0H0", "L0H1", "L1H0", "L1H1", "L1H2", "L1H3"]
    with pytest.raises(StudyError, match="heads 'L0H2': head 2: layer 0 has 2 heads"):
        headscope.ablate(bert, [TEXT], length=32, heads="L0H2")
    with pytest.raises(ModelError, match=r"differ in their number of heads \(2, 4\).*--heads"):
        headscope.prune(bert, keep="50%", documents=[TEXT], length=32)
    again = remove(bert, "L1H0,L1H1")
    assert headscope.load(again.network, tiny.tokenizer()).architecture.head_counts == (2, 2)


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_silencing_is_removing(bert: Model, by: str):
    from headscope.model.interventions import compute_head_means

    batch = tiny.batch(8, 6)
    means = compute_head_means(bert, [batch]) if by == "mean" else None
    before = tiny.run(bert.network, batch)
    with headscope.silenced(bert, "L0H1,L1H3", ablation_type=by, means=means):  # type: ignore[arg-type]
        assert not torch.allclose(tiny.run(bert.network, batch), before)
    assert torch.equal(tiny.run(bert.network, batch), before)


def test_arrays_of_layers_that_differ():
    random = np.random.default_rng(0)
    outputs = [random.normal(size=(4, heads, width)) for heads, width in ((2, 3), (1, 5))]
    maps = [random.dirichlet(np.ones(4), (heads, 4)) for heads in (2, 1)]
    reading = Reading.from_arrays(["a", "b", "c", "a"], outputs, maps)
    assert [reading.heads_of(layer) for layer in (0, 1)] == [[0, 1], [0]]
    assert np.array_equal(reading.output(1, 0), outputs[1][:, 0])
    assert np.array_equal(reading.attention_map(1, 0).values, maps[1][0])
    with pytest.raises(ReadingError, match=r"attention maps have the shape \(2, 2, 4, 4\).* ask for \(2, 1, 4, 4\)"):
        Reading.from_arrays(["a", "b", "c", "a"], outputs, [maps[0], maps[0]])
    with pytest.raises(ReadingError, match="outputs of layer 1 hold a value that is not finite"):
        Reading.from_arrays(["a", "b", "c", "a"], [outputs[0], outputs[1] * np.nan])


def test_command_line_reads_a_pruned_folder(tmp_path: Path, headscope_command: Any):
    source = tmp_path / "source"
    model = tiny.model("bert")
    model.network.save_pretrained(source)
    tiny.tokenizer().save_pretrained(source)
    headscope.prune(str(source), heads="L0H1,L0H2").save(tmp_path / "pruned")
    options = ["--model", str(tmp_path / "pruned"), "--length", "32"]
    page, saved, pairs = (tmp_path / name for name in ("page.html", "reading.nc", "pairs.csv"))
    ran = headscope_command(
        "read", TEXT, *options, "-o", str(page), "--save", str(saved), "--pairs", str(pairs), "--figures",
        str(tmp_path / "figures"), "--formats", "png",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert set(pd.read_csv(pairs).query("layer == 0")["head_number"]) <= {0, 1}
    assert headscope_command("read", str(saved), "-o", str(page), "--heads", "H3").code == 0

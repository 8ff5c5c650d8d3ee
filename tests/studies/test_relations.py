"""Labelled relations of a study: the table, its errors and tests, files, merging, resuming; planted, random heads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.corpus.windows import BLOCKS
from headscope.errors import Changed, Stopped, StudyError
from headscope.model.model import Model
from headscope.run.state import RunState
from headscope.studies.relations import rank_relations
from headscope.studies.result import Study, open_study
from headscope.tally.quantities import RELATION_QUANTITIES, Shape
from headscope.tally.tally import Tally, TallySettings
from tests.helpers import tiny
from tests.helpers.interrupting import OPTIONS, assert_equal, run_interrupted, stop_after, texts
from tests.helpers.labelling import assert_same_relations, relate
from tests.helpers.synthetic import make_masked_maps, study_of, tally, window
from tests.helpers.treebank import as_treebank, draw_documents, write_treebanks

SHAPE = Shape(1, 2, 8, maps=False)


def make_study(blocks: int = 20, pairs: int = 10, high: int = 4, **changes: Any) -> Study:
    """Return a study of one relation; in every block, the first head has `high` of its pairs, and one more in even
    blocks; 1 pair is expected, and every fourth of the second head."""
    sums = Tally.zeros(SHAPE)
    sums["texts"][:blocks], sums["sample_texts"][:blocks], sums["all_pairs"][:blocks] = 5, 5, 100
    arrays = sums.relate("conj")
    arrays["relation_pairs"][:blocks], arrays["relation_texts"][:blocks] = pairs, 5
    arrays["relation_high"][:blocks, 0, 0] = high + (np.arange(blocks) % 2 == 0)
    arrays["relation_expected"][:blocks, 0] = 1.0, pairs / 4
    arrays["relation_attention_ab"][:blocks, 0] = pairs * 0.5
    arrays["relation_attention_ab_expected"][:blocks, 0] = pairs * 0.125
    return study_of(sums, sample=1.0, **changes)


def test_the_table_has_rates_and_what_is_expected():
    study = make_study()
    first, second = study.relations().to_dict("records")
    assert (first["relation"], first["head"], first["pairs"], first["texts"], first["note"]) == (
        *("conj", "L0H0", 200, 100),
        "",
    )
    assert first["rate"] == pytest.approx(0.45)
    assert first["chance"] == pytest.approx(0.1)
    assert first["ratio"] == pytest.approx(4.5)
    assert first["odds_ratio"] == pytest.approx((0.45 / 0.55) / (0.1 / 0.9))
    # Blocks have a rate of 0.5 or 0.4: the standard error of a mean of twenty.
    assert first["rate_error"] == pytest.approx(np.std([0.5, 0.4] * 10, ddof=1) / np.sqrt(20))
    assert first["p"] < 1e-12
    assert first["p_corrected"] == pytest.approx(first["p"])  # the other head has no error, and is not tested
    assert (first["attention_ab"], first["attention_ab_chance"], first["attention_ba"]) == (0.5, 0.125, 0)
    assert (second["rate"], second["ratio"], second["chance"]) == (0, 0, 0.25)
    assert np.isnan(second["p"])
    np.testing.assert_allclose(study.data["relation_rate"], [[[0.45, 0]]])
    np.testing.assert_allclose(study.data["relation_attention_ab_mean"], 0.5)


@pytest.mark.parametrize(
    ("blocks", "pairs", "note"),
    [
        (20, 2, "too few pairs: 40, and 50 are needed"),
        (9, 10, "too few documents: pairs in 9 of 20 blocks, and 10 are needed"),
        (10, 10, ""),
    ],
)
def test_too_few_pairs_or_documents_are_said(blocks: int, pairs: int, note: str):
    table = make_study(blocks, pairs, high=1).relations()
    assert set(table["note"]) == {note}
    assert np.isnan(table["p"]).all() == bool(note)
    assert table["rate"].notna().all()


def test_a_study_without_relations_has_none(tmp_path: Path):
    study = study_of(Tally.zeros(SHAPE))
    assert not [name for name in study.data.variables if str(name).startswith("relation_rate")]
    with pytest.raises(StudyError, match="this study has no labelled relations: study a treebank"):
        study.relations()


# -- planted heads ----------------------------------------------------------------------------------------------------


def draw_study(seed: int, planted: bool, documents: int = 60, n: int = 20, heads: int = 3) -> Study:
    """Return a study in which head 0 writes the same for both words of a pair "a", if that is planted; all else is
    random."""
    random = np.random.default_rng(seed)
    windows, outputs = [], random.normal(0.3, 1, (documents, n, heads, 4))
    for k in range(documents):
        places = random.permutation(n)[:8].tolist()
        pairs = [(places[j], places[j + 1], "a" if j < 4 else "b") for j in range(0, 8, 2)]
        windows.append(relate(window(random.integers(6, 30, n).tolist()), pairs))
        for first, second, label in pairs:
            if planted and label == "a" and random.random() < 0.7:
                outputs[k, first, 0] *= 3
                outputs[k, second, 0] = outputs[k, first, 0]
    maps = make_masked_maps(random, windows, heads, n)
    counting = TallySettings(Shape(1, heads, n, maps=False), 0.3, 0.3, 1.0)
    return study_of(tally("torch", counting, windows, [torch.from_numpy(outputs)], [maps]), sample=1.0)


def test_a_planted_head_is_found_and_random_ones_are_not():
    table = draw_study(0, planted=True).relations()
    assert table["pairs"].tolist() == [120] * 6
    significant = table[table["p_corrected"] < 0.05]
    assert list(zip(significant["relation"], significant["head"], strict=True)) == [("a", "L0H0")]
    assert significant["rate"].item() > 0.5
    assert significant["ratio"].item() > 2
    best = rank_relations(table, 1)
    assert best["relation"].tolist() == ["a", "b"]
    assert best["head"][0] == "L0H0"


def test_random_heads_seldom_relate_anything():
    """Any of six tests of a study should be a false alarm in at most one of twenty studies; with twice that, seven or
    more of forty come once in ten thousand times."""
    alarms = sum((draw_study(seed, planted=False).relations()["p_corrected"] < 0.05).any() for seed in range(1, 41))
    assert alarms <= 6


# -- files and parts --------------------------------------------------------------------------------------------------


def test_a_file_keeps_relations(tmp_path: Path):
    study = make_study()
    opened = open_study(study.save(tmp_path / "a.nc"))
    np.testing.assert_array_equal(opened.data["relation_high_blocks"], study.data["relation_high_blocks"])
    assert opened.relations().to_csv() == study.relations().to_csv()


def test_damaged_relations_are_refused(tmp_path: Path):
    data = make_study().data
    damaged = {
        "no relation_high_blocks": data.drop_vars("relation_high_blocks"),
        "holds what no sum can be": data.assign(relation_high=-data["relation_high"]),
        "do not add up": data.assign(relation_high=data["relation_high"] + 1),
        "not over": data.assign(relation_rate=data["relation_rate"].isel(relation=0, drop=True)),
    }
    for number, (reason, dataset) in enumerate(damaged.items()):
        path = Study(dataset).save(tmp_path / f"{number}.nc")
        with pytest.raises(StudyError, match=reason):
            open_study(path)


def test_selected_heads():
    study = draw_study(0, planted=True)
    part = study.select(heads=[2, 0]).relations()
    assert part["head"].tolist() == ["L0H2", "L0H0"] * 2
    whole = study.relations().set_index(["relation", "head"])
    for row in part.to_dict("records"):
        assert row["rate"] == whole.loc[(row["relation"], row["head"]), "rate"]


def test_merging_adds_relations_of_either():
    first, second = make_study(corpus_hash="a"), make_study(10, corpus_hash="b")
    renamed = Study(second.data.assign_coords(relation=["amod"]))
    without = study_of(Tally.zeros(SHAPE), corpus_hash="c", sample=1.0)
    merged = first.merge(second).data
    assert merged["relation_pairs"].values.tolist() == [300]
    np.testing.assert_allclose(merged["relation_expected"].values[0], [[30, 75]])
    for both in (first.merge(renamed), renamed.merge(first)):
        assert both.data["relation"].values.tolist() == ["amod", "conj"]
        assert both.data["relation_pairs"].values.tolist() == [100, 200]
        assert both.data["relation_high_blocks"].dtype == np.int64
        assert both.relations()["pairs"].tolist() == [100, 100, 200, 200]
    for both in (first.merge(without), without.merge(first)):
        assert both.relations()["rate"].tolist() == first.relations()["rate"].tolist()


def test_sums_are_sent_to_other_processes():
    sums = draw_sums()
    assert_same_relations(pickle.loads(pickle.dumps(sums)), sums)
    state = RunState(Tally.zeros(SHAPE))
    state.add(RunState(sums))
    assert_same_relations(state.sums, sums)
    assert_same_relations(sums + sums, state.sums + sums)
    total = Tally.zeros(SHAPE)
    total.move_from(sums)
    assert_same_relations(total, state.sums)
    assert sums.relations == {}


def draw_sums() -> Tally:
    random, sums = np.random.default_rng(0), Tally.zeros(SHAPE)
    for label in ("conj", "ägräd"):
        for array in sums.relate(label).values():
            array[...] = random.integers(0, 9, array.shape)
    return sums


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


def study_treebanks(model: Model, paths: list[Path], **options: Any) -> Study:
    return headscope.study(model, headscope.documents(paths), **{**OPTIONS, "sample": 1.0, **options})


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("cuts", [[1], [3, 2], [5, 1, 4]])
def test_a_resumed_study_is_one_that_was_never_interrupted(model: Model, tmp_path: Path, cuts: list[int]):
    paths = write_treebanks(tmp_path / "in", [20, 3, 14])
    expected = study_treebanks(model, paths)
    options = {**OPTIONS, "sample": 1.0, "checkpoint_interval": 0.0}
    resumed = run_interrupted(model, headscope.documents(paths), tmp_path / "out", cuts, **options)
    assert_equal(resumed, expected)
    assert resumed.data["relation"].values.tolist() == ["amod", "conj", "det", "nsubj"]
    assert (resumed.data["relation_pairs"] > 0).all()


@pytest.mark.usefixtures("small_chunks")
def test_shares_add_up(model: Model, tmp_path: Path):
    paths = write_treebanks(tmp_path, [9, 8, 7, 6])
    first, second = (study_treebanks(model, paths, share=f"{k}/2") for k in (1, 2))
    merged, expected = first.merge(second), study_treebanks(model, paths)
    for quantity in RELATION_QUANTITIES:
        np.testing.assert_allclose(merged.data[quantity.name], expected.data[quantity.name], rtol=1e-12)


@pytest.mark.parametrize("kernel", ["torch", "numba"])
def test_kernels_give_the_sums_of_the_plain_loops(model: Model, tmp_path: Path, kernel: str):
    paths = write_treebanks(tmp_path, [6])
    fast, slow = (study_treebanks(model, paths, kernel=name) for name in (kernel, "reference"))
    for name in ("relation_pairs", "relation_texts", "relation_high"):
        np.testing.assert_array_equal(fast.data[name], slow.data[name])
    for name in ("relation_expected", "relation_attention_ab", "relation_attention_ba_expected"):
        np.testing.assert_allclose(fast.data[name], slow.data[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_chunks")
def test_other_labels_are_not_resumed(model: Model, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"the cat {text}", "relations": [[0, 3, 4, 7, "det"]]} for text in texts(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {**OPTIONS, "checkpoint_dir": tmp_path / "out"}
    with pytest.raises(Stopped):
        headscope.study(model, path, progress=stop_after(4), **options)
    with pytest.raises(Changed, match="relations \\(all before, none now\\)"):
        headscope.study(model, path, relations="none", **options)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows).replace("det", "sub"))
    with pytest.raises(Changed, match="not the texts that were counted before"):
        headscope.study(model, path, **options)


def relate_first_words(text: str) -> list[tuple[int, int, int, int, str]]:
    return [(0, 3, 4, 7, "first"), (4, 7, 0, 3, "back")]


def test_a_function_relates_words(model: Model):
    given = ["the cat sat.", "the owl sat on the mat.", "the cat"]
    study = headscope.study(model, given, relations=relate_first_words, **{**OPTIONS, "sample": None})
    assert study.data["relation_pairs"].values.tolist() == [3, 3]
    np.testing.assert_array_equal(study.data["relation_high"][0], study.data["relation_high"][1])
    np.testing.assert_allclose(study.data["relation_attention_ab"][0], study.data["relation_attention_ba"][1])
    assert study.manifest["relations"] == "function tests.studies.test_relations.relate_first_words"


def test_relations_are_chosen_by_name(model: Model, tmp_path: Path):
    paths = write_treebanks(tmp_path, [5])
    chosen = study_treebanks(model, paths, relations="conj, det")
    assert chosen.data["relation"].values.tolist() == ["conj", "det"]
    assert "relation" not in study_treebanks(model, paths, relations="none").data
    with pytest.raises(StudyError, match="relations is empty: all, none, or names"):
        study_treebanks(model, paths, relations=" ,")


def test_a_causal_model_looks_only_back(tmp_path: Path):
    path = tmp_path / "a.conllu"
    path.write_text(as_treebank(draw_documents(5)))
    data = headscope.study(tiny.model("gpt2"), path, relations="all", **{**OPTIONS, "sample": 1.0}).data
    ab, ba = data["relation_attention_ab"], data["relation_attention_ba"]
    assert float(ab.sum()) > 0
    assert float(ba.sum()) > 0

    def relate_to_later(text: str) -> list[tuple[int, int, int, int, str]]:
        return [(0, 1, len(text) - 1, len(text), "later")]

    given = ["the cat sat", "a owl sat on the mat"]
    study = headscope.study(tiny.model("gpt2"), given, relations=relate_to_later, **{**OPTIONS, "sample": 1.0})
    table = study.relations()
    assert (table["attention_ab"] == 0).all()
    assert (table["attention_ab_chance"] == 0).all()
    assert (table["attention_ba"] > 0).all()


def test_blocks_of_sums_are_of_documents(model: Model, tmp_path: Path):
    data = study_treebanks(model, write_treebanks(tmp_path, [30])).data
    assert data["relation_pairs_blocks"].dims == ("block", "relation")
    assert data["relation_high_blocks"].sizes["block"] == BLOCKS
    filled = data["relation_pairs_blocks"].sum("relation") > 0
    assert (data["texts_blocks"].where(filled, 1) > 0).all()

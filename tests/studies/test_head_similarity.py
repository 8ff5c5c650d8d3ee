"""Similarity between heads in a study: merging, selection, clusters, files, and models it is not measured in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headscope
from headscope.errors import SelectionError, StudyError
from headscope.studies.clustering import cut_clusters, link_clusters, order_items
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally, TallySettings
from tests.helpers.synthetic import CLS, SEP, make_random_study, study_of, tally, window


def make_paired_study(seed: int = 0, texts: int = 60, corpus: str = "1") -> Study:
    """Return a study of 2 × 3 heads: L0H1 and L1H2 write the same up to noise, and L1H0 writes nothing."""
    random = np.random.default_rng(seed)
    windows = [window([CLS, *random.integers(3, 9, 12).tolist(), SEP]) for _ in range(texts)]
    outputs = [torch.from_numpy(random.normal(0, 1, (texts, 14, 3, 4))) for _ in range(2)]
    outputs[1][:, :, 2] = outputs[0][:, :, 1] + 0.1 * torch.from_numpy(random.normal(0, 1, (texts, 14, 4)))
    outputs[1][:, :, 0] = 0
    maps = [torch.full((texts, 3, 14, 14), 1 / 14, dtype=torch.float64)] * 2
    maps[1] = maps[1].clone()
    maps[1][:, 0] = 0  # the head does not exist
    counting = TallySettings(Shape(2, 3, 16, maps=False), 0.3, 0.3, 1.0)
    return study_of(tally("torch", counting, windows, outputs, maps), corpus_hash=corpus * 32)


def test_the_twin_of_a_head_is_found():
    study = make_paired_study()
    similar = study.similar_heads("L0H1")
    assert similar["head"].tolist()[0] == "L1H2"
    assert similar["correlation"][0] > 0.9 > 0.3 > similar["correlation"][1]
    assert similar["texts"].tolist() == [60] * 4  # L1H0 does not exist
    clusters = study.head_clusters().set_index("head")
    assert clusters.loc[["L0H1", "L1H2"], "cluster"].tolist() == [0, 0]
    assert clusters["size"].tolist() == [1, 2, 1, 1, 2]
    assert clusters.loc["L0H1", "similarity"] == similar["correlation"][0]
    assert np.isnan(clusters.loc["L0H0", "similarity"])
    assert study.head_similarity().attrs["reliability"] > 0.9


def test_heads_that_write_noise_are_no_reliable_pairs():
    assert abs(make_random_study(3, texts=60, maps=False).head_similarity().attrs["reliability"]) < 0.9


def test_merged_studies_are_the_study_of_both():
    first, second = make_paired_study(0, corpus="1"), make_paired_study(1, corpus="2")
    merged = first.merge(second)
    names = ("head_similarity_sum", "head_similarity_texts")
    for name in names:
        np.testing.assert_allclose(merged.data[name], first.data[name] + second.data[name])
    expected = [merged.data[name].sum("half").values for name in names]
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(merged.head_similarity(), expected[0] / expected[1])


def test_selected_heads_keep_their_correlations(tmp_path):
    study = make_paired_study()
    selected = study.select(layers=[1, 0], heads=[2, 1])
    similarity = study.head_similarity()
    np.testing.assert_array_equal(
        selected.head_similarity().values,
        similarity.sel(layer=[1, 0], head=[2, 1], other_layer=[1, 0], other_head=[2, 1]).values,
    )
    assert selected.similar_heads((0, 1), count=1)["head"].tolist() == ["L1H2"]
    selected.save(tmp_path)
    assert headscope.open_study(tmp_path).similar_heads("L0H1", count=1)["head"].tolist() == ["L1H2"]


def test_a_study_whose_correlations_are_damaged_is_refused(tmp_path):
    study = make_paired_study()
    study.data["head_similarity_texts"][0, 0, 0, 0, 0] = -1
    study.save(tmp_path)
    with pytest.raises(StudyError, match="head_similarity_texts"):
        headscope.open_study(tmp_path)


def test_bad_arguments_are_named():
    study = make_paired_study()
    with pytest.raises(SelectionError, match="head 7"):
        study.similar_heads("L0H7")
    with pytest.raises(SelectionError, match="layer 1"):
        study.similar_heads("L1H0")
    with pytest.raises(StudyError, match="3 heads: name one"):
        study.similar_heads("L0")
    with pytest.raises(StudyError, match="count is 0"):
        study.similar_heads("L0H1", count=0)
    with pytest.raises(StudyError, match="correlation is 2"):
        study.head_clusters(correlation=2)
    old = Study(study.data.drop_vars([name for name in study.data if str(name).startswith("head_similarity")]))
    with pytest.raises(StudyError, match="run it again"):
        old.head_similarity()
    many = study_of(Tally.zeros(Shape(33, 32, 4, maps=False)))
    with pytest.raises(StudyError, match="1,056 heads"):
        many.head_similarity()


def test_average_linkage_worked_by_hand():
    """0 and 1 join at 0.9; 2 and 3 at 0.6; the mean between both pairs is (0.5 + 0.1 + 0.3 + 0.1) / 4 = 0.25."""
    matrix = np.array([[1, 0.9, 0.5, 0.1], [0.9, 1, 0.3, 0.1], [0.5, 0.3, 1, 0.6], [0.1, 0.1, 0.6, 1]])
    merges = link_clusters(matrix)
    assert [(merge.first, merge.second, merge.similarity) for merge in merges] == [
        ([0], [1], 0.9),
        ([2], [3], 0.6),
        ([0, 1], [2, 3], 0.25),
    ]
    for least, labels in ((0.95, [0, 1, 2, 3]), (0.7, [0, 0, 1, 2]), (0.6, [0, 0, 1, 1]), (0.2, [0] * 4)):
        assert cut_clusters(merges, 4, least).tolist() == labels
    assert order_items(merges, 4) == [0, 1, 2, 3]
    assert link_clusters(np.ones((1, 1))) == []
    assert order_items([], 1) == [0]


@pytest.mark.parametrize("seed", range(5))
def test_average_linkage_is_that_of_the_definition(seed: int):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(9, 9))
    matrix += matrix.T
    clusters = [[k] for k in range(9)]
    for merge in link_clusters(matrix):
        means = {
            (a, b): np.mean(matrix[np.ix_(clusters[a], clusters[b])]) for b in range(len(clusters)) for a in range(b)
        }
        a, b = max(means, key=means.__getitem__)
        assert sorted(merge.first + merge.second) == sorted(clusters[a] + clusters[b])
        assert merge.similarity == pytest.approx(means[a, b])
        clusters = [c for k, c in enumerate(clusters) if k not in (a, b)] + [clusters[a] + clusters[b]]

"""How alike heads are, worked out by hand, and against numpy's correlations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headscope.corpus.windows import Batch
from headscope.similarity import compute_similarity
from headscope.tally import head_similarity
from headscope.tally.head_similarity import MAX_PAIRS, HeadSimilarities, draw_pairs
from headscope.tally.quantities import HALVES, Shape
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import rank_pairs
from tests.helpers.synthetic import TALLIERS, study_of, tally, window
from tests.helpers.tally_cases import Case, assert_equal


def tally_heads(kernel: str, layers: list[list[list[float]]], ids: list[int], fraction: float = 1.0) -> Tally:
    """Return the tally of one text from what heads of width 1 write, (layer, head, position)."""
    outputs = [torch.tensor(layer, dtype=torch.float64).T[None, :, :, None] for layer in layers]
    n, heads = len(ids), len(layers[0])
    maps = [torch.full((1, heads, n, n), 1 / n, dtype=torch.float64)] * len(layers)
    counting = TallySettings(Shape(len(layers), heads, n + 1, maps=False), 0.3, 0.3, fraction)
    return tally(kernel, counting, [window(ids)], outputs, maps)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_worked_by_hand(kernel: str):
    """Three tokens, three pairs. C01, C02, C12 of heads that write

    L0H0   1  2  3    2  3  6     minus the mean 11/3:  −5 −2  7 (thirds), squares 78
    L0H1   3  2  1    6  3  2                            7 −2 −5
    L1H0   1  1  1    1  1  1     does not vary
    L1H1   0  0  5    0  0  0     does not vary

    L0H0 with L0H1: (−35 + 4 − 35) / 78 = −66/78.
    """
    sums = tally_heads(kernel, [[[1, 2, 3], [3, 2, 1]], [[1, 1, 1], [0, 0, 5]]], [7, 8, 9])
    half = window([7, 8, 9]).block % HALVES
    expected = np.zeros((HALVES, 2, 2, 2, 2))
    expected[half, 0, :, 0, :] = [[1, -66 / 78], [-66 / 78, 1]]
    np.testing.assert_allclose(sums["head_similarity_sum"], expected, atol=1e-12)
    np.testing.assert_array_equal(sums["head_similarity_texts"], expected != 0)
    data = study_of(sums).data["head_similarity"]
    assert data.dims == ("layer", "head", "other_layer", "other_head")
    assert data[0, 0, 0, 1] == pytest.approx(-66 / 78)
    assert np.isnan(data[1]).all()


@pytest.mark.parametrize("kernel", TALLIERS)
def test_two_tokens_are_one_pair_and_do_not_correlate(kernel: str):
    assert not tally_heads(kernel, [[[1, 2], [3, 2]]], [7, 8])["head_similarity_texts"].any()


@pytest.mark.parametrize("kernel", TALLIERS)
def test_texts_outside_the_sample_count_for_nothing(kernel: str):
    sums = tally_heads(kernel, [[[1, 2, 3], [3, 2, 1]]], [7, 8, 9], fraction=0.0)
    assert not sums["head_similarity_texts"].any()


@pytest.mark.parametrize("kernel", TALLIERS)
def test_sums_are_numpys_correlations(kernel: str):
    case = Case(3, [8, 5, 9], 3, 2, 1.0, causal=False)
    expected = np.zeros((HALVES, 6, 6))
    for row, text in enumerate(case.windows):
        upper = np.triu_indices(len(text), k=1)
        heads = [layer[row, : len(text), head].numpy() for layer in case.outputs for head in range(3)]
        with np.errstate(invalid="ignore"):
            correlations = np.corrcoef([compute_similarity(head)[upper] for head in heads])
        expected[text.block % HALVES] += np.nan_to_num(correlations)
    actual = case.tally(kernel)["head_similarity_sum"].reshape(HALVES, 6, 6)
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_a_batch_that_did_not_end_counts_for_nothing(kernel: str):
    case = Case(7, [6, 5], 2, 2, 1.0, causal=False)
    tallier = TALLIERS[kernel](case.counting)
    for layers in (2, 1, 2):
        tallier.begin(Batch.of(case.windows))
        for layer in range(layers):
            tallier.observe_layer(layer, case.outputs[layer], case.maps[layer])
        if layers == 2:
            tallier.end()
    once = case.tally("reference")
    assert_equal(tallier.get_sums(), once + once)


@pytest.mark.parametrize(("n", "places"), [(5, 256), (45, 256), (60, 256), (60, 50)])
def test_pairs_are_the_first_of_the_random_order(n: int, places: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(head_similarity, "MAX_PLACES", places)
    texts, cut = [window(list(range(10, 10 + n))), window([5, 6, 7, 8])], min(n, places)
    padded = np.full((2, n, n), n * n)
    for row, text in enumerate(texts):
        padded[row, : len(text), : len(text)] = rank_pairs(text)
        np.fill_diagonal(padded[row], n * n)
    drawn = HeadSimilarities.from_ranks(torch.from_numpy(padded), torch.tensor([0, 1]))
    for row, text in enumerate(texts):
        ranks, last = rank_pairs(text), min(len(text), places)
        candidates = sorted((ranks[i, j], i, j) for i in range(last) for j in range(i + 1, last))
        expected = [(i, j) for _, i, j in candidates[:MAX_PAIRS]]
        assert [tuple(pair) for pair in draw_pairs(text).tolist()] == expected
        chosen = drawn.pairs[row][drawn.is_pair[row]].tolist()
        assert sorted((k // cut, k % cut) for k in chosen) == sorted(expected)


def test_too_many_heads_are_not_correlated():
    assert "head_similarity_sum" not in Tally.zeros(Shape(33, 32, 4, maps=False)).arrays
    assert "head_similarity_sum" in Tally.zeros(Shape(32, 32, 4, maps=False)).arrays

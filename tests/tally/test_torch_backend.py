"""The torch backend against the plain loops, on random inputs with padding; and what a tally must not depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Batch
from headscope.errors import ModelError
from headscope.tally.quantities import QUANTITIES, Shape
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.torch_backend import _choose_count_dtype, sum_diagonals
from tests.helpers.synthetic import TALLIERS, tally, window
from tests.helpers.tally_cases import Case, assert_equal, assert_reals_close

cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(2, 11), min_size=1, max_size=5),
    heads=st.integers(1, 4),
    layers=st.integers(1, 2),
    fraction=st.sampled_from([0.0, 0.5, 1.0]),
    causal=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_vectorized_equals_plain_loops(case: Case):
    assert_equal(case.tally("torch"), case.tally("reference"))


@settings(max_examples=40, deadline=None)
@given(cases)
def test_a_batch_is_the_sum_of_its_texts(case: Case):
    together, apart = case.tally("torch"), Tally.zeros(case.counting.shape)
    for row in range(len(case.windows)):
        apart = apart + case.tally("torch", [row])
    assert_equal(together, apart)


@settings(max_examples=40, deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_the_order_of_texts_does_not_matter(case: Case, random):
    order = list(range(len(case.windows)))
    random.shuffle(order)
    assert_equal(case.tally("torch"), case.tally("torch", order))


@settings(max_examples=40, deadline=None)
@given(cases)
def test_sums_agree_with_each_other(case: Case):
    sums = case.tally("torch")
    assert (sums["distance"].sum(-1) == sums["pairs"]).all()
    assert ((sums["distance"] * np.arange(1, sums.shape.length)).sum(-1) == sums["distance_sum"]).all()
    assert (sums["location"] == sums["location"].swapaxes(-1, -2)).all()
    assert (sums["location"].sum((-1, -2)) == 2 * sums["pairs"].sum(0)).all()
    assert (sums["repeat_rate_texts"].sum(-1) == sums["texts_with_pairs"]).all()
    assert (sums["distinct_dominants"].sum((0, -1)) == len(case.windows)).all()
    tokens = sum(len(text) for text in case.windows)
    heads = sums.shape.heads
    np.testing.assert_allclose(sums["attention"].sum((-1, -2)), tokens)
    np.testing.assert_allclose(sums["attention_offset"].sum((0, -1)), tokens)
    np.testing.assert_allclose(sums["attention_received"].sum((0, -1)), tokens * heads)
    np.testing.assert_allclose(sums["attention_spread"].sum(), tokens)
    assert sum(counts.sum() for counts in sums.most_attended.values()) == len(case.windows) * sums.shape.layers


def test_without_maps_everything_else_is_the_same():
    case = Case(5, [9, 4, 7], 3, 2, 1.0, causal=False)
    with_maps = case.tally("torch")
    case.counting = TallySettings(Shape(2, 3, 11, maps=False, width=3), 0.3, 0.3, 1.0)
    for kernel in TALLIERS:
        without_maps = case.tally(kernel)
        assert set(with_maps.arrays) - set(without_maps.arrays) == {q.name for q in QUANTITIES if q.is_map}
        for name in without_maps.arrays:
            assert_reals_close(name, without_maps, with_maps, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_batches_add_up_and_one_that_does_not_end_counts_for_nothing(kernel: str):
    case = Case(7, [6, 5, 9], 2, 2, 1.0, causal=False)
    tallier = TALLIERS[kernel](case.counting)
    for ends in (True, False, True):
        tallier.begin(Batch.of(case.windows))
        for layer in range(2 if ends else 1):
            tallier.observe_layer(layer, case.outputs[layer], case.maps[layer])
        if ends:
            tallier.end()
    once = case.tally("reference")
    assert_equal(tallier.get_sums(), once + once)


@pytest.mark.parametrize("kernel", TALLIERS)
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_outputs_that_are_no_numbers_name_their_head(kernel: str, broken: float):
    case = Case(1, [6, 5], 3, 2, 1.0, causal=False)
    case.outputs[1][1, 2, 2] = broken
    with pytest.raises(ModelError, match="L1H2"):
        case.tally(kernel)


def test_long_windows_count_exactly():
    # All pairs of 420 tokens are high; their distances add up to 420(420² − 1)/6 = 12,347,930, near float32's 2²⁴.
    n = 420
    sums = tally(
        "torch",
        TallySettings(Shape(1, 1, n, maps=False), 0.3, 0.3, 0.0),
        [window([7] * n, [0] * n), window([8] * n, [0] * n)],
        [torch.ones(2, n, 1, 1)],
        [torch.full((2, 1, n, n), 1 / n)],
    )
    assert sums["distance_sum"].sum() == 2 * n * (n * n - 1) // 6
    assert sums["pairs"].sum() == sums["equal"].sum() == 2 * n * (n - 1) // 2
    assert _choose_count_dtype(465) == torch.float32
    assert _choose_count_dtype(466) == torch.float64


def test_diagonal_sums():
    matrix = torch.arange(24, dtype=torch.float64).view(2, 3, 4)[:, :, :3]
    expected = [[float(np.trace(m, offset=k)) for k in range(-2, 3)] for m in matrix.numpy()]
    assert sum_diagonals(matrix).tolist() == expected

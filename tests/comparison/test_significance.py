"""Statistics of a comparison: Student's t, Holm's correction, jackknifed differences, and how often they err."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.comparison.differences import (
    compute_differences,
    has_same_texts,
    tabulate_correlations,
    tabulate_differences,
)
from headscope.comparison.measures import MEASURES, NEAR, SCORE_MEASURES
from headscope.studies.rates import MIN_BLOCKS, compute_jackknife_error
from headscope.studies.significance import compute_incomplete_beta, compute_p_value, correct_holm
from tests.helpers.comparison_studies import change_head, draw_counts, make_model_study, make_sums

# -- Student's t ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "t", "p"),
    [  # any printed table of critical values
        (1, 12.706, 0.05),
        (1, 63.657, 0.01),
        (2, 4.303, 0.05),
        (5, 2.571, 0.05),
        (5, 6.869, 0.001),
        (10, 2.228, 0.05),
        (19, 2.093, 0.05),
        (19, 2.861, 0.01),
        (19, 3.883, 0.001),
        (30, 2.042, 0.05),
        (120, 1.980, 0.05),
    ],
)
def test_values_of_a_printed_table(freedom: int, t: float, p: float) -> None:
    assert compute_p_value(t, freedom) == pytest.approx(p, rel=2e-3)
    assert compute_p_value(-t, freedom) == compute_p_value(t, freedom)


def test_closed_forms() -> None:
    for t in (0.0, 1e-9, 0.3, 1.0, 7.5, 400.0, 1e8):
        assert compute_p_value(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-7, abs=1e-12)
        assert compute_p_value(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6, abs=1e-12)
    assert compute_p_value(1.96, 1e7) == pytest.approx(math.erfc(1.96 / math.sqrt(2)), rel=1e-5)


def test_where_there_is_no_number() -> None:
    assert compute_p_value(math.inf, 19) == 0 == compute_p_value(-math.inf, 19) == compute_p_value(1e200, 19)
    assert compute_p_value(0.0, 19) == 1
    for t, freedom in ((math.nan, 19), (2.0, 0.5), (2.0, math.nan)):
        assert math.isnan(compute_p_value(t, freedom))


@settings(deadline=None)
@given(st.floats(-60, 60), st.floats(1, 400))
def test_as_scipy_has_it(t: float, freedom: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert compute_p_value(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-300)


@settings(deadline=None)
@given(st.floats(0.3, 50), st.floats(0.3, 50), st.floats(0, 1))
def test_the_incomplete_beta_function(a: float, b: float, x: float) -> None:
    value = compute_incomplete_beta(a, b, x)
    assert -1e-12 <= value <= 1 + 1e-12
    assert value == pytest.approx(1 - compute_incomplete_beta(b, a, 1 - x, x), abs=1e-10)
    assert value <= compute_incomplete_beta(a, b, min(1.0, x + 0.01)) + 1e-12


# -- Holm -------------------------------------------------------------------------------------------------------------


def test_holm_worked_by_hand() -> None:
    p = np.array([[0.01, 0.04], [0.03, 0.005]])
    # in order 0.005·4, 0.01·3, 0.03·2, 0.04·1, never falling
    np.testing.assert_allclose(correct_holm(p), [[0.03, 0.06], [0.06, 0.02]])
    np.testing.assert_allclose(correct_holm(np.array([0.6, 0.9])), [1.0, 1.0])
    assert np.isnan(correct_holm(np.array([np.nan, np.nan]))).all()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=30))
def test_holm_in_general(values: list[float]) -> None:
    p = np.array(values)
    corrected = correct_holm(p)
    known = ~np.isnan(p)
    assert (np.isnan(corrected) == np.isnan(p)).all()
    assert (corrected[known] >= p[known] - 1e-15).all()
    assert (corrected[known] <= np.minimum(1, p[known] * max(known.sum(), 1)) + 1e-12).all()
    order = np.argsort(p[known], kind="stable")
    assert (np.diff(corrected[known][order]) >= -1e-15).all()


# -- the jackknife ----------------------------------------------------------------------------------------------------


def test_a_paired_difference_worked_by_hand() -> None:
    baseline = make_sums([[1], [2], [3], [2], [2]] * 2, [[10]] * 10)
    other = make_sums([[3], [4], [5], [4], [5]] * 2, [[10]] * 10)
    # Totals 20/100 and 42/100. Without a block: 19, 18, 17, 18, 18 and 39, 38, 37, 38, 37, twice, of 90; differences
    # 20, 20, 20, 20, 19.
    tested = compute_differences(baseline, other, paired=True)
    jackknifed = np.array([20, 20, 20, 20, 19] * 2) / 90
    error = math.sqrt(9 / 10 * ((jackknifed - jackknifed.mean()) ** 2).sum())
    assert tested.difference[0, 0] == pytest.approx(0.22)
    assert tested.error[0, 0] == pytest.approx(error) == pytest.approx(math.sqrt(9 / 10 * 1.6) / 90)
    assert tested.t[0, 0] == pytest.approx(0.22 / error)
    assert tested.p[0, 0] == pytest.approx(compute_p_value(0.22 / error, 9)) == tested.p_corrected[0, 0]
    unpaired = compute_differences(baseline, other, paired=False)
    errors = [
        math.sqrt(9 / 10 * 2 * ((np.array(k) / 90 - np.mean(k) / 90) ** 2).sum())
        for k in ([19, 18, 17, 18, 18], [39, 38, 37, 38, 37])
    ]
    assert unpaired.error[0, 0] == pytest.approx(math.hypot(*errors))
    assert unpaired.error[0, 0] > 2 * tested.error[0, 0]


def test_unequal_blocks_leave_fewer_degrees_of_freedom() -> None:
    equal = make_sums([[1]] * 10, [[10]] * 10), make_sums([[2], [3]] * 5, [[10]] * 10)
    weights = [40, *[4] * 9]  # (Σ w)² / Σ w² = 5776 / 1744
    unequal = (
        make_sums([[4], [0], *[[1], [0]] * 4], [[weight] for weight in weights]),
        make_sums([[9], [1]] * 5, [[weight] for weight in weights]),
    )
    for (baseline, other), blocks in ((equal, 10), (unequal, 5776 / 1744)):
        tested = compute_differences(baseline, other, paired=True)
        assert tested.p[0, 0] == pytest.approx(compute_p_value(float(tested.t[0, 0]), blocks - 1))


def test_unpaired_degrees_of_freedom_are_those_of_welch() -> None:
    small, large = make_sums([[2], [3]] * 5, [[10]] * 10), make_sums([[1], [5]] * 5, [[10]] * 10)
    # Variances of 0.05² and 0.2² times 10/9, over 10 blocks: 1 to 16.
    tested = compute_differences(small, large, paired=False)
    welch = 9 * (1 + 16) ** 2 / (1**2 + 16**2)
    assert tested.p[0, 0] == pytest.approx(compute_p_value(float(tested.t[0, 0]), welch))
    alike = compute_differences(small, small, paired=False)
    assert (alike.t[0, 0], alike.p[0, 0]) == (0, 1)
    # without any spread: the same is no difference, another is beyond doubt
    same, all_equal = make_sums([[1]] * 10, [[4]] * 10), make_sums([[4]] * 10, [[4]] * 10)
    assert compute_differences(same, same, paired=False).p[0, 0] == 1
    assert compute_differences(same, all_equal, paired=False).p[0, 0] == 0


def test_what_cannot_be_tested_is_not() -> None:
    nothing = [[0]] * 10
    tested = compute_differences(make_sums(nothing, nothing), make_sums([[1]] * 10, [[4]] * 10), paired=True)
    assert np.isnan([tested.difference, tested.error, tested.t, tested.p, tested.p_corrected]).all()
    few = MIN_BLOCKS - 1
    tested = compute_differences(make_sums([[0]] * few, [[4]] * few), make_sums([[4]] * few, [[4]] * few), paired=True)
    assert tested.difference[0, 0] == 1
    assert np.isnan(tested.p[0, 0])
    # without any spread: the same is no difference, another is beyond doubt
    same, all_equal = make_sums([[1]] * 10, [[4]] * 10), make_sums([[4]] * 10, [[4]] * 10)
    assert compute_differences(same, same, paired=True).p[0, 0] == 1
    tested = compute_differences(same, all_equal, paired=True)
    assert (tested.t[0, 0], tested.p[0, 0]) == (math.inf, 0)
    # what the order of a sum can make is none
    rounding = make_sums(np.full((10, 1), 1 + 1e-14), [[4]] * 10)
    assert compute_differences(same, rounding, paired=True).p[0, 0] == 1


@pytest.mark.parametrize("name", [*(name for name in MEASURES if name != NEAR), *SCORE_MEASURES])
def test_rates_errors_and_chance_are_those_of_the_study(name: str) -> None:
    study = make_model_study(texts=50)
    sums = (MEASURES | SCORE_MEASURES)[name].compute_sums(study)
    np.testing.assert_allclose(sums.compute_rates(), study.rate(name))
    np.testing.assert_allclose(compute_jackknife_error(sums.jackknife_rates()), study.standard_error(name), atol=1e-12)
    np.testing.assert_allclose(
        np.broadcast_to(sums.compute_chance(), (3, 4)), np.broadcast_to(study.chance(name), (3, 4))
    )


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_within_one_token(causal: int) -> None:
    study = make_model_study(texts=30, causal=causal)
    sums = MEASURES[NEAR].compute_sums(study)
    offsets = study.data["attention_offset"]
    near = offsets.sel(offset=[-1, 0, 1]).sum("offset") / offsets.sum("offset")
    np.testing.assert_allclose(sums.compute_rates(), near)
    total = 0.0
    lengths = study.data["window_tokens"]
    for n in range(1, 17):
        attention = np.tril(np.ones((n, n))) if causal else np.ones((n, n))
        attention /= attention.sum(1, keepdims=True)
        within = np.abs(np.subtract.outer(range(n), range(n))) <= 1
        total += float(lengths.sel(tokens=n)) * attention[within].sum()
    assert sums.compute_chance()[0, 0] == pytest.approx(total / float((lengths * lengths["tokens"]).sum()))


def test_nobody_is_near_in_cross_attention() -> None:
    assert np.isnan(MEASURES[NEAR].compute_sums(make_model_study(texts=10, stack="cross")).compute_rates()).all()


# -- studies ----------------------------------------------------------------------------------------------------------


def test_the_same_texts_are_known_by_their_blocks() -> None:
    study = make_model_study(0)
    assert has_same_texts(study, make_model_study(1))
    assert not has_same_texts(study, make_model_study(1, corpus=1))
    # the same texts, cut into other tokens
    other_ids = make_model_study(1, corpus=1, corpus_hash=study.data.attrs["corpus_hash"])
    assert not has_same_texts(study, other_ids)


def test_a_planted_difference_is_found_and_nothing_else() -> None:
    before = make_model_study(0)
    after = change_head(before, layer=1, head=2, share=0.3)
    table = tabulate_differences(before, after, MEASURES["repeat_rate"], paired=True, alpha=0.05)
    assert table.columns.tolist() == [
        "head", "layer", "head_number", "rate", "one", "other", "difference", "error", "t", "p", "p_corrected",
        "significant",
    ]  # fmt: skip
    assert table[table["significant"]]["head"].tolist() == ["L1H2"]
    row = table.set_index("head").loc["L1H2"]
    assert row["difference"] == pytest.approx(row["other"] - row["one"])
    assert row["one"] == pytest.approx(float(before.rate("repeat_rate")[1, 2]))
    assert row["p_corrected"] == pytest.approx(min(1, row["p"] * 12))
    others = table[table["head"] != "L1H2"]
    assert (others["difference"] == 0).all()
    assert (others["p"] == 1).all()


def test_correlations_over_heads() -> None:
    study = make_model_study(0)
    correlations = tabulate_correlations(study, change_head(study, 0, 0)).set_index("rate")["correlation"]
    assert correlations["mean_distance"] == pytest.approx(1)
    assert correlations["repeat_rate"] < 0.99
    assert tabulate_correlations(study, make_model_study(1)).set_index("rate")["correlation"].abs().max() < 0.99


# -- how often it errs ------------------------------------------------------------------------------------------------

DRAWS, HEADS = 600, 24


def measure_false_alarms(texts: int, *, paired: bool, seed: int) -> float:
    """Return how often any head of two models of one distribution is called different, at alpha 0.05."""
    random = np.random.default_rng(seed)
    alarms = 0
    for _ in range(DRAWS):
        blocks, effect = random.integers(0, 20, texts), random.standard_normal(texts)
        baseline = draw_counts(random, blocks, effect, HEADS)
        if not paired:
            blocks, effect = random.integers(0, 20, texts), random.standard_normal(texts)
        other = draw_counts(random, blocks, effect, HEADS)
        alarms += bool((compute_differences(baseline, other, paired=paired).p_corrected <= 0.05).any())
    return alarms / DRAWS


@pytest.mark.parametrize("texts", [45, 150])
@pytest.mark.parametrize("paired", [True, False])
def test_false_alarms_stay_below_alpha(texts: int, paired: bool) -> None:
    uncertainty = math.sqrt(0.05 * 0.95 / DRAWS)
    assert measure_false_alarms(texts, paired=paired, seed=texts) <= 0.05 + 2 * uncertainty


def test_pairing_finds_what_independent_errors_hide() -> None:
    random = np.random.default_rng(3)
    rate = np.full(HEADS, 0.1)
    rate[:3] = 0.16
    detections = {True: np.zeros(HEADS), False: np.zeros(HEADS)}
    for _ in range(60):
        blocks, effect = random.integers(0, 20, 100), random.standard_normal(100)
        baseline, other = draw_counts(random, blocks, effect, HEADS), draw_counts(random, blocks, effect, HEADS, rate)
        for paired, counts in detections.items():
            detections[paired] = counts + (compute_differences(baseline, other, paired=paired).p_corrected <= 0.05)[0]
    assert (detections[True][:3] >= 54).all()
    assert (detections[False][:3] < detections[True][:3]).all()
    assert detections[True][3:].sum() <= 8

"""The delete-one-block jackknife: by hand, against closed forms, and for windows of one document, which are alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.array_types import Floats, Ints
from headscope.studies.rates import MIN_BLOCKS, compute_jackknife_error, leave_out_blocks
from headscope.studies.result import Study
from tests.helpers.planted import Planted, planted
from tests.helpers.synthetic import make_random_study


def test_leaving_out_blocks() -> None:
    np.testing.assert_array_equal(leave_out_blocks(np.array([[1.0, 2], [3, 4], [5, 6]])), [[8, 10], [6, 8], [4, 6]])


def test_the_error_of_a_mean_is_the_textbook_one() -> None:
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    error = compute_jackknife_error(leave_out_blocks(values) / 9)
    assert error == pytest.approx(values.std(ddof=1) / math.sqrt(10)) == pytest.approx(math.sqrt(54.9 / 9 / 10))


def test_the_error_of_a_ratio_worked_by_hand() -> None:
    numerators, denominators = np.array([1.0] * 5 + [3.0] * 5), np.full(10, 10.0)
    # Without a block: 19/90 five times, 17/90 five times; each 1/90 from their mean.
    error = compute_jackknife_error(leave_out_blocks(numerators) / leave_out_blocks(denominators))
    assert error == pytest.approx(math.sqrt(9 / 10 * 10 / 90**2)) == pytest.approx(1 / 30)


def test_the_error_of_a_correlation_is_near_the_theoretical_one() -> None:
    random = np.random.default_rng(5)
    errors = []
    for _ in range(200):
        points = random.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], 400)
        blocks = np.arange(400) % 20
        values = [np.corrcoef(points[blocks != k].T)[0, 1] for k in range(20)]
        errors.append(compute_jackknife_error(np.array(values)))
    assert np.mean(errors) == pytest.approx((1 - 0.5**2) / math.sqrt(400), rel=0.05)


def test_no_error_where_a_value_is_missing_or_blocks_are_few() -> None:
    values = np.arange(20.0).reshape(10, 2)
    values[3, 1] = math.nan
    assert np.isnan(compute_jackknife_error(values)).tolist() == [False, True]
    for count in range(MIN_BLOCKS):
        error = compute_jackknife_error(np.arange(2.0 * count).reshape(count, 2))
        assert error.shape == (2,)
        assert np.isnan(error).all()
    assert not np.isnan(compute_jackknife_error(np.arange(float(MIN_BLOCKS))))


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=MIN_BLOCKS, max_size=20), st.floats(-100, 100), st.floats(-3, 3))
def test_the_error_shifts_and_scales(values: list[float], shift: float, scale: float) -> None:
    error = compute_jackknife_error(np.array(values))
    moved = compute_jackknife_error(np.array(values) * scale + shift)
    assert moved == pytest.approx(abs(scale) * error, rel=1e-6, abs=1e-6)
    assert compute_jackknife_error(np.array(values[::-1])) == pytest.approx(error, rel=1e-9, abs=1e-9)


# -- studies ----------------------------------------------------------------------------------------------------------


def test_empty_blocks_do_not_count() -> None:
    study = planted([Planted(swing={"equal": 0.005})], blocks=12)
    _, error = study.jackknife(lambda part: part.rate("repeat_rate").values)
    rates = np.array([0.015, 0.005] * 6)
    assert error[0, 0] == pytest.approx(rates.std(ddof=1) / math.sqrt(12), rel=1e-3)


def test_a_study_of_few_blocks_has_no_errors_and_computes_nothing_for_them() -> None:
    calls: list[Study] = []

    def measure(study: Study) -> float:
        calls.append(study)
        return 1.0

    value, error = planted([Planted()], blocks=MIN_BLOCKS - 1).jackknife(measure)
    assert (float(value), len(calls)) == (1.0, 1)
    assert math.isnan(error)
    _, error = planted([Planted()], blocks=MIN_BLOCKS).jackknife(measure)
    assert not math.isnan(error)


def test_the_error_of_a_rate_by_the_definition() -> None:
    study = make_random_study(2, texts=60)
    numerators, denominators = (study.data[f"{name}_blocks"].values for name in ("equal", "pairs"))
    used = np.flatnonzero(study.data["texts_blocks"].values)
    values = [np.delete(numerators, g, 0).sum(0) / np.delete(denominators, g, 0).sum(0) for g in used]
    expected = np.sqrt((len(used) - 1) / len(used) * ((np.array(values) - np.mean(values, axis=0)) ** 2).sum(0))
    np.testing.assert_allclose(study.standard_error("repeat_rate").values, expected)


# -- windows of one document are alike ---------------------------------------------------------------------------------

DOCUMENTS, WINDOWS, PAIRS, DRAWS = 120, 12, 30, 300
"""documents, windows of each (1 to so many), pairs of a window, corpora drawn"""


def draw_corpus(random: np.random.Generator) -> tuple[Ints, Floats]:
    """Draw the document of each window, and how many of its pairs are equal: documents differ, their windows do not."""
    documents = np.repeat(np.arange(DOCUMENTS), random.integers(1, WINDOWS + 1, DOCUMENTS))
    rates = np.clip(0.3 + 0.1 * random.standard_normal(DOCUMENTS), 0, 1)
    return documents, random.binomial(PAIRS, rates[documents]).astype(np.float64)


def measure_coverage(choose_blocks: Callable[[np.random.Generator, Ints], Ints]) -> tuple[float, float]:
    """Return the mean error over the true one, and how often 2.09 errors (Student's t, 19) hold the truth."""
    random = np.random.default_rng(11)
    rates, errors = [], []
    for _ in range(DRAWS):
        documents, equal = draw_corpus(random)
        blocks = choose_blocks(random, documents)
        numerators = np.bincount(blocks, equal, minlength=20)
        denominators = np.bincount(blocks, minlength=20) * float(PAIRS)
        rates.append(numerators.sum() / denominators.sum())
        errors.append(float(compute_jackknife_error(leave_out_blocks(numerators) / leave_out_blocks(denominators))))
    deviations = np.abs(np.array(rates) - 0.3)
    covered = float(np.mean(deviations <= 2.093 * np.array(errors)))
    return float(np.mean(errors) / np.sqrt(np.mean(deviations**2))), covered


def test_blocks_of_documents_give_right_errors() -> None:
    ratio, coverage = measure_coverage(lambda random, documents: random.integers(0, 20, DOCUMENTS)[documents])
    assert 0.9 <= ratio <= 1.1
    assert 0.92 <= coverage <= 0.98


def test_blocks_of_windows_give_errors_that_are_too_small() -> None:
    ratio, coverage = measure_coverage(lambda random, documents: random.integers(0, 20, len(documents)))
    assert ratio < 0.6
    assert coverage < 0.8

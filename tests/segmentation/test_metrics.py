"""Pk and WindowDiff: against examples by hand, published values, plain loops and other libraries; errors."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.errors import StudyError
from headscope.segmentation.metrics import choose_window, pk, window_diff

MEASURES = [pk, window_diff]


def list_boundaries(*lengths: int) -> list[int]:
    """Return the boundaries of segments of these lengths."""
    return list(accumulate(lengths))[:-1]


def parse_marks(gaps: str) -> list[int]:
    """Return the boundaries of a string with a mark for every gap, the format of nltk."""
    return [gap for gap, mark in enumerate(gaps, start=1) if mark == "1"]


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_every_probe_by_hand() -> None:
    # Segments 0 0 0 1 1 1 1 1 2 2 and 0 0 0 0 1 1 2 2 2 2; probes from 0 to 6 see sentences i and i + 3.
    #   passed, true   1 1 1 0 0 1 1       found   0 1 1 2 1 1 0   …  window 3 of n = 10
    true, claimed = [3, 8], [4, 6]
    assert choose_window(true, 10) == 2  # 10 / 3 / 2 = 1.67
    assert pk(true, claimed, 10, window=3) == pytest.approx(4 / 7)
    assert window_diff(true, claimed, 10, window=3) == pytest.approx(4 / 7)
    # With window 5 the probes 0 to 4 pass 1 1 1 1 1 and 1 2 2 2 1: all see a change, three not the same.
    assert pk(true, claimed, 10, window=5) == 0
    assert window_diff(true, claimed, 10, window=5) == pytest.approx(3 / 5)


def test_the_default_window_by_hand() -> None:
    assert choose_window([10], 20) == 5
    assert choose_window([], 20) == 10
    assert choose_window(range(1, 5), 25) == 2  # 2.5 rounds to even
    assert choose_window(range(1, 5), 35) == 4  # 3.5 rounds to even
    assert (choose_window(range(1, 20), 20), choose_window([1], 2), choose_window([], 0)) == (2, 2, 2)  # none below
    assert pk([10], [12], 20) == pk([10], [12], 20, window=5) == pytest.approx(4 / 15)


@pytest.mark.parametrize("off", [1, 2, 3])
def test_the_critique_of_pevzner_and_hearst(off: int) -> None:
    # §3: segments of twice the window, k = 4. Pk lets a false boundary near a true one pass for less than a missing
    # one, and a segment below the window's size that is passed over as well; WindowDiff treats all of them alike.
    n, k, true = 40, 4, [8, 16, 24, 32]
    probes = n - k
    for measure in MEASURES:
        assert measure(true, [8, 16, 32], n, k) * probes == pytest.approx(k)  # missed
        assert measure(true, [8, 12, 16, 24, 32], n, k) * probes == pytest.approx(k)  # false, k from all others
        assert measure(true, [8, 16, 24 + off, 32], n, k) * probes == pytest.approx(2 * off)  # near miss
    assert pk(true, [8, 8 + off, 16, 24, 32], n, k) * probes == pytest.approx(off)
    assert window_diff(true, [8, 8 + off, 16, 24, 32], n, k) * probes == pytest.approx(k)
    small = [8, 16, 16 + off, 24, 32]
    assert pk(small, true, n, k) * probes == pytest.approx(off)
    assert window_diff(small, true, n, k) * probes == pytest.approx(k)


# -- as published -----------------------------------------------------------------------------------------------------


def test_the_examples_of_nltk() -> None:
    # nltk.metrics.segmentation, doctests of pk and windowdiff, which round to two places
    true = "0100" * 100
    for claimed, expected in (("1" * 400, 0.50), ("0" * 400, 0.50), (true, 0.0)):
        assert pk(parse_marks(true), parse_marks(claimed), 401, window=2) == pytest.approx(expected, abs=0.005)
    first, second, third = "000100000010", "000010000100", "100000010000"
    for first_marks, second_marks, expected in ((first, first, 0.0), (first, second, 0.3), (second, third, 0.8)):
        assert window_diff(parse_marks(first_marks), parse_marks(second_marks), 13, window=3) == pytest.approx(expected)


# segeval 2.0.11, segeval.window.pk_test and windowdiff_test: lengths of the true and of the found segments, Pk and
# WindowDiff with its default window
SEGEVAL = [
    ((2, 2, 7), (2, 3, 6), 2 / 9, 2 / 9),
    ((13,), (4, 4, 5), 1.0, 1.0),
    ((4, 4, 5), (13,), 4 / 11, 4 / 11),
    ((4, 4, 5), (1,) * 13, 7 / 11, 1.0),
    ((1,) * 13, (4, 4, 5), 7 / 11, 1.0),
    ((5, 3, 5), (4, 4, 5), 2 / 11, 2 / 11),
    ((5, 3, 5), (5, 1, 2, 5), 1 / 11, 2 / 11),
    ((5, 1, 2, 5), (4, 4, 5), 3 / 11, 3 / 11),
    # Scaiano & Inkpen 2012, Getting more from segmentation evaluation, NAACL; by Pk from the same probes
    ((6, 6), (12,), 3 / 9, 3 / 9),
    ((6, 6), (5, 7), 2 / 9, 2 / 9),
    ((6, 6), (1, 5, 6), 1 / 9, 1 / 9),
    # Hearst 1997, the readers 1 and 2 of "Stargazers look for life", against two made up
    ((2, 3, 3, 1, 3, 6, 3), (2, 6, 4, 2, 4, 3), 0.26315789, 0.31578947),
    ((2, 3, 3, 1, 3, 6, 3), (2, 1, 1, 1, 5, 8, 2, 1), 0.36842105, 0.47368421),
    ((2, 8, 2, 4, 2, 3), (2, 6, 4, 2, 4, 3), 0.42105263, 0.42105263),
    ((2, 8, 2, 4, 2, 3), (2, 1, 1, 1, 5, 8, 2, 1), 0.42105263, 0.47368421),
]


@pytest.mark.parametrize(("true", "claimed", "by_pk", "by_window_diff"), SEGEVAL)
def test_the_examples_of_segeval(
    true: tuple[int, ...], claimed: tuple[int, ...], by_pk: float, by_window_diff: float
) -> None:
    n = sum(true)
    assert pk(list_boundaries(*true), list_boundaries(*claimed), n) == pytest.approx(by_pk, abs=1e-8)
    assert window_diff(list_boundaries(*true), list_boundaries(*claimed), n) == pytest.approx(by_window_diff, abs=1e-8)


def test_a_long_example_of_segeval() -> None:
    claimed = [2, 31, 4, 1, 1, 3, 11, 5, 21, 4, 2, 1, 17, 26, 16, 1, 17, 4, 3, 7, 7, 6, 12, 1, 6, 25, 2, 4, 3, 16, 8]
    true = [2, 36, 1, 3, 10, 1, 5, 21, 4, 3, 59, 8, 10, 4, 3, 7, 13, 12, 7, 27, 4, 3, 24]
    assert pk(list_boundaries(*true), list_boundaries(*claimed), 267) == pytest.approx(0.1532567049808429, rel=1e-12)


# -- in general -------------------------------------------------------------------------------------------------------


@st.composite
def draw_two_segmentations(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Draw a true and a claimed segmentation of n sentences, n, and a window that fits."""
    n = draw(st.integers(2, 40))
    cut = st.sets(st.integers(1, n - 1)).map(sorted)
    return draw(cut), draw(cut), n, draw(st.integers(1, n - 1))


def compute_both(true: list[int], claimed: list[int], n: int, k: int) -> tuple[float, float]:
    apart = unequal = 0
    for i in range(n - k):
        passed_true = sum(i < boundary <= i + k for boundary in true)
        passed_found = sum(i < boundary <= i + k for boundary in claimed)
        apart += (passed_true == 0) != (passed_found == 0)
        unequal += passed_true != passed_found
    return apart / (n - k), unequal / (n - k)


@settings(deadline=None)
@given(draw_two_segmentations())
def test_as_a_plain_loop_has_it(case: tuple[list[int], list[int], int, int]) -> None:
    true, claimed, n, k = case
    assert (pk(true, claimed, n, k), window_diff(true, claimed, n, k)) == pytest.approx(
        compute_both(true, claimed, n, k)
    )
    half = max(round(Fraction(n, 2 * len(true) + 2)), 2)
    assert choose_window(true, n) == half
    if half < n:
        assert (pk(true, claimed, n), window_diff(true, claimed, n)) == pytest.approx(
            compute_both(true, claimed, n, half)
        )


@settings(deadline=None)
@given(draw_two_segmentations())
def test_what_always_holds(case: tuple[list[int], list[int], int, int]) -> None:
    true, claimed, n, k = case
    for measure in MEASURES:
        assert measure(true, true, n) == measure(true, true, n, k) == 0
        assert 0 <= measure(true, claimed, n, k) <= 1
        assert 0 <= measure(true, claimed, n) <= 1
        assert measure(true, claimed, n, k) == measure(claimed, true, n, k)
        backwards = [[n - boundary for boundary in reversed(boundaries)] for boundaries in (true, claimed)]
        assert measure(*backwards, n, k) == measure(true, claimed, n, k)
        assert measure(np.array(true, dtype=np.int32), tuple(claimed), n, k) == measure(true, claimed, n, k)
    assert window_diff(true, claimed, n, k) >= pk(true, claimed, n, k)
    assert (window_diff(true, claimed, n, 1) == 0) == (true == claimed)


@settings(deadline=None, max_examples=200)
@given(draw_two_segmentations())
def test_as_nltk_has_it(case: tuple[list[int], list[int], int, int]) -> None:
    other = pytest.importorskip("nltk.metrics.segmentation")
    true, claimed, n, k = case
    gaps = ["".join("01"[gap in boundaries] for gap in range(1, n)) for boundaries in (true, claimed)]
    assert pk(true, claimed, n, k) == pytest.approx(other.pk(*gaps, k))
    assert window_diff(true, claimed, n, k) == pytest.approx(other.windowdiff(*gaps, k))


@settings(deadline=None, max_examples=200)
@given(draw_two_segmentations())
def test_as_segeval_has_it(case: tuple[list[int], list[int], int, int]) -> None:
    segeval = pytest.importorskip("segeval")
    true, claimed, n, k = case
    # segeval takes the true segmentation second.
    lengths = [tuple(np.diff([0, *boundaries, n]).tolist()) for boundaries in (claimed, true)]
    for measure, other in ((pk, segeval.pk), (window_diff, segeval.window_diff)):
        assert measure(true, claimed, n, k) == pytest.approx(float(other(*lengths, window_size=k)))
        if n > 2:
            assert measure(true, claimed, n) == pytest.approx(float(other(*lengths)))


# -- short and wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
def test_texts_too_short_for_the_window(measure) -> None:  # type: ignore[no-untyped-def]
    assert measure([], [], 0) == measure([], [], 1) == measure([], [], 2) == measure([1], [1], 2) == 0
    assert measure([1], [], 2) == measure([], [1], 2) == 1
    assert measure([2], [2], 5, window=5) == 0
    assert measure([2], [3], 5, window=5) == measure([2], [3], 5, window=99) == 1
    assert measure([2], [3], 5, window=4) == 0  # one probe, from the first to the last, which fits


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("true", "claimed", "n", "window", "message"),
    [
        ([3, 2], [], 9, None, "reference: boundary 2 at position 1 stands after 3; boundaries must rise"),
        ([], [1, 4, 4], 9, None, "found: boundary 4 at position 2 is there twice"),
        ([0], [], 9, None, "reference: boundary 0 at position 0 is outside the text: .* 1 to 8 of 9"),
        ([], [3, 9], 9, None, "found: boundary 9 at position 1 is outside"),
        ([], [-1], 9, None, "found: boundary -1 at position 0 is outside"),
        ([1], [], 1, None, "reference: boundary 1 at position 0 is outside"),
        ([2.0], [], 9, None, "reference: boundary 2.0 at position 0 is not a whole number"),
        ([], [True], 9, None, "found: boundary True at position 0 is not a whole number"),
        ([2], [2], 9, 0, "a window of 0 sentences"),
        ([], [], -1, None, "a text of -1 sentences"),
    ],
)
def test_what_is_no_segmentation(measure, true, claimed, n, window, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StudyError, match=message):
        measure(true, claimed, n, window)
    with pytest.raises(StudyError):  # also where the text is too short for the window
        measure(true, claimed, n, window if window == 0 else 50)

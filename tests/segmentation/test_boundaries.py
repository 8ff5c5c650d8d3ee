"""The segmentation by dynamic programming, against plain loops and all possible segmentations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

import numpy as np
import pytest

from headscope.array_types import Floats
from headscope.segmentation import boundaries as boundary_search


def make_vectors(n: int, seed: int, *, width: int = 4, subjects: int = 0) -> Floats:
    """Return random vectors of length 1; with subjects, each is near the vector of its part of the sequence."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(n, width))
    if subjects:
        vectors += 3 * random.normal(size=(subjects, width))[np.arange(n) * subjects // n]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def compute_worth(vectors: Floats, a: int, b: int) -> float:
    total = 0.0
    for i in range(a, b):
        for j in range(a, b):
            total += float(vectors[i].astype(np.float64) @ vectors[j].astype(np.float64))
    return total / (b - a + boundary_search.RHO)


def compute_price(length: int, granularity: float = 1.0) -> float:
    return float(
        (boundary_search.COST + boundary_search.NOISE * np.log(1 + length / boundary_search.RHO)) / granularity
    )


def list_cuts(n: int, count: int | None, band: int) -> Iterator[tuple[int, ...]]:
    for k in range(n) if count is None else [count - 1]:
        for boundaries in combinations(range(1, n), k):
            if max(np.diff([0, *boundaries, n])) <= band:
                yield boundaries


def compute_net(vectors: Floats, boundaries: tuple[int, ...], granularity: float) -> float:
    parts = pairwise([0, *boundaries, len(vectors)])
    return sum(compute_worth(vectors, a, b) - compute_price(b - a, granularity) for a, b in parts)


@pytest.mark.parametrize(("n", "band"), [(1, 1), (2, 2), (7, 7), (9, 4), (9, 1), (12, 11)])
def test_worths_are_sums_over_k(n: int, band: int):
    vectors = make_vectors(n, n + band)
    worth = boundary_search.compute_worths(vectors, band)
    assert worth.shape == (band, n + 1)
    for b in range(n + 1):
        for length in range(1, band + 1):
            if length > b:
                assert worth[length - 1, b] == -np.inf
            else:
                assert worth[length - 1, b] == pytest.approx(compute_worth(vectors, b - length, b), abs=1e-5)


def test_prices_by_hand():
    np.testing.assert_allclose(
        boundary_search.compute_prices(5, 2.0), [compute_price(length, 2.0) for length in range(1, 6)]
    )
    np.testing.assert_allclose(boundary_search.compute_prices(5), [compute_price(length) for length in range(1, 6)])
    # The cost of a boundary is positive for segments of any length: strengths divide by it.
    price = boundary_search.compute_prices(300)
    assert all(price[a - 1] + price[b - 1] - price[a + b - 1] > 0 for a in (1, 7, 150) for b in (1, 20, 150))


@pytest.mark.parametrize("granularity", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(("n", "subjects", "seed"), [(1, 0, 0), (2, 2, 1), (5, 2, 2), (8, 3, 3), (9, 0, 4), (9, 4, 5)])
def test_the_free_cut_is_the_best_of_all(n: int, subjects: int, seed: int, granularity: float):
    vectors = make_vectors(n, seed, subjects=subjects)
    for band in sorted({n, max(1, n // 2)}):
        boundaries = boundary_search.cut(
            boundary_search.compute_worths(vectors, band), boundary_search.compute_prices(band, granularity)
        )
        best = max(compute_net(vectors, option, granularity) for option in list_cuts(n, None, band))
        assert boundaries.dtype == np.int64
        assert tuple(boundaries) in set(list_cuts(n, None, band))
        assert compute_net(vectors, tuple(boundaries), granularity) == pytest.approx(best, abs=1e-5)


def test_a_free_cut_finds_what_was_planted():
    """Without such a case the comparison with all segmentations could pass without any boundary."""
    vectors = np.repeat(np.eye(3, dtype=np.float32), [4, 6, 5], axis=0)
    assert boundary_search.cut(
        boundary_search.compute_worths(vectors, 15), boundary_search.compute_prices(15)
    ).tolist() == [4, 10]
    alike = np.ones((15, 1), dtype=np.float32)
    assert (
        boundary_search.cut(boundary_search.compute_worths(alike, 15), boundary_search.compute_prices(15)).tolist()
        == []
    )


@pytest.mark.parametrize("granularity", [0.5, 3.0])
@pytest.mark.parametrize(("n", "seed"), [(1, 0), (4, 1), (8, 2), (9, 3)])
def test_a_known_count_is_the_best_of_that_count(n: int, seed: int, granularity: float):
    vectors = make_vectors(n, seed, subjects=min(n, 3))
    for count in range(1, n + 1):
        for band in sorted({n, -(-n // count), min(n, -(-n // count) + 1)}):
            boundaries = boundary_search.cut(
                boundary_search.compute_worths(vectors, band),
                boundary_search.compute_prices(band, granularity),
                count,
            )
            options = list(list_cuts(n, count, band))
            assert tuple(boundaries) in options
            best = max(compute_net(vectors, option, granularity) for option in options)
            assert compute_net(vectors, tuple(boundaries), granularity) == pytest.approx(best, abs=1e-5)


def test_every_count_is_honoured():
    n = 40
    vectors = make_vectors(n, 6, subjects=5)
    for count in range(1, n + 1):
        band = boundary_search.choose_band(n, count)
        boundaries = boundary_search.cut(
            boundary_search.compute_worths(vectors, band), boundary_search.compute_prices(band), count
        )
        assert len(boundaries) == count - 1
        assert (np.diff([0, *boundaries, n]) > 0).all()


@pytest.mark.parametrize("n", [1, 200, 1000, 5000])
def test_the_band_leaves_room_for_every_count(n: int):
    assert boundary_search.choose_band(n) == min(n, boundary_search.BAND)
    for count in {1, 2, 3, 10, n // 2 or 1, n}:
        band = boundary_search.choose_band(n, count)
        assert 1 <= band <= n
        assert band * count >= n
    assert boundary_search.choose_band(n, 1) == n


def test_a_long_row_has_no_segment_beyond_the_band():
    n = 700
    vectors = np.ones((n, 1), dtype=np.float32)
    band = boundary_search.choose_band(n)
    boundaries = boundary_search.cut(
        boundary_search.compute_worths(vectors, band), boundary_search.compute_prices(band)
    )
    assert max(np.diff([0, *boundaries, n])) <= boundary_search.BAND
    two = boundary_search.choose_band(n, 2)
    assert (
        len(boundary_search.cut(boundary_search.compute_worths(vectors, two), boundary_search.compute_prices(two), 2))
        == 1
    )


def test_strengths_by_hand():
    vectors = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    worth, price = boundary_search.compute_worths(vectors, 3), boundary_search.compute_prices(3)
    rho = boundary_search.RHO
    worth_1, worth_2 = 1 / (1 + rho), 4 / (2 + rho)
    mixed, worth_3 = 2 / (2 + rho), 5 / (3 + rho)
    p1, p2, p3 = (compute_price(length) for length in (1, 2, 3))
    cost = p1 + p2 - p3
    # Without boundaries both gaps are judged within the whole; with one at 2, gap 1 within the first two pieces.
    np.testing.assert_allclose(
        boundary_search.compute_strengths(worth, price, np.array([], dtype=np.int64)),
        [(worth_1 + mixed - worth_3) / cost, (worth_2 + worth_1 - worth_3) / cost],
    )
    np.testing.assert_allclose(
        boundary_search.compute_strengths(worth, price, np.array([2])),
        [(2 * worth_1 - worth_2) / (2 * p1 - p2), (worth_2 + worth_1 - worth_3) / cost],
    )
    np.testing.assert_allclose(
        boundary_search.compute_strengths(worth, price, np.array([1, 2])),
        [(2 * worth_1 - worth_2) / (2 * p1 - p2), (2 * worth_1 - mixed) / (2 * p1 - p2)],
    )
    double = boundary_search.compute_strengths(worth, boundary_search.compute_prices(3, 2.0), np.array([2]))
    np.testing.assert_allclose(double, 2 * boundary_search.compute_strengths(worth, price, np.array([2])))


def test_strengths_say_what_was_cut():
    cuts, others = 0, 0
    for seed in range(12):
        n = 6 + 3 * seed
        vectors = make_vectors(n, seed, subjects=1 + seed % 5, width=6)
        for granularity in (0.5, 1.0, 4.0):
            worth, price = (
                boundary_search.compute_worths(vectors, n),
                boundary_search.compute_prices(n, granularity),
            )
            boundaries = boundary_search.cut(worth, price)
            strengths = boundary_search.compute_strengths(worth, price, boundaries)
            assert strengths.shape == (n - 1,)
            there = np.isin(np.arange(1, n), boundaries)
            assert (strengths[there] >= 1 - 1e-9).all()
            assert (strengths[~there] <= 1 + 1e-9).all()
            cuts, others = cuts + there.sum(), others + (~there).sum()
    assert min(cuts, others) > 20


def test_strengths_where_the_band_is_shorter_than_what_was_joined():
    vectors = make_vectors(30, 8, subjects=3)
    band = 10
    worth, price = boundary_search.compute_worths(vectors, band), boundary_search.compute_prices(band)
    boundaries = np.array([10, 20])
    strengths = boundary_search.compute_strengths(worth, price, boundaries)
    assert np.isfinite(strengths).all()
    # Only as much of the text around the boundary as the band is long: five pieces on each side.
    gain = compute_worth(vectors, 5, 10) + compute_worth(vectors, 10, 15) - compute_worth(vectors, 5, 15)
    expected = gain / (2 * compute_price(5) - compute_price(10))
    assert strengths[9] == pytest.approx(expected, rel=1e-4)
    # Near an end there are fewer pieces on one side, and more of the other are considered.
    uneven = boundary_search.compute_strengths(worth, price, np.array([2, 12, 20]))
    gain = compute_worth(vectors, 0, 2) + compute_worth(vectors, 2, 10) - compute_worth(vectors, 0, 10)
    assert uneven[1] == pytest.approx(gain / (compute_price(2) + compute_price(8) - compute_price(10)), rel=1e-4)
    for side in (1, 3):
        narrow = boundary_search.compute_strengths(
            boundary_search.compute_worths(vectors, side + 1),
            boundary_search.compute_prices(side + 1),
            np.arange(1, 30),
        )
        assert np.isfinite(narrow).all()


def test_more_granularity_never_cuts_less():
    grew = 0
    for seed in range(8):
        vectors = make_vectors(40, seed, subjects=6, width=8)
        worth = boundary_search.compute_worths(vectors, 40)
        counts = [
            len(boundary_search.cut(worth, boundary_search.compute_prices(40, g)))
            for g in (0.01, 0.25, 0.5, 1, 1.5, 2, 4, 20, 100)
        ]
        assert counts == sorted(counts)
        assert counts[0] == 0
        grew += counts[-1] > counts[2]
    assert grew >= 4


def test_one_piece():
    worth, price = boundary_search.compute_worths(make_vectors(1, 0), 1), boundary_search.compute_prices(1)
    for count in (None, 1):
        boundaries = boundary_search.cut(worth, price, count)
        assert boundaries.tolist() == []
        assert boundary_search.compute_strengths(worth, price, boundaries).shape == (0,)


def test_pieces_without_any_vector_do_not_fail():
    worth, price = (
        boundary_search.compute_worths(np.zeros((5, 3), dtype=np.float32), 5),
        boundary_search.compute_prices(5),
    )
    assert boundary_search.cut(worth, price).tolist() == []
    assert len(boundary_search.cut(worth, price, 3)) == 2

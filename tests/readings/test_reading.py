"""Readings: matrices, pairs, lines, blocks and regions of a text, against examples by hand and plain loops.

    position   0      1   2   3   4
    token     [CLS]   a   .   a  [SEP]
    id          1     7   4   7   2

Outputs of head 0: (1,0) (2,0) (0,1) (2,1) (0,−1):
    C01 = 2   C02 = 0   C03 = 2   C04 = 0   C12 = 0   C13 = 4   C14 = 0   C23 = 1   C24 = −1   C34 = −1
    max(C) = 4, θ = 0.3: high are those above 1.2: (0,1), (0,3), (1,3). The value 7 is in all three.
Outputs of head 1: (0,1) (0,0) (0,2) (0,0) (0,1):  C02 = 2   C04 = 1   C24 = 2, all others 0.
    max(C) = 2, high above 0.6: (0,2), (0,4), (2,4). The values 1, 4 and 2 are in two each; 1 is met first.
Their sum: C01 = 2   C02 = 2   C03 = 2   C04 = 1   C13 = 4   C23 = 1   C24 = 1   C34 = −1, others 0.
    max 4, high above 1.2: (0,1), (0,2), (0,3), (1,3).

Attention of head 0                   of head 1
    1    0    0    0    0             .25  0    0    0    .75
    .5   .5   0    0    0             0    .25  0    0    .75
    .5   0    .5   0    0             0    0    .25  0    .75
    .5   0    .25  .25  0             0    0    0    .25  .75
    .5   0    0    0    .5            0    0    0    0    1
column sums 3, .5, .75, .25, .5       .25 .25 .25 .25 4        together 3.25, .75, 1, .5, 4.5
over the largest: 1, 1/6, 1/4, 1/12, 1/6; 1/16, 1/16, 1/16, 1/16, 1; and 13/18, 1/6, 2/9, 1/9, 1.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headscope import Reading, similarity
from tests.helpers.example_reading import HEADS, IDS, MAPS, SPECIAL, TOKENS, make_reading


@pytest.fixture(scope="module")
def example() -> Reading:
    return make_reading(HEADS, MAPS, ids=IDS, special=SPECIAL)


def list_indices(table: Any) -> list[tuple[int, int]]:
    return list(zip(table["index_i"].tolist(), table["index_j"].tolist(), strict=True))


# Examples by hand


def test_matrices_worked_out(example: Reading):
    first = [[0, 2, 0, 2, 0], [2, 0, 0, 4, 0], [0, 0, 0, 1, -1], [2, 4, 1, 0, -1], [0, 0, -1, -1, 0]]
    second = [[0, 0, 2, 0, 1], [0, 0, 0, 0, 0], [2, 0, 0, 0, 2], [0, 0, 0, 0, 0], [1, 0, 2, 0, 0]]
    assert example.matrix(0, 0).values.tolist() == first
    assert example.matrix(0, 1).values.tolist() == second
    assert example.matrix(0, "sum").values.tolist() == (np.array(first) + second).tolist()
    assert example.similarity.values.tolist() == [[first, second]]


def test_pairs_in_the_papers_form(example: Reading):
    table = example.pairs(0, 0)
    assert list(table.columns) == ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
    assert table.values.tolist() == [
        ["[CLS]", "a", 0, 1, 2.0, 0.5],
        ["[CLS]", "a", 0, 3, 2.0, 0.5],
        ["a", "a", 1, 3, 4.0, 1.0],
    ]


def test_pairs_of_the_other_head_and_of_the_sum(example: Reading):
    assert list_indices(example.pairs(0, 1)) == [(0, 2), (0, 4), (2, 4)]
    assert example.pairs(0, 1)["relative"].tolist() == [1, 0.5, 1]
    assert list_indices(example.pairs(0, "sum")) == [(0, 1), (0, 2), (0, 3), (1, 3)]
    assert example.pairs(0, "sum")["value"].tolist() == [2, 2, 2, 4]


@pytest.mark.parametrize(
    ("head", "theta", "expected"),
    [
        (0, 0.5, [(1, 3)]),  # 2 of 4 is not above half of the largest
        (0, 0.499, [(0, 1), (0, 3), (1, 3)]),
        (0, 0.25, [(0, 1), (0, 3), (1, 3)]),
        (0, 0.249, [(0, 1), (0, 3), (1, 3), (2, 3)]),
        (0, 0, [(0, 1), (0, 3), (1, 3), (2, 3)]),
        (0, 0.999, [(1, 3)]),
        (1, 0.5, [(0, 2), (2, 4)]),
    ],
)
def test_theta_is_strict(example: Reading, head: int, theta: float, expected: list[tuple[int, int]]):
    assert list_indices(example.pairs(0, head, theta)) == expected


def test_the_readings_own_theta_is_used_where_none_is_named():
    halved = make_reading(HEADS, MAPS, theta=0.5, tau=0.2)
    assert (halved.theta, halved.tau) == (0.5, 0.2)
    assert list_indices(halved.pairs(0, 0)) == [(1, 3)]
    assert halved.dominant(0, 0)["pairs"].tolist() == [1]
    assert halved.lines(0, 0)["index"].tolist() == [0, 2]


@pytest.mark.parametrize("theta", [0, 0.3, 0.9])
@pytest.mark.parametrize("outputs", [[[1], [-1]], [[0], [0]], [[1], [-2], [0]]])
def test_no_pairs_where_the_largest_is_not_above_zero(outputs: list[list[float]], theta: float):
    empty = make_reading([outputs])
    assert len(empty.pairs(0, 0, theta)) == len(empty.pairs(theta=theta)) == 0
    assert empty.dominant(theta=theta).values.tolist()[0][:6] == ["L0H0", 0, 0, "", -1, 0]
    assert np.isnan(empty.dominant()["share"][0])
    assert list(empty.pairs(0, 0).columns) == ["token_i", "token_j", "index_i", "index_j", "value", "relative"]


def test_dominant_worked_out(example: Reading):
    assert example.dominant().values.tolist() == [
        ["L0H0", 0, 0, "a", 7, 3, 1.0],
        ["L0H1", 0, 1, "[CLS]", 1, 3, 2 / 3],
    ]
    # The sum's pairs 01 02 03 13: 0 is in three, 7 in 01, 03 and, once, in 13: three each, and [CLS] is met first.
    assert example.dominant(0, "sum").values.tolist() == [["L0sum", 0, "sum", "[CLS]", 1, 4, 0.75]]


def test_the_dominant_token_goes_by_its_id_and_bears_its_first_label():
    reading = make_reading([[[1]] * 3], tokens=["The", "cat", "the"], ids=[5, 6, 5])
    assert reading.dominant().values.tolist() == [["L0H0", 0, 0, "The", 5, 3, 1.0]]
    assert make_reading([[[1]] * 3], tokens=["The", "cat", "the"]).dominant()["share"].tolist() == [2 / 3]


@pytest.mark.parametrize(
    ("head", "tau", "index", "received"),
    [
        (0, 0.3, [0], [1]),
        (0, 0.2, [0, 2], [1, 1 / 4]),
        (0, 0.25, [0], [1]),  # above τ, not equal to it
        (1, 0.3, [4], [1]),
        (1, 0.05, [0, 1, 2, 3, 4], [1 / 16, 1 / 16, 1 / 16, 1 / 16, 1]),
        ("sum", 0.3, [0, 4], [13 / 18, 1]),
        ("sum", 0.2, [0, 2, 4], [13 / 18, 2 / 9, 1]),
    ],
)
def test_lines_worked_out(example: Reading, head: Any, tau: float, index: list[int], received: list[float]):
    table = example.lines(0, head, tau)
    assert table["index"].tolist() == index
    assert table["token"].tolist() == [TOKENS[k] for k in index]
    np.testing.assert_allclose(table["received"], received)


def test_lines_are_the_layers_where_no_head_is_named(example: Reading):
    assert example.lines(0)["index"].tolist() == [0, 4]
    assert example.blocks(0)["stop"].tolist() == [1, 5]


@pytest.mark.parametrize(
    ("head", "tau", "blocks"),
    [
        (0, 0.3, ["[CLS]", "a . a [SEP]"]),  # a line on the first token
        (0, 0.2, ["[CLS]", "a .", "a [SEP]"]),
        (1, 0.3, ["[CLS] a . a [SEP]"]),  # on the last: it closes the last block, and opens none
        (1, 0.05, ["[CLS]", "a", ".", "a", "[SEP]"]),
        ("sum", 0.2, ["[CLS]", "a .", "a [SEP]"]),
    ],
)
def test_a_line_closes_its_block(example: Reading, head: Any, tau: float, blocks: list[str]):
    table = example.blocks(0, head, tau)
    assert table["tokens"].tolist() == blocks
    assert table["start"].tolist() == [0, *table["stop"].tolist()[:-1]]
    assert table["stop"].iloc[-1] == 5


def test_region_means_worked_out(example: Reading):
    # Blocks {0}, {1,2}, {3,4}: (2+0)/2, (2+0)/2; C12; (4+0+1−1)/4; C34 alone, the diagonal being no part of it.
    regions = example.regions(0, 0, 0.2)
    np.testing.assert_array_equal(regions.values, [[np.nan, 1, 1], [1, 0, 1], [1, 1, -1]])
    assert regions.dims == ("block_i", "block_j")
    assert regions["start_i"].values.tolist() == regions["start_j"].values.tolist() == [0, 1, 3]
    # One block: 2·(2+1+2) over the twenty elements off the diagonal.
    assert example.regions(0, 1).values.tolist() == [[0.5]]


def test_regions_by_the_lines_of_another_map(example: Reading):
    # Lines of the layer at τ = 0.3: 0 and 4, blocks {0}, {1,2,3,4}; head 1: (0+2+0+1)/4, and 2·2 over twelve.
    np.testing.assert_allclose(example.regions(0, 1, lines_of="sum").values, [[np.nan, 0.75], [0.75, 1 / 3]])
    np.testing.assert_allclose(example.regions(0, 1, lines_of=0).values, [[np.nan, 0.75], [0.75, 1 / 3]])
    assert example.regions(0, "sum", 0.05).shape == (5, 5)
    assert np.isnan(np.diag(example.regions(0, 1, 0.05))).all()


def test_special_tokens_are_left_out_without_changing_the_others(example: Reading):
    assert list_indices(example.pairs(0, 0, special=False)) == [(1, 3)]
    assert example.pairs(0, 0, special=False)["relative"].tolist() == [1.0]
    assert len(example.pairs(0, 1, special=False)) == 0
    # The largest is still that of all tokens, the special ones' 9: to it (2,3) is not high, though alone it would be.
    high = make_reading([[[3], [3], [1], [1]]], tokens=["[CLS]", "[SEP]", "a", "b"], special=[1, 1, 0, 0])
    assert list_indices(high.pairs(0, 0, special=False)) == []


def test_words_worked_out():
    # C01 = 2, C02 = 6, C03 = 2, C12 = 3, C13 = 1, C23 = 3; max 6, θ = 0.3: above 1.8.
    tokens, outputs = ["port", "air", "##port", "."], [[2], [1], [3], [1]]
    reading = make_reading([outputs], tokens=tokens)
    assert list_indices(reading.pairs(0, 0)) == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    # port–airport is the better of 2 and 6, airport–. of 1 and 3; within airport there is no pair.
    assert reading.pairs(0, 0, words=True).values.tolist() == [
        ["port", "airport", 0, 1, 6.0, 1.0],
        ["port", ".", 0, 3, 2.0, 1 / 3],
        ["airport", ".", 1, 3, 3.0, 0.5],
    ]
    assert reading.word_labels().tolist() == ["port", "airport", "."]


def test_values_are_relative_to_the_largest_not_to_the_strongest():
    # C01 = −9, C02 = 3, C12 = −3.
    opposed = make_reading([[[3], [-3], [1]]])
    assert opposed.pairs(0, 0, 0.9).values.tolist() == [["[CLS]", ".", 0, 2, 3.0, 1.0]]


def test_special_words_are_left_out():
    tokens, special = ["[CLS]", "air", "##port", "[SEP]", "a"], [1, 0, 0, 1, 0]
    reading = make_reading([[[1]] * 5], tokens=tokens, special=special)
    assert list_indices(reading.pairs(0, 0, words=True)) == [(0, 1), (0, 3), (0, 4), (1, 3), (1, 4), (3, 4)]
    assert reading.pairs(0, 0, special=False, words=True).values.tolist() == [["airport", "a", 1, 4, 1.0, 1.0]]


def test_the_largest_may_lie_within_a_word():
    # C12 = 9 is within the word: it is no pair of words, but still what the others are measured by.
    inner = make_reading([[[1], [3], [3]]], tokens=["a", "b", "##c"])
    assert inner.pairs(0, 0, words=True)["relative"].tolist() == [1 / 3]
    assert len(inner.pairs(0, 0, 0.4, words=True)) == 0


# Against plain loops


MATRICES = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        arrays(np.int64, (n, n), elements=st.integers(-9, 9)), st.lists(st.booleans(), min_size=n, max_size=n)
    )
)
"""a matrix of integers, whose sums are exact, and a flag for each position"""


def make_symmetric(numbers: np.ndarray) -> np.ndarray:
    matrix = np.triu(numbers, 1).astype(float)
    return matrix + matrix.T


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_blocks_by_a_loop(drawn: tuple[np.ndarray, list[bool]]):
    _, marked = drawn
    expected: list[list[int]] = [[]]
    for k, line in enumerate(marked):
        expected[-1].append(k)
        if line and k + 1 < len(marked):
            expected.append([])
    assert [list(block) for block in similarity.cut_blocks(np.array(marked))] == expected


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_regions_by_a_loop(drawn: tuple[np.ndarray, list[bool]]):
    numbers, marked = drawn
    matrix, blocks = make_symmetric(numbers), similarity.cut_blocks(np.array(marked))
    regions = similarity.average_regions(matrix, blocks)
    for a, rows in enumerate(blocks):
        for b, columns in enumerate(blocks):
            values = [matrix[i, j] for i in rows for j in columns if i != j]
            np.testing.assert_allclose(regions[a, b], np.mean(values) if values else np.nan)


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_joined_by_a_loop(drawn: tuple[np.ndarray, list[bool]]):
    numbers, starts = drawn
    words = np.cumsum([False, *starts[1:]])
    matrix, count = make_symmetric(numbers), int(words[-1]) + 1
    expected = np.zeros((count, count))
    for a in range(count):
        for b in set(range(count)) - {a}:
            expected[a, b] = max(matrix[i, j] for i in np.flatnonzero(words == a) for j in np.flatnonzero(words == b))
    assert similarity.join_words(matrix, words).tolist() == expected.tolist()


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_dominant_by_counting(drawn: tuple[np.ndarray, list[bool]]):
    numbers, _ = drawn
    ids, pairs = np.diag(numbers) % 3, similarity.list_pairs(numbers > 3)
    counts = Counter(value for i, j in pairs for value in {ids[i], ids[j]})
    most = max(counts.values(), default=0)
    expected = next(((int(k), most) for k in ids if counts[k] == most), None) if pairs else None
    assert similarity.find_dominant(pairs, ids) == expected


@given(
    st.integers(2, 9).flatmap(
        lambda n: st.tuples(
            arrays(np.int64, (2, n, 2), elements=st.integers(-3, 3)), st.lists(st.booleans(), min_size=n, max_size=n)
        )
    ),
    st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.8]),
    st.sampled_from([0, 1, "sum"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_word_pairs_are_token_pairs_between_words(drawn: tuple[np.ndarray, list[bool]], theta: float, head: Any):
    heads, starts = drawn
    tokens = [f"t{k}" if start or k == 0 else f"##t{k}" for k, start in enumerate(starts)]
    random = make_reading(heads, tokens=tokens)
    words = random.tokens["word"].values
    best: dict[tuple[int, int], float] = {}
    for row in random.pairs(0, head, theta).itertuples():
        a, b = words[row.index_i], words[row.index_j]
        if a != b:
            best[a, b] = max(best.get((a, b), -np.inf), row.value)
    word_pairs = random.pairs(0, head, theta, words=True)
    first_tokens = [int(np.flatnonzero(words == k)[0]) for k in range(words[-1] + 1)]
    assert list_indices(word_pairs) == [(first_tokens[a], first_tokens[b]) for a, b in sorted(best)]
    assert word_pairs["value"].tolist() == [best[key] for key in sorted(best)]
    labels = random.word_labels()
    assert word_pairs["token_i"].tolist() == [labels[a] for a, _ in sorted(best)]

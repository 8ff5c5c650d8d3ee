"""Readings: one text's matrices, pairs, lines, blocks and regions, worked out on paper and checked against plain loops.

    position   0      1   2   3   4
    token     [CLS]   a   .   a  [SEP]
    id          1     7   4   7   2

Head 0 writes (1,0) (2,0) (0,1) (2,1) (0,−1):
    C01 = 2   C02 = 0   C03 = 2   C04 = 0   C12 = 0   C13 = 4   C14 = 0   C23 = 1   C24 = −1   C34 = −1
    max(C) = 4, θ = 0.3: high are those above 1.2: (0,1), (0,3), (1,3). The value 7 is in all three.
Head 1 writes (0,1) (0,0) (0,2) (0,0) (0,1):  C02 = 2   C04 = 1   C24 = 2, all others 0.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokenizers import processors
from transformers import PreTrainedTokenizer

import headscope
from headscope import Reading, similarity
from headscope.corpus.bundled import openings
from headscope.errors import CorpusError, HeadscopeError, ModelError, ReadingError, StudyError
from headscope.model.loading import load
from headscope.model.model import Model
from tests import tiny

TOKENS = ["[CLS]", "a", ".", "a", "[SEP]"]
IDS = [1, 7, 4, 7, 2]
SPECIAL = [True, False, False, False, True]
HEADS = [[[1, 0], [2, 0], [0, 1], [2, 1], [0, -1]], [[0, 1], [0, 0], [0, 2], [0, 0], [0, 1]]]
MAPS = [
    [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0, 0.25, 0.25, 0], [0.5, 0, 0, 0, 0.5]],
    [[0.25, 0, 0, 0, 0.75], [0, 0.25, 0, 0, 0.75], [0, 0, 0.25, 0, 0.75], [0, 0, 0, 0.25, 0.75], [0, 0, 0, 0, 1]],
]
TEXT = "the cat sat. the dog ran, the owl!"


@pytest.fixture(scope="module")
def worked() -> Reading:
    return made(HEADS, MAPS, ids=IDS, special=SPECIAL)


@pytest.fixture(scope="module")
def bert() -> Model:
    return tiny.model("bert")


@pytest.fixture(scope="module")
def reading(bert: Model) -> Reading:
    return headscope.read(bert, TEXT, length=40)


def made(heads: Any, maps: Any = None, tokens: list[str] | None = None, **options: Any) -> Reading:
    """A reading of one layer, from what each head writes."""
    outputs = np.array(heads, dtype=float).transpose(1, 0, 2)[None]
    names = TOKENS[: outputs.shape[1]] if tokens is None else tokens
    return Reading.from_arrays(names, outputs, None if maps is None else np.array(maps)[None], **options)


def indices(table: Any) -> list[tuple[int, int]]:
    return list(zip(table["index_i"].tolist(), table["index_j"].tolist(), strict=True))


# Worked out on paper


def test_matrices_worked_out(worked: Reading):
    first = [[0, 2, 0, 2, 0], [2, 0, 0, 4, 0], [0, 0, 0, 1, -1], [2, 4, 1, 0, -1], [0, 0, -1, -1, 0]]
    second = [[0, 0, 2, 0, 1], [0, 0, 0, 0, 0], [2, 0, 0, 0, 2], [0, 0, 0, 0, 0], [1, 0, 2, 0, 0]]
    assert worked.matrix(0, 0).values.tolist() == first
    assert worked.matrix(0, 1).values.tolist() == second
    assert worked.matrix(0, "sum").values.tolist() == (np.array(first) + second).tolist()
    assert worked.similarity.values.tolist() == [[first, second]]


def test_pairs_in_the_papers_form(worked: Reading):
    table = worked.pairs(0, 0)
    assert list(table.columns) == ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
    assert table.values.tolist() == [
        ["[CLS]", "a", 0, 1, 2.0, 0.5],
        ["[CLS]", "a", 0, 3, 2.0, 0.5],
        ["a", "a", 1, 3, 4.0, 1.0],
    ]


def test_pairs_of_the_other_head_and_of_the_sum(worked: Reading):
    assert indices(worked.pairs(0, 1)) == [(0, 2), (0, 4), (2, 4)]
    assert worked.pairs(0, 1)["relative"].tolist() == [1, 0.5, 1]
    assert indices(worked.pairs(0, "sum")) == [(0, 1), (0, 2), (0, 3), (1, 3)]
    assert worked.pairs(0, "sum")["value"].tolist() == [2, 2, 2, 4]


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
def test_theta_is_strict(worked: Reading, head: int, theta: float, expected: list[tuple[int, int]]):
    assert indices(worked.pairs(0, head, theta)) == expected


def test_the_readings_own_theta_is_used_where_none_is_named():
    halved = made(HEADS, MAPS, theta=0.5, tau=0.2)
    assert (halved.theta, halved.tau) == (0.5, 0.2)
    assert indices(halved.pairs(0, 0)) == [(1, 3)]
    assert halved.dominant(0, 0)["pairs"].tolist() == [1]
    assert halved.lines(0, 0)["index"].tolist() == [0, 2]


@pytest.mark.parametrize("theta", [0, 0.3, 0.9])
@pytest.mark.parametrize("written", [[[1], [-1]], [[0], [0]], [[1], [-2], [0]]])
def test_no_pairs_where_the_largest_is_not_above_zero(written: list[list[float]], theta: float):
    empty = made([written])
    assert len(empty.pairs(0, 0, theta)) == len(empty.pairs(theta=theta)) == 0
    assert empty.dominant(theta=theta).values.tolist()[0][:5] == [0, 0, "", -1, 0]
    assert np.isnan(empty.dominant()["share"][0])
    assert list(empty.pairs(0, 0).columns) == ["token_i", "token_j", "index_i", "index_j", "value", "relative"]


def test_dominant_worked_out(worked: Reading):
    assert worked.dominant().values.tolist() == [[0, 0, "a", 7, 3, 1.0], [0, 1, "[CLS]", 1, 3, 2 / 3]]
    # The sum's pairs 01 02 03 13: 0 is in three, 7 in 01, 03 and, once, in 13: three each, and [CLS] is met first.
    assert worked.dominant(0, "sum").values.tolist() == [[0, "sum", "[CLS]", 1, 4, 0.75]]


def test_the_dominant_token_goes_by_its_id_and_bears_its_first_label():
    ones = made([[[1]] * 3], tokens=["The", "cat", "the"], ids=[5, 6, 5])
    assert ones.dominant().values.tolist() == [[0, 0, "The", 5, 3, 1.0]]
    assert made([[[1]] * 3], tokens=["The", "cat", "the"]).dominant()["share"].tolist() == [2 / 3]


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
def test_lines_worked_out(worked: Reading, head: Any, tau: float, index: list[int], received: list[float]):
    table = worked.lines(0, head, tau)
    assert table["index"].tolist() == index
    assert table["token"].tolist() == [TOKENS[k] for k in index]
    np.testing.assert_allclose(table["received"], received)


def test_lines_are_the_layers_where_no_head_is_named(worked: Reading):
    assert worked.lines(0)["index"].tolist() == [0, 4]
    assert worked.blocks(0)["stop"].tolist() == [1, 5]


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
def test_a_line_closes_its_block(worked: Reading, head: Any, tau: float, blocks: list[str]):
    table = worked.blocks(0, head, tau)
    assert table["tokens"].tolist() == blocks
    assert table["start"].tolist() == [0, *table["stop"].tolist()[:-1]]
    assert table["stop"].iloc[-1] == 5


def test_region_means_worked_out(worked: Reading):
    # Blocks {0}, {1,2}, {3,4}: (2+0)/2, (2+0)/2; C12; (4+0+1−1)/4; C34 alone, the diagonal being no part of it.
    regions = worked.regions(0, 0, 0.2)
    np.testing.assert_array_equal(regions.values, [[np.nan, 1, 1], [1, 0, 1], [1, 1, -1]])
    assert regions.dims == ("block_i", "block_j")
    assert regions["start_i"].values.tolist() == regions["start_j"].values.tolist() == [0, 1, 3]
    # One block: 2·(2+1+2) over the twenty elements off the diagonal.
    assert worked.regions(0, 1).values.tolist() == [[0.5]]


def test_regions_by_the_lines_of_another_map(worked: Reading):
    # Lines of the layer at τ = 0.3: 0 and 4, blocks {0}, {1,2,3,4}; head 1: (0+2+0+1)/4, and 2·2 over twelve.
    np.testing.assert_allclose(worked.regions(0, 1, lines_of="sum").values, [[np.nan, 0.75], [0.75, 1 / 3]])
    np.testing.assert_allclose(worked.regions(0, 1, lines_of=0).values, [[np.nan, 0.75], [0.75, 1 / 3]])
    assert worked.regions(0, "sum", 0.05).shape == (5, 5)
    assert np.isnan(np.diag(worked.regions(0, 1, 0.05))).all()


def test_special_tokens_are_left_out_without_changing_the_others(worked: Reading):
    assert indices(worked.pairs(0, 0, special=False)) == [(1, 3)]
    assert worked.pairs(0, 0, special=False)["relative"].tolist() == [1.0]
    assert len(worked.pairs(0, 1, special=False)) == 0
    # The largest is still that of all tokens, the special ones' 9: to it (2,3) is not high, though alone it would be.
    high = made([[[3], [3], [1], [1]]], tokens=["[CLS]", "[SEP]", "a", "b"], special=[1, 1, 0, 0])
    assert indices(high.pairs(0, 0, special=False)) == []


def test_words_worked_out():
    # C01 = 2, C02 = 6, C03 = 2, C12 = 3, C13 = 1, C23 = 3; max 6, θ = 0.3: above 1.8.
    tokens, written = ["port", "air", "##port", "."], [[2], [1], [3], [1]]
    whole = made([written], tokens=tokens)
    assert indices(whole.pairs(0, 0)) == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    # port–airport is the better of 2 and 6, airport–. of 1 and 3; within airport there is no pair.
    assert whole.pairs(0, 0, words=True).values.tolist() == [
        ["port", "airport", 0, 1, 6.0, 1.0],
        ["port", ".", 0, 3, 2.0, 1 / 3],
        ["airport", ".", 1, 3, 3.0, 0.5],
    ]
    assert whole.word_labels().tolist() == ["port", "airport", "."]


def test_values_are_relative_to_the_largest_not_to_the_strongest():
    # C01 = −9, C02 = 3, C12 = −3.
    opposed = made([[[3], [-3], [1]]])
    assert opposed.pairs(0, 0, 0.9).values.tolist() == [["[CLS]", ".", 0, 2, 3.0, 1.0]]


def test_special_words_are_left_out():
    tokens, special = ["[CLS]", "air", "##port", "[SEP]", "a"], [1, 0, 0, 1, 0]
    ones = made([[[1]] * 5], tokens=tokens, special=special)
    assert indices(ones.pairs(0, 0, words=True)) == [(0, 1), (0, 3), (0, 4), (1, 3), (1, 4), (3, 4)]
    assert ones.pairs(0, 0, special=False, words=True).values.tolist() == [["airport", "a", 1, 4, 1.0, 1.0]]


def test_the_largest_may_lie_within_a_word():
    # C12 = 9 is within the word: it is no pair of words, but still what the others are measured by.
    inner = made([[[1], [3], [3]]], tokens=["a", "b", "##c"])
    assert inner.pairs(0, 0, words=True)["relative"].tolist() == [1 / 3]
    assert len(inner.pairs(0, 0, 0.4, words=True)) == 0


# Against plain loops


MATRICES = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        arrays(np.int64, (n, n), elements=st.integers(-9, 9)), st.lists(st.booleans(), min_size=n, max_size=n)
    )
)
"""A matrix of whole numbers, whose sums are exact, and a flag for each of its positions."""


def symmetric(numbers: np.ndarray) -> np.ndarray:
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
    assert [list(block) for block in similarity.blocks(np.array(marked))] == expected


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_regions_by_a_loop(drawn: tuple[np.ndarray, list[bool]]):
    numbers, marked = drawn
    matrix, cut = symmetric(numbers), similarity.blocks(np.array(marked))
    found = similarity.regions(matrix, cut)
    for a, rows in enumerate(cut):
        for b, columns in enumerate(cut):
            values = [matrix[i, j] for i in rows for j in columns if i != j]
            np.testing.assert_allclose(found[a, b], np.mean(values) if values else np.nan)


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_joined_by_a_loop(drawn: tuple[np.ndarray, list[bool]]):
    numbers, starts = drawn
    words = np.cumsum([False, *starts[1:]])
    matrix, count = symmetric(numbers), int(words[-1]) + 1
    expected = np.zeros((count, count))
    for a in range(count):
        for b in set(range(count)) - {a}:
            expected[a, b] = max(matrix[i, j] for i in np.flatnonzero(words == a) for j in np.flatnonzero(words == b))
    assert similarity.joined(matrix, words).tolist() == expected.tolist()


@given(MATRICES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_dominant_by_counting(drawn: tuple[np.ndarray, list[bool]]):
    numbers, _ = drawn
    ids, pairs = np.diag(numbers) % 3, similarity.pairs_of(numbers > 3)
    counts = Counter(value for i, j in pairs for value in {ids[i], ids[j]})
    most = max(counts.values(), default=0)
    expected = next(((int(k), most) for k in ids if counts[k] == most), None) if pairs else None
    assert similarity.dominant(pairs, ids) == expected


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
    random = made(heads, tokens=tokens)
    words = random.tokens["word"].values
    best: dict[tuple[int, int], float] = {}
    for row in random.pairs(0, head, theta).itertuples():
        a, b = words[row.index_i], words[row.index_j]
        if a != b:
            best[a, b] = max(best.get((a, b), -np.inf), row.value)
    found = random.pairs(0, head, theta, words=True)
    first = [int(np.flatnonzero(words == k)[0]) for k in range(words[-1] + 1)]
    assert indices(found) == [(first[a], first[b]) for a, b in sorted(best)]
    assert found["value"].tolist() == [best[key] for key in sorted(best)]
    labels = random.word_labels()
    assert found["token_i"].tolist() == [labels[a] for a, _ in sorted(best)]


# A model's reading, and a study of the same text


@pytest.mark.parametrize("kind", ["minilm", "bert", "llama"])
def test_a_study_of_the_same_text_counts_the_same(minilm: Model, kind: str):
    model = minilm if kind == "minilm" else tiny.model(kind)
    text = next(iter(openings())).text.lower() if kind == "minilm" else TEXT
    study, reading = headscope.study(model, [text], length=40), headscope.read(model, text, length=40)
    sums, ids, sentence = study.data, reading.tokens["token_id"].values, reading.tokens["sentence"].values
    dominant = reading.dominant().set_index(["layer", "head"])
    assert reading.layers == study.layers
    assert reading.heads == study.heads
    for layer in reading.layers:
        for head in reading.heads:
            table = reading.pairs(layer, head)
            i, j = table["index_i"].to_numpy(), table["index_j"].to_numpy()
            counted = {
                "pairs": len(table),
                "equal": (ids[i] == ids[j]).sum(),
                "same": (sentence[i] == sentence[j]).sum(),
                "equal_same": ((ids[i] == ids[j]) & (sentence[i] == sentence[j])).sum(),
                "distance_sum": (j - i).sum(),
            }
            near = int(sums["near_threshold"][layer, head])
            for name, count in counted.items():
                allowed = near * (40 if name == "distance_sum" else 1)
                assert abs(int(sums[name][layer, head]) - count) <= allowed, (layer, head, name)
            if not near:
                share = float(sums["dominant_share_sum"][layer, head])
                np.testing.assert_allclose(np.nan_to_num(dominant.loc[(layer, head), "share"]), share)
    n = len(reading)
    np.testing.assert_allclose(sums["attention"].values[..., :n, :n], reading.attention.values, atol=1e-6)
    assert int(sums["pairs"].sum()) > 50


def test_lines_are_those_of_a_study(bert: Model, reading: Reading):
    summed = headscope.study(bert, [TEXT], length=40).data["attention_without_lines"].values
    for layer in reading.layers:
        zeroed = np.flatnonzero(summed[layer, : len(reading), : len(reading)].sum(axis=0) == 0)
        assert reading.lines(layer)["index"].tolist() == zeroed.tolist()


def test_there_is_no_padding(bert: Model, reading: Reading):
    ids = bert.tokens.tokenizer(TEXT).input_ids
    assert reading.tokens["token_id"].values.tolist() == ids
    assert len(reading) == len(ids) < 40
    other = headscope.read(bert, TEXT, length=len(ids))
    xr.testing.assert_equal(reading.data, other.data)


def test_the_labels_of_every_array(reading: Reading):
    n, lh = len(reading), ("layer", "head")
    tokens = ["[CLS]", "the", "c", "##a", "##t", "s", "##a", "##t", ".", "the"]
    assert reading.tokens.dims == ("position",)
    assert reading.tokens.values.tolist()[:10] == tokens
    assert set(reading.tokens.coords) >= {"position", "token_id", "special", "sentence", "word", "start", "end"}
    assert reading.outputs.dims == ("layer", "position", "head", "width")
    assert reading.outputs.shape == (2, n, 4, 8)
    assert reading.attention.dims == (*lh, "query", "key")
    assert reading.similarity.dims == (*lh, "position_i", "position_j")
    assert reading.similarity.shape == reading.attention.shape == (2, 4, n, n)
    for array in (reading.outputs, reading.attention, reading.similarity):
        assert array["layer"].values.tolist() == [0, 1]
        assert array["head"].values.tolist() == [0, 1, 2, 3]
    for array, rows, columns in (
        (reading.attention, "query", "key"),
        (reading.similarity, "position_i", "position_j"),
    ):
        assert array[rows].values.tolist() == array[columns].values.tolist() == list(range(n))
    assert reading.attention["query_token"].values.tolist() == reading.tokens.values.tolist()
    assert reading.attention["key_token"].dims == ("key",)
    assert reading.similarity.sel(layer=1, head=2, position_i=3, position_j=8)["token_j"].item() == "."


def test_one_matrix_is_a_part_of_all(reading: Reading):
    both = {"layer": 1, "head": 3}
    xr.testing.assert_identical(reading.matrix(1, 3), reading.similarity.sel(both))
    np.testing.assert_array_equal(reading.attention_map(1, 3).values, reading.attention.sel(both).values)
    np.testing.assert_allclose(reading.matrix(1, "sum").values, reading.similarity.sel(layer=1).sum("head").values)
    np.testing.assert_allclose(
        reading.attention_map(1, "sum").values, reading.attention.sel(layer=1).sum("head").values, rtol=1e-6
    )
    assert reading.matrix(1, "sum")["head"].item() == "sum"
    assert reading.attention_map(0, "sum")["key_token"].values[1] == "the"


def test_similarities_are_products_of_outputs_in_float64(reading: Reading):
    written = reading.outputs.sel(layer=1, head=2).values.astype(np.float64)
    expected = written @ written.T
    np.fill_diagonal(expected, 0)
    assert reading.matrix(1, 2).values.tolist() == expected.tolist()
    assert reading.matrix(1, 2).dtype == np.float64


def test_attention_rows_sum_to_1(reading: Reading):
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-5)


def test_places_in_the_text(reading: Reading):
    tokens = reading.tokens
    for token, start, end, special in zip(
        tokens.values, tokens["start"].values, tokens["end"].values, tokens["special"].values, strict=True
    ):
        assert (start, end) == (-1, -1) if special else TEXT[start:end] == token.removeprefix("##")
    assert reading.text == TEXT
    assert tokens["special"].values.tolist() == [True, *[False] * (len(reading) - 2), True]
    assert tokens["sentence"].values[[0, 8, 9, -1]].tolist() == [0, 0, 1, 2]
    assert reading.word_labels().tolist()[:6] == ["[CLS]", "the", "cat", "sat", ".", "the"]


def test_sentences_by_the_text(bert: Model):
    by_tokens, by_text = (
        headscope.read(bert, "Dr. Ito left. She ran.", length=40, sentences=mode).tokens["sentence"].values
        for mode in ("tokens", "text")
    )
    assert by_tokens.max() == 3
    assert by_text.max() == 1


def test_special_false_only_drops(reading: Reading):
    whole, fewer = reading.pairs(), reading.pairs(special=False)
    special = reading.tokens["special"].values
    kept = whole[~(special[whole["index_i"]] | special[whole["index_j"]])].reset_index(drop=True)
    assert fewer.equals(kept)
    assert 0 < len(fewer) < len(whole)


def test_several_heads_say_which_a_row_belongs_to(reading: Reading):
    columns = ["token_i", "token_j", "index_i", "index_j", "value", "relative"]
    table = reading.pairs(layer=1, head=[3, 0])
    assert list(table.columns) == ["layer", "head", *columns]
    assert list(dict.fromkeys(zip(table["layer"], table["head"], strict=True))) == [(1, 3), (1, 0)]
    part = table[table["head"] == 3].reset_index(drop=True)
    assert part[columns].equals(reading.pairs(1, 3))
    assert len(reading.pairs()) == sum(len(reading.pairs(a, b)) for a in range(2) for b in range(4))
    assert len(reading.pairs([0, 1], "sum")) == len(reading.pairs(0, "sum")) + len(reading.pairs(1, "sum"))
    assert set(reading.pairs(head="sum")["head"]) == {"sum"}


@pytest.mark.parametrize("heads", [[0, 2], (0, 2), range(0, 4, 2), np.array([0, 2]), iter([0, 2]), [0, 0, 2]])
def test_heads_are_named_in_many_ways(reading: Reading, heads: Any):
    assert reading.dominant(1, heads)["head"].tolist() == [0, 2]


@pytest.mark.parametrize("zero", [0, np.int64(0), 0.0, np.array(0), xr.DataArray(0)])
def test_one_layer_is_named_in_many_ways(reading: Reading, zero: Any):
    assert reading.pairs(zero, 1).equals(reading.pairs(0, 1))
    assert "layer" not in reading.pairs(zero, zero)
    xr.testing.assert_identical(reading.matrix(zero, zero), reading.matrix(0, 0))


def test_tokens_are_text_whether_or_not_all_heads_have_pairs():
    some = made([[[0]] * 3, [[1]] * 3]).pairs()
    assert some.dtypes.tolist() == made([[[1]] * 3, [[1]] * 3]).pairs().dtypes.tolist()


def test_select(reading: Reading):
    part = reading.select(layers=1, heads=[2, 0])
    assert (part.layers, part.heads, len(part)) == ([1], [2, 0], len(reading))
    assert part.pairs(1, 2).equals(reading.pairs(1, 2))
    np.testing.assert_allclose(
        part.matrix(1, "sum").values, reading.matrix(1, 2).values + reading.matrix(1, 0).values, rtol=1e-12
    )
    assert part.attention.shape == (1, 2, len(reading), len(reading))
    xr.testing.assert_identical(part.attention.sel(head=0), reading.attention.sel(layer=[1], head=0))
    assert reading.select().pairs().equals(reading.pairs())
    with pytest.raises(ReadingError, match="no head 1: this reading has heads 2, 0"):
        part.pairs(1, 1)
    with pytest.raises(ReadingError, match="no layer 0: this reading has layers 1"):
        part.select(layers=0)


def test_a_text_is_cut_at_the_length(bert: Model, reading: Reading):
    short = headscope.read(bert, TEXT + " \n", length=10)
    assert len(short) == 10
    assert short.tokens.values.tolist() == [*reading.tokens.values.tolist()[:9], "[SEP]"]
    assert short.text == "the cat sat."
    assert short.manifest["tokens_in_text"] == len(reading)
    assert short.manifest["length"] == 10
    assert reading.manifest["tokens_in_text"] == len(reading)


def test_the_manifest_says_how(bert: Model):
    made = headscope.read(bert, TEXT, length=40, theta=0.4, tau=0.1, command="headscope read …")
    about = made.manifest
    assert (about["kind"], about["model_type"], about["layers"], about["heads"]) == ("reading", "bert", 2, 4)
    assert (about["theta"], about["tau"], about["command"]) == (0.4, 0.1, "headscope read …")
    assert about["weight_hash"] == bert.weight_hash
    assert "torch" in about["versions"]
    assert (made.theta, made.tau, made.size) == (0.4, 0.1, f"2 layers × 4 heads, {len(made)} tokens")


def test_a_reading_shows_itself_in_one_harmless_line(bert: Model):
    assert repr(headscope.read(bert, "the\n owl\x1b[31m \u202esat", length=40)).endswith("tokens: the owl [31m sat>")
    assert repr(headscope.read(bert, "a " * 50, length=40)).endswith("a a …>")


# Models


@pytest.mark.parametrize("kind", tiny.FAMILIES)
def test_every_family_reads(kind: str):
    model, family = tiny.model(kind), tiny.FAMILIES[kind]
    reading = headscope.read(model, TEXT, length=32)
    layers = family.options.get("num_hidden_layers", 2)
    n = len(reading)
    assert reading.attention.shape == (layers, tiny.HEADS, n, n)
    assert reading.outputs.shape[:3] == (layers, n, tiny.HEADS)
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-5)
    assert (np.triu(reading.attention.values, 1) == 0).all() == family.causal
    assert len(reading.dominant()) == layers * tiny.HEADS
    assert len(reading.pairs()) > 0
    assert reading.regions(0, 0, lines_of="sum").shape[0] == len(reading.blocks(0))


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.float64, "float64"), (torch.float32, "float32"), (torch.bfloat16, "float32")]
)
def test_numeric_types(dtype: torch.dtype, kept: str):
    model = load(tiny.network("bert").to(dtype), tiny.tokenizer())
    reading = headscope.read(model, TEXT, length=40)
    exact = headscope.read(load(tiny.network("bert").double(), tiny.tokenizer()), TEXT, length=40)
    assert reading.manifest["dtype"] == str(dtype).removeprefix("torch.")
    assert reading.outputs.dtype == kept
    np.testing.assert_allclose(reading.attention.sum("key").values, 1, atol=1e-2)
    scale = np.abs(exact.outputs.values).max()
    loose = 0.1 if dtype is torch.bfloat16 else 1e-5
    np.testing.assert_allclose(reading.outputs.values, exact.outputs.values, atol=loose * scale)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny.network("bert").save_pretrained(place)
    tiny.tokenizer().save_pretrained(place)
    return place


@pytest.mark.parametrize("kind", [str, Path])
def test_a_model_given_by_name(folder: Path, reading: Reading, kind: Any):
    made = headscope.read(kind(folder), TEXT, length=40)
    assert made.manifest["model"] == str(folder)
    np.testing.assert_allclose(made.outputs.values, reading.outputs.values, atol=1e-6)


def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub():
    with pytest.raises(ModelError, match="nowhere/model: no such folder"):
        headscope.read(Path("nowhere/model"), TEXT)


def test_a_network_without_its_tokenizer(bert: Model):
    with pytest.raises(ModelError, match="needs its tokenizer"):
        headscope.read(bert.network, TEXT)


class Slow(PreTrainedTokenizer):
    """A tokenizer written in Python, which knows no offsets."""

    def __init__(self) -> None:
        self.ids = {token: k for k, token in enumerate(tiny.VOCABULARY)}
        super().__init__(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.ids)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        pieces = text.replace(".", " .").replace(",", " ,").replace("!", " !").split()
        return [
            piece
            for word in pieces
            for piece in ([word] if word in self.ids else [word[0], *(f"##{letter}" for letter in word[1:])])
        ]

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return tiny.VOCABULARY[index]

    def build_inputs_with_special_tokens(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [2, *first, 3]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        return 2


def test_a_tokenizer_that_knows_no_places(reading: Reading):
    slow = load(tiny.network("bert"), Slow())
    made = headscope.read(slow, TEXT, length=40)
    assert made.tokens.values.tolist() == reading.tokens.values.tolist()
    assert made.tokens["word"].values.tolist() == reading.tokens["word"].values.tolist()
    assert set(made.tokens["start"].values) == set(made.tokens["end"].values) == {-1}
    assert made.text == TEXT
    assert made.pairs(words=True).equals(reading.pairs(words=True))
    with pytest.raises(CorpusError, match="--sentences tokens"):
        headscope.read(slow, TEXT, length=40, sentences="text")


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.pairs(2, 0), "no layer 2: this reading has layers 0, 1"),
        (lambda r: r.pairs(0, 4), "no head 4: this reading has heads 0, 1, 2, 3"),
        (lambda r: r.pairs(-1, 0), "no layer -1"),
        (lambda r: r.pairs([0, 5, 7], 0), "no layer 5, 7"),
        (lambda r: r.pairs(0, []), "no head chosen: the list given is empty"),
        (lambda r: r.pairs(0, "max"), "no head max"),
        (lambda r: r.pairs(0.5, 0), "no layer 0.5"),
        (lambda r: r.matrix(None, 0), "no layer None"),
        (lambda r: r.matrix(0, None), "no head None"),
        (lambda r: r.attention_map(9, "sum"), "no layer 9"),
        (lambda r: r.lines("sum"), "no layer sum"),
        (lambda r: r.lines([0, 1]), "layers 0, 1: this is asked of one layer at a time"),
        (lambda r: r.matrix(0, [1, 2]), "heads 1, 2: this is asked of one head at a time"),
        (lambda r: r.regions(0, 0, lines_of=7), "no head 7"),
        (lambda r: r.blocks(0, 8), "no head 8"),
        (lambda r: r.dominant(8), "no layer 8"),
        (lambda r: r.select(layers=[]), "no layer chosen"),
        (lambda r: r.select(heads="sum"), "no head sum"),
        (lambda r: r.pairs(0, 0, 1), "theta is 1: it is a share of the maximum"),
        (lambda r: r.pairs(0, 0, -0.1), "theta is -0.1"),
        (lambda r: r.pairs(0, 0, float("nan")), "theta is nan"),
        (lambda r: r.pairs(0, 0, "high"), "theta is high"),
        (lambda r: r.dominant(theta=2), "theta is 2"),
        (lambda r: r.lines(0, tau=1.5), "tau is 1.5"),
        (lambda r: r.regions(0, 0, -1), "tau is -1"),
    ],
)
def test_what_is_not_there_is_said(reading: Reading, call: Any, message: str):
    with pytest.raises(ReadingError, match=message.replace("[", r"\[")):
        call(reading)


def test_what_many_heads_there_are_is_said_shortly():
    many = made([[[1]] * 3] * 6)
    with pytest.raises(ReadingError, match=r"this reading has heads 0 to 5$"):
        many.pairs(0, 6)
    with pytest.raises(ReadingError, match=r"this reading has heads 0, 1, 2, 3, 5$"):
        many.select(heads=[0, 1, 2, 3, 5]).pairs(0, 4)


@pytest.mark.parametrize("ask", ["lines", "blocks", "attention_map", "regions"])
def test_outputs_alone_have_no_lines(ask: str):
    alone = made(HEADS)
    assert not alone.has_attention
    with pytest.raises(ReadingError, match="no attention maps"):
        getattr(alone, ask)(0, 0)
    with pytest.raises(ReadingError, match="no attention maps"):
        _ = alone.attention


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text is empty"),
        (" \n\t", {}, "the text is empty"),
        ("[CLS] [SEP] [PAD]", {}, "the text is only special tokens"),
        (b"bytes", {}, "the text is a bytes: give it as a string"),
        (["a", "b"], {}, "the text is a list"),
        (None, {}, "the text is a NoneType"),
        ("a half \ud800", {}, "cannot read this text"),
        (TEXT, {"length": 49}, "length is 49, but BertModel has positions for 48 tokens"),
        (TEXT, {"length": 2}, "length is 2"),
        (TEXT, {"length": 0}, "length is 0"),
        (TEXT, {"theta": 0}, "theta is 0"),
        (TEXT, {"theta": 1.0}, "theta is 1.0"),
        (TEXT, {"tau": -1}, "tau is -1"),
        (TEXT, {"sentences": "words"}, "choose one of tokens, text"),
    ],
)
def test_what_cannot_be_read_is_said(bert: Model, text: Any, options: dict[str, Any], message: str):
    with pytest.raises((ReadingError, StudyError, CorpusError), match=message):
        headscope.read(bert, text, **{"length": 40, **options})


def test_one_word_is_enough_and_one_token_is_not():
    assert len(headscope.read(tiny.model("bert"), "the", length=3)) == 3
    bare = tiny.tokenizer()
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    alone = load(tiny.network("gpt2"), bare)
    assert len(headscope.read(alone, "the cat", length=3)) == 3
    with pytest.raises(ReadingError, match="it takes two"):
        headscope.read(alone, "the", length=3)


def test_weights_that_are_not_numbers():
    model = tiny.model("bert")
    width = tiny.WIDTH // tiny.HEADS
    with torch.no_grad():
        model.network.encoder.layer[1].attention.self.value.weight[2 * width] = float("nan")
    with pytest.raises(HeadscopeError, match=r"L1H2 are not finite numbers.*float32"):
        headscope.read(model, TEXT, length=40)


def test_blocks_cover_the_text_once(reading: Reading):
    for tau in (0.05, 0.3, 0.9):
        table = reading.blocks(1, 2, tau)
        edges = [0, *table["stop"].tolist()]
        assert table["start"].tolist() == edges[:-1]
        assert edges[-1] == len(reading)
        assert all(a < b for a, b in pairwise(edges))

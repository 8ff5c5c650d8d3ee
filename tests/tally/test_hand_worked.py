"""Every quantity of METHOD §3, worked out on paper for one window of five tokens and three heads.

    position   0      1   2   3   4          sentence 0: positions 0, 1, 2 (a sentence ends with its full stop)
    token     [CLS]   a   .   a  [SEP]       sentence 1: positions 3, 4
    id          1     7   4   7   2

Head 0 outputs (1,0) (2,0) (0,1) (2,1) (0,−1). Products of its rows, i < j:

    C01 = 2   C02 = 0   C03 = 2   C04 = 0   C12 = 0   C13 = 4   C14 = 0   C23 = 1   C24 = −1   C34 = −1

max(C) = 4, θ = 0.3: high are those above 1.2: (0,1), (0,3), (1,3).
    equal tokens: (1,3): 1.  Same sentence: (0,1): 1.  Both: 0.  Distances 1, 3, 2: sum 6.
    The value 7 (positions 1 and 3) is in all three pairs, in (1,3) once; 1 is in two; so 7 dominates with 3 of 3.
Head 1 outputs zeros: max(C) = 0, no high pairs, no dominant token.
Head 2 outputs (1,0) everywhere: C = 1 off the diagonal, all 10 pairs high.
    equal: 1 (1,3).  Same sentence: 01 02 12 34 = 4.  Both: 0.  Distances: 4 of 1, 3 of 2, 2 of 3, 1 of 4: 20.
    7 is in 4 + 4 pairs, (1,3) counted once: 7 of 10. Ten pairs drawn at random of ten are the same ten: 7 of 10 too.

All pairs: 10; equal 1; same sentence 4; both 0.

Attention of head 0 (rows are queries, columns are keys); heads 1 and 2 attend to themselves only:

    1    0    0    0    0        column sums of head 0: 3, .5, .75, .25, .5; with the two identities:
    .5   .5   0    0    0                               5, 2.5, 2.75, 2.25, 2.5
    .5   0    .5   0    0        τ = 0.5: lines are columns above 2.5: 0 and 2 (1 and 4 are not above, but equal)
    .5   0    .25  .25  0
    .5   0    0    0    .5
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headscope.corpus.windows import BLOCKS, Batch
from headscope.similarity import find_dominant
from headscope.studies.result import Study
from headscope.tally.quantities import BY_NAME, QUANTITIES, RECEIVERS, SCORES, Shape
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.text_structure import draw_position_order, rank_pairs
from headscope.tally.torch_backend import TorchTallier
from tests.helpers.synthetic import TALLIERS, study_of, tally, window

WINDOW = window([1, 7, 4, 7, 2])
HEADS = [
    [[1, 0], [2, 0], [0, 1], [2, 1], [0, -1]],
    [[0, 0]] * 5,
    [[1, 0]] * 5,
]
MAP = [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0, 0.25, 0.25, 0], [0.5, 0, 0, 0, 0.5]]
OUTPUT = torch.tensor(HEADS, dtype=torch.float64).permute(1, 0, 2)[None]
ATTENTION = torch.stack([torch.tensor(MAP, dtype=torch.float64), torch.eye(5).double(), torch.eye(5).double()])[None]
SHAPE = Shape(layers=1, heads=3, length=6, width=2)  # one longer than the window: the last position stays empty


@pytest.fixture(params=TALLIERS, scope="module")
def study(request: pytest.FixtureRequest) -> Study:
    sums = tally(request.param, TallySettings(SHAPE, 0.3, 0.5, 1.0), [WINDOW], [OUTPUT], [ATTENTION])
    return study_of(sums)


def get_values(study: Study, name: str) -> list:
    return study.data[name].values.tolist()


def fill_row(size: int, counts: dict[int, float]) -> list[float]:
    row = [0.0] * size
    for index, count in counts.items():
        row[index] = count
    return row


def test_texts(study: Study):
    assert get_values(study, "texts") == 1
    assert get_values(study, "sample_texts") == 1
    assert get_values(study, "window_tokens") == [0, 0, 0, 0, 0, 1, 0]


def test_chance_level_counts_all_pairs(study: Study):
    assert [get_values(study, f"all_{name}") for name in ("pairs", "equal", "same", "equal_same")] == [10, 1, 4, 0]
    assert float(study.chance("repeat_rate")) == 1 / 10
    assert float(study.chance("same_sentence_rate")) == 4 / 10
    assert float(study.chance("repeat_rate_in_sentence")) == 0 / 4
    assert float(study.chance("mean_distance")) == 20 / 10


def test_high_pairs(study: Study):
    assert get_values(study, "pairs") == [[3, 0, 10]]
    assert get_values(study, "equal") == [[1, 0, 1]]
    assert get_values(study, "same") == [[1, 0, 4]]
    assert get_values(study, "equal_same") == [[0, 0, 0]]


def test_rates(study: Study):
    np.testing.assert_array_equal(study.rate("repeat_rate").values, [[1 / 3, np.nan, 1 / 10]])
    np.testing.assert_array_equal(study.rate("repeat_rate_in_sentence").values, [[0, np.nan, 0]])
    np.testing.assert_array_equal(study.rate("same_sentence_rate").values, [[1 / 3, np.nan, 4 / 10]])
    np.testing.assert_array_equal(study.rate("mean_distance").values, [[2, np.nan, 2]])
    np.testing.assert_array_equal(study.rate("dominant_share").values, [[1, np.nan, 0.7]])


def test_distribution_over_texts(study: Study):
    # 50 bins of 0.02: 1/3 lies in bin 16, 0.1 in bin 5, 0.4 in bin 20, 0.7 in bin 35; 1 is in the last.
    assert get_values(study, "repeat_rate_texts")[0] == [fill_row(50, {16: 1}), fill_row(50, {}), fill_row(50, {5: 1})]
    assert get_values(study, "repeat_rate_in_sentence_texts")[0] == [
        fill_row(50, {0: 1}),
        fill_row(50, {}),
        fill_row(50, {0: 1}),
    ]
    assert get_values(study, "same_sentence_rate_texts")[0] == [
        fill_row(50, {16: 1}),
        fill_row(50, {}),
        fill_row(50, {20: 1}),
    ]
    assert get_values(study, "dominant_share_texts")[0] == [
        fill_row(50, {49: 1}),
        fill_row(50, {}),
        fill_row(50, {35: 1}),
    ]


def test_distance(study: Study):
    assert get_values(study, "distance")[0] == [[1, 1, 1, 0, 0], [0] * 5, [4, 3, 2, 1, 0]]
    assert get_values(study, "distance_sum") == [[6, 0, 20]]
    assert study.data["tokens_apart"].values.tolist() == [1, 2, 3, 4, 5]


def test_location(study: Study):
    expected = np.zeros((3, 6, 6), dtype=int)
    for i, j in ((0, 1), (0, 3), (1, 3)):
        expected[0, i, j] = expected[0, j, i] = 1
    expected[2, :5, :5] = 1 - np.eye(5)
    assert get_values(study, "location")[0] == expected.tolist()


def test_dominant_token(study: Study):
    assert get_values(study, "texts_with_pairs") == [[1, 0, 1]]
    assert get_values(study, "dominant_share_sum") == [[1, 0, 0.7]]
    # Heads 0 and 2 choose the token 7, head 1 none: one different token among the three heads.
    assert get_values(study, "distinct_dominants") == [[0, 1, 0, 0]]


def test_random_pairs(study: Study):
    assert get_values(study, "shuffled_share_texts") == [[1, 0, 1]]
    assert get_values(study, "shuffled_share_sum")[0][2] == 0.7
    # Head 0's three random pairs are those of rank 0, 1, 2 in the window's own order.
    ranks = rank_pairs(WINDOW)
    drawn = [(i, j) for i in range(5) for j in range(i + 1, 5) if ranks[i, j] < 3]
    including = [sum(WINDOW.ids[i] == value or WINDOW.ids[j] == value for i, j in drawn) for value in (1, 7, 4, 2)]
    assert get_values(study, "shuffled_share_sum")[0][0] == max(including) / 3


def test_value_histogram(study: Study):
    # Head 0, C/4: .5 .0 .5 .0 .0 1 .0 .25 −.25 −.25, in bins of 0.01 from −1; 1 belongs to the last bin.
    head = fill_row(200, {150: 2, 100: 4, 199: 1, 125: 1, 75: 2})
    assert get_values(study, "value_histogram")[0] == [head, fill_row(200, {}), fill_row(200, {199: 10})]
    # All values but 1 lie exactly on an inner edge.
    assert get_values(study, "near_bin_edge") == [[9, 0, 0]]


def test_similarity_sum(study: Study):
    products = np.array([[0, 2, 0, 2, 0], [2, 0, 0, 4, 0], [0, 0, 0, 1, -1], [2, 4, 1, 0, -1], [0, 0, -1, -1, 0]])
    expected = np.zeros((6, 6))
    expected[:5, :5] = products / 4 + (1 - np.eye(5))
    np.testing.assert_array_equal(study.data["similarity"].values[0], expected)


def test_attention_sum(study: Study):
    assert study.data["attention"].values[0, 0, :5, :5].tolist() == MAP
    assert study.data["attention"].values[0, 1, :5, :5].tolist() == np.eye(5).tolist()
    assert study.data["attention"].values[..., 5].sum() == 0
    positions = study.data["position_texts"].values
    assert positions[:5, :5].tolist() == np.ones((5, 5)).tolist()
    assert positions[5].sum() == positions[:, 5].sum() == 0


def test_attention_without_lines(study: Study):
    summed = np.array(MAP) + 2 * np.eye(5)
    summed[:, [0, 2]] = 0
    assert study.data["attention_without_lines"].values[0, :5, :5].tolist() == summed.tolist()
    np.fill_diagonal(summed, 0)
    assert study.data["attention_without_lines_and_diagonal"].values[0, :5, :5].tolist() == summed.tolist()


def test_attention_offset(study: Study):
    # Head 0: on the diagonal 1 + .5 + .5 + .25 + .5; at −1 .5 (row 1) + .25 (row 3); at −2, −3, −4 .5 each.
    by_offset = dict(
        zip(study.data["offset"].values.tolist(), get_values(study, "attention_offset")[0][0], strict=True)
    )
    assert by_offset == {-5: 0, -4: 0.5, -3: 0.5, -2: 0.5, -1: 0.75, 0: 2.75, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}
    assert int(study.data["attention_offset"][0, 1].idxmax("offset")) == 0


def test_attention_received(study: Study):
    # Column 0 is the first token: 3 + 1 + 1. Column 4 the last special: .5 + 1 + 1. Column 2 a sentence end: .75 + 2.
    # Of columns 1 and 3, all attention lies on the diagonal: .5 + .25 + 2 + 2.
    received = dict(zip(RECEIVERS, get_values(study, "attention_received")[0], strict=True))
    assert received == {
        "first token": 5,
        "last special token": 2.5,
        "sentence end": 2.75,
        "comma": 0,
        "itself": 4.75,
        "neighbour": 0,
        "rest": 0,
    }
    assert study.data["attention_received_share"].values[0].tolist() == [value / 15 for value in received.values()]


def test_attention_spread_evenly(study: Study):
    # A fifth each: three columns with a receiver of their own; in columns 1 and 3 two diagonal, four neighbouring,
    # four other elements.
    np.testing.assert_allclose(study.data["attention_spread"].values, [1, 1, 1, 0, 0.4, 0.8, 0.8])


def test_most_attended(study: Study):
    assert study.data["token"].values.tolist() == ["t1"]
    assert study.data["token_id"].values.tolist() == [1]
    assert get_values(study, "most_attended") == [[1]]


def test_sentences_by_their_number_of_tokens(study: Study):
    assert get_values(study, "sentence_tokens") == [0, 0, 1, 1, 0, 0, 0]


def test_separators_among_words(study: Study):
    # Words and punctuation are positions 1, 2, 3 with columns 2.5, 2.75, 2.25: the full stop is the strongest.
    assert [get_values(study, name) for name in ("word_texts", "separator_share", "separator_texts")] == [1, 1 / 3, [1]]


def test_attention_in_lines_and_on_the_diagonal(study: Study):
    # Of 15, columns 0 and 2 have 5 + 2.75; on the diagonal of the others are .5 + .25 + .5 and twice 3.
    np.testing.assert_allclose(study.data["line_attention_sum"].values, [7.75 / 15])
    np.testing.assert_allclose(study.data["line_even_sum"].values, [2 / 5])
    np.testing.assert_allclose(study.data["diagonal_attention_sum"].values, [7.25 / 15])
    np.testing.assert_allclose(study.data["diagonal_even_sum"].values, [3 / 25])


def test_dominant_tokens_of_random_pairs(study: Study):
    # Head 0 takes the 3 pairs of lowest rank, head 1 none, head 2 all ten, of which 7 is in the most.
    ranks = rank_pairs(WINDOW)
    drawn = find_dominant([(i, j) for i in range(5) for j in range(i + 1, 5) if ranks[i, j] < 3], WINDOW.ids)
    assert drawn is not None
    different = len({drawn[0], 7})
    assert get_values(study, "shuffled_distinct_dominants") == [[float(k == different) for k in range(4)]]


def test_strongest_regions(study: Study):
    # Blocks {0}, {1, 2}, {3, 4}: two regions on the diagonal, three off it. Head 0: 0 and −1 on it, 1, 1 and 1 off it.
    # Head 1 has none above another, and in head 2 all are equal.
    assert get_values(study, "region_texts") == [1]
    assert get_values(study, "region_chance_sum") == [2 / 5]
    assert get_values(study, "diagonal_region_texts") == [[0, 0, 0]]
    # Positions 1, 3 and 4 are no lines: none of their pairs is between lines and across one at the same distance.
    assert get_values(study, "delineated_texts") == [0]


def make_line_maps(n: int, line: int, weight: float = 0.9) -> torch.Tensor:
    """Return a map whose only line is this column."""
    maps = torch.full((1, 1, n, n), (1 - weight) / n, dtype=torch.float64)
    maps[..., line] += weight
    return maps


@pytest.mark.parametrize("kernel", TALLIERS)
def test_strongest_region_on_the_diagonal(kernel: str):
    # A line at position 1 of four: blocks {0, 1} and {2, 3}. Outputs 2 2 1 1: 4 and 1 on the diagonal, off it 8/4 = 2.
    output = torch.tensor([2.0, 2, 1, 1], dtype=torch.float64).view(1, 4, 1, 1)
    counting = TallySettings(Shape(1, 1, 4), 0.3, 0.3, 1.0)
    sums = tally(kernel, counting, [window([7, 8, 9, 10])], [output], [make_line_maps(4, 1)])
    assert sums["diagonal_region_texts"].sum() == sums["region_texts"].sum() == 1
    assert sums["region_chance_sum"].sum() == 2 / 3
    # Shuffled, the two tokens of output 2 are in one block, or each is with a 1: 2 and 2 on the diagonal, off it 9/4.
    order = draw_position_order(window([7, 8, 9, 10])).tolist()
    together = sorted((order.index(0), order.index(1))) in ([0, 1], [2, 3])
    assert sums["shuffled_diagonal_region_texts"].sum() == together


@pytest.mark.parametrize("kernel", TALLIERS)
def test_similarity_between_and_across_lines(kernel: str):
    # A line at position 3 of six. At distance 2, (0,2) lies between lines and (2,4) across; no other distance has both
    # without the line's own token. Outputs 2 0 1 0 3 0: C02 = 2 and C24 = 3; T = 14/6.
    output = torch.tensor([2.0, 0, 1, 0, 3, 0], dtype=torch.float64).view(1, 6, 1, 1)
    counting = TallySettings(Shape(1, 1, 6), 0.3, 0.3, 1.0)
    sums = tally(kernel, counting, [window([7, 8, 9, 10, 11, 12])], [output], [make_line_maps(6, 3)])
    assert sums["delineated_texts"].sum() == 1
    np.testing.assert_allclose(sums["delineated_inside_sum"].sum(), 2 / (14 / 6))
    np.testing.assert_allclose(sums["delineated_across_sum"].sum(), 3 / (14 / 6))


@pytest.mark.parametrize("kernel", TALLIERS)
@pytest.mark.parametrize(("causal", "expected"), [(False, -0.5), (True, 0.0)])
def test_correlation_of_columns(kernel: str, causal: bool, expected: float):
    # Three tokens, two heads. Columns 2, 1/2, 1/2 and 1/2, 2, 1/2: deviations (1, −1/2, −1/2) and (−1/2, 1, −1/2).
    # Causal and even, columns 11/6, 5/6, 1/3: relative to even attention they are flat.
    maps = torch.zeros((1, 2, 3, 3), dtype=torch.float64)
    if causal:
        maps[:] = torch.ones(3, 3).tril() / torch.arange(1, 4)[:, None]
    else:
        maps[0, 0] = torch.tensor([[2 / 3, 1 / 6, 1 / 6]])
        maps[0, 1] = torch.tensor([[1 / 6, 2 / 3, 1 / 6]])
    counting = TallySettings(Shape(1, 2, 3), 0.3, 0.3, 1.0, causal)
    sums = tally(kernel, counting, [window([7, 8, 9])], [torch.ones((1, 3, 2, 1)).double()], [maps])
    assert sums["column_texts"].sum() == 1
    np.testing.assert_allclose(sums["column_correlation_sum"].sum(), expected, atol=1e-12)


def test_blocks(study: Study):
    block = WINDOW.digest % 20
    for name in ("pairs", "equal", "same", "equal_same", "distance_sum"):
        blocks = study.data[f"{name}_blocks"]
        assert blocks.dims == ("block", "layer", "head")
        assert blocks.values[block].tolist() == get_values(study, name)
        assert blocks.sum() == study.data[name].sum()


def test_names_dims_and_types_of_the_method(study: Study):
    lh = ("layer", "head")
    expected = {
        **dict.fromkeys(
            ("texts", "sample_texts", "all_pairs", "all_equal", "all_same", "all_equal_same"), ((), "int64")
        ),
        **dict.fromkeys(("pairs", "equal", "same", "equal_same", "near_threshold", "texts_with_pairs"), (lh, "int64")),
        **dict.fromkeys(("repeat_rate", "repeat_rate_in_sentence", "same_sentence_rate"), (lh, "float64")),
        **dict.fromkeys(("mean_distance", "dominant_share", "dominant_share_sum"), (lh, "float64")),
        **dict.fromkeys(("repeat_rate_texts", "repeat_rate_in_sentence_texts"), ((*lh, "rate_bin"), "int64")),
        **dict.fromkeys(("same_sentence_rate_texts", "dominant_share_texts"), ((*lh, "rate_bin"), "int64")),
        "distance": ((*lh, "distance"), "int64"),
        "location": ((*lh, "position_i", "position_j"), "int64"),
        "distinct_dominants": (("layer", "count"), "int64"),
        "value_histogram": ((*lh, "value_bin"), "int64"),
        "attention": ((*lh, "query", "key"), "float64"),
        "position_texts": (("position_i", "position_j"), "int64"),
        "attention_without_lines": (("layer", "query", "key"), "float64"),
        "attention_without_lines_and_diagonal": (("layer", "query", "key"), "float64"),
        "attention_offset": ((*lh, "offset"), "float64"),
        "attention_received": (("layer", "receiver"), "float64"),
        "most_attended": (("layer", "token"), "int64"),
        "similarity": (("layer", "position_i", "position_j"), "float64"),
        **dict.fromkeys((f"{n}_blocks" for n in ("pairs", "equal", "same")), (("block", *lh), "int64")),
        **dict.fromkeys(SCORES, (lh, "float64")),
        **dict.fromkeys((f"{n}_sum" for n in SCORES), (lh, "float64")),
        **dict.fromkeys((f"{n}_sum_blocks" for n in SCORES), (("block", *lh), "float64")),
        **dict.fromkeys((f"{n}_queries_blocks" for n in SCORES), (("block",), "int64")),
        **dict.fromkeys((f"{n}_chance" for n in SCORES), ((), "float64")),
        **dict.fromkeys((f"{n}_blocks" for n in ("equal_same", "distance_sum")), (("block", *lh), "int64")),
    }
    actual = {name: (study.data[name].dims, str(study.data[name].dtype)) for name in expected}
    assert actual == expected


@pytest.mark.parametrize("kernel", TALLIERS)
def test_high_is_strict(kernel: str):
    # θ = 0.5: head 0's values 2 of 4 are not above half of the largest; only (1,3) is.
    sums = tally(kernel, TallySettings(SHAPE, 0.5, 0.5, 1.0), [WINDOW], [OUTPUT], [ATTENTION])
    assert sums["pairs"].sum(0).tolist() == [[1, 0, 10]]


@pytest.mark.parametrize("kernel", TALLIERS)
@pytest.mark.parametrize(("value", "near"), [(0.300004, 2), (0.299996, 2), (0.30002, 0), (0.29998, 0)])
def test_near_threshold(kernel: str, value: float, near: int):
    # One number a token: 1, 1, v. C01 = 1 = max, C02 = C12 = v: two pairs this near to θ = 0.3, or none.
    output = torch.tensor([[[[1.0]], [[1.0]], [[value]]]], dtype=torch.float64)
    maps = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    sums = tally(kernel, TallySettings(Shape(1, 1, 3), 0.3, 0.3, 1.0), [window([1, 7, 2])], [output], [maps])
    assert sums["near_threshold"].sum() == near


@pytest.mark.parametrize("kernel", TALLIERS)
def test_ties_go_to_the_token_met_first(kernel: str):
    # Outputs 1 1 0 0: one pair, (0,1), of the values 9 and 3: each is in it once, and 9 comes first. The second head's
    # pair is (2,3), of 3 and 8: 3 was met at position 1. So two different dominant tokens, 9 and 3.
    output = torch.tensor([[[[1.0], [0.0]], [[1.0], [0.0]], [[0.0], [1.0]], [[0.0], [1.0]]]], dtype=torch.float64)
    maps = torch.full((1, 2, 4, 4), 0.25, dtype=torch.float64)
    counting = TallySettings(Shape(1, 2, 4), 0.3, 0.3, 1.0)
    for ids, distinct in (([9, 3, 3, 8], 2), ([3, 9, 8, 3], 1), ([3, 9, 8, 7], 2)):
        sums = tally(kernel, counting, [window(ids)], [output], [maps])
        assert sums["distinct_dominants"].sum((0, 1)).tolist() == [float(k == distinct) for k in range(3)], ids


@pytest.mark.parametrize("kernel", TALLIERS)
def test_receivers_count_in_order(kernel: str):
    # [CLS] , a . [SEP], attention spread evenly over all five: columns 0, 1, 3, 4 have receivers of their own, though
    # their tokens are also "itself" or "neighbour" to some; of column 2 one element is itself, two neighbours, two not.
    maps = torch.full((1, 1, 5, 5), 0.2, dtype=torch.float64)
    output = torch.zeros((1, 5, 1, 1), dtype=torch.float64)
    sums = tally(kernel, TallySettings(Shape(1, 1, 5), 0.3, 0.3, 1.0), [window([1, 5, 7, 4, 2])], [output], [maps])
    np.testing.assert_allclose(sums["attention_received"].sum(0)[0], [1, 1, 1, 1, 0.2, 0.4, 0.4])
    np.testing.assert_allclose(sums["attention_spread"].sum(0), [1, 1, 1, 1, 0.2, 0.4, 0.4])


@pytest.mark.parametrize("kernel", TALLIERS)
def test_causal_attention_spreads_over_what_came_before(kernel: str):
    # Three words; row 0 looks at 0 only, row 1 at 0 and 1, row 2 at all: 1 + 1/2 + 1/3 to the first, 1/2 + 1/3 to
    # themselves, 1/3 to the neighbour before (column 1 from row 2).
    counting = TallySettings(Shape(1, 1, 3), 0.3, 0.3, 1.0, causal=True)
    maps, output = torch.eye(3).double()[None, None], torch.zeros((1, 3, 1, 1)).double()
    sums = tally(kernel, counting, [window([7, 8, 9])], [output], [maps])
    np.testing.assert_allclose(sums["attention_spread"].sum(0), [11 / 6, 0, 0, 0, 5 / 6, 1 / 3, 0])


@pytest.mark.parametrize("kernel", TALLIERS)
def test_outside_the_sample_only_the_costly_quantities_are_missing(kernel: str):
    sums = tally(kernel, TallySettings(SHAPE, 0.3, 0.5, 0.0), [WINDOW], [OUTPUT], [ATTENTION])
    for quantity in QUANTITIES:
        assert (sums[quantity.name].sum() == 0) == quantity.sample or quantity.name in (
            "equal_same",
            "all_equal_same",
            "near_threshold",
            "attends_duplicate_sum",
            *(name for name in BY_NAME if name.startswith(("far_sink", "attends_sink", "attends_recent"))),
            *(name for name in BY_NAME if name.startswith("attends_distant")),
        )


def test_a_tally_adds():
    sums = tally("reference", TallySettings(SHAPE, 0.3, 0.5, 1.0), [WINDOW], [OUTPUT], [ATTENTION])
    before = {name: array.copy() for name, array in sums.arrays.items()}
    total = Tally.zeros(SHAPE) + sums + sums
    assert all((total[name] == 2 * sums[name]).all() for name in sums.arrays)
    assert total.most_attended[1].sum() == 2
    assert sums.most_attended[1].sum() == 1
    assert all((sums[name] == array).all() for name, array in before.items())
    assert study_of(total).rate("repeat_rate").values[0, 0] == 1 / 3
    with pytest.raises(ValueError, match="different shape"):
        total + Tally.zeros(Shape(1, 2, 6))


def test_blocks_follow_the_digest_of_the_ids():
    other = window([1, 8, 4, 7, 2])
    tallier = TorchTallier(TallySettings(SHAPE, 0.3, 0.5, 1.0))
    tallier.begin(Batch.of([WINDOW, other]))
    tallier.end()
    texts = tallier.get_sums()["texts"]
    assert {int(k) for k in np.flatnonzero(texts)} == {WINDOW.digest % BLOCKS, other.digest % BLOCKS}

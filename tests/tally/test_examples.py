"""The choice of examples: worked by hand, and independent of batches, their order, and interruptions."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Batch
from headscope.similarity import list_pairs, mark_high
from headscope.studies import rates
from headscope.tally import example_store, examples
from headscope.tally.example_store import COUNTS, RATES, ExampleStore, decode_pairs, encode_pairs
from headscope.tally.quantities import Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tally, TallySettings
from headscope.tally.token_counts import TokenCounts
from tests.helpers.synthetic import TALLIERS, tally, window
from tests.helpers.tally_cases import Case, assert_same_tokens_and_examples


def make_maps(texts: int, heads: int, n: int) -> torch.Tensor:
    return torch.full((texts, heads, n, n), 1 / n, dtype=torch.float64)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_one_window_by_hand(kernel: str):
    # Outputs 4 3 2 2 1 0 (one number a token), θ = 0.15: C01 = 12 = max; high are products above 1.8.
    #   01: 12   02: 8   03: 8   04: 4   12: 6   13: 6   14: 3   23: 4   24: 2   34: 2: ten pairs.
    # Ids 7 8 7 9 8 2: equal are 02 and 14. Sentences 0 0 1 1 1 1: 01, 23, 24, 34. At most 2 apart: 01 02 12 13 23 24
    # 34. Token 7 (positions 0, 2) is in 01 02 03 04 12 23 24, 8 (1, 4) in 01 04 12 13 14 24 34: 7 each, 7 is met first.
    # Distances: 1 2 3 4 1 2 3 1 2 1 = 20. Levels 255·C/12: 255, 170, 170, 85, 127.5 → 128 (to even), 128, 64, 85,
    # 42.5 → 42 (to even), 42.
    text = window([7, 8, 7, 9, 8, 2], [0, 0, 1, 1, 1, 1])
    output = torch.tensor([4.0, 3, 2, 2, 1, 0], dtype=torch.float64).view(1, 6, 1, 1)
    counting = TallySettings(Shape(1, 1, 8, width=1), 0.15, 0.3, 1.0)
    sums = tally(kernel, counting, [text], [output], [make_maps(1, 1, 6)])
    store = sums.examples
    expected = dict(zip(COUNTS, (10, 2, 4, 7, 7, 20), strict=True))
    assert dict(zip(COUNTS, store.sketch_counts[0, 0, 0].tolist(), strict=True)) == expected
    assert store.sketch_digests.tolist() == [text.digest]
    assert store.windows[text.digest].tolist() == text.ids.tolist()
    i, j, level = (values[:10].tolist() for values in decode_pairs(store.sketch_keys[0, 0, 0]))
    assert list(zip(i, j, level, strict=True)) == [
        (0, 1, 255), (0, 2, 170), (0, 3, 170), (1, 2, 128), (1, 3, 128), (0, 4, 85), (2, 3, 85), (1, 4, 64),
        (2, 4, 42), (3, 4, 42),
    ]  # fmt: skip
    assert store.sketch_keys[0, 0, 0, 10:].tolist() == [-1, -1]
    assert store.top_digests[0, 0, :, 0].tolist() == [text.digest] * len(RATES)  # ten pairs are just enough
    assert store.top_counts[0, 0, :, 1].max() == 0
    assert sums.dominant_tokens.list_entries().tolist() == [[7, 0, 0, 1]]


@pytest.mark.parametrize("kernel", TALLIERS)
def test_the_strongest_by_hand(kernel: str):
    # All outputs are alike: all 10 pairs of 5 tokens are high, 15 of 6. Repeat rates: 1/10, 3/10, 3/15, 0 of 6 (four
    # tokens are too few), and 3/10 again: the tie goes to the smaller digest.
    texts = [window(ids) for ids in ([3, 6, 7, 8, 3], [3, 3, 3, 7, 8], [3, 3, 3, 7, 8, 9], [3, 3, 3, 3])]
    texts.append(window([9, 9, 9, 7, 8]))
    n = 6
    output = torch.ones((5, n, 1, 1), dtype=torch.float64)
    counting = TallySettings(Shape(1, 1, 8, width=1), 0.3, 0.3, 1.0)
    maps = make_maps(5, 1, n)
    store = tally(kernel, counting, texts, [output], [maps]).examples
    tied = sorted([texts[1].digest, texts[4].digest])
    assert store.top_digests[0, 0, RATES.index("repeat_rate")].tolist() == tied
    # Mean distance: 20/10 in all windows of five tokens, 35/15 in that of six. Of the three, the smallest digest.
    fives = min(texts[k].digest for k in (0, 1, 4))
    assert store.top_digests[0, 0, RATES.index("mean_distance")].tolist() == [texts[2].digest, fives]
    assert store.sketch_digests.tolist() == sorted(text.digest for text in texts)


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(2, 11), min_size=1, max_size=8),
    heads=st.integers(1, 3),
    layers=st.integers(1, 2),
    fraction=st.sampled_from([0.5, 1.0]),
    causal=st.booleans(),
)


def tally_in_batches(case: Case, kernel: str, order: list[int], edges: list[int]) -> Tally:
    """Return the sums of several batches that one tallier sees one after the other."""
    tallier = TALLIERS[kernel](case.counting)
    for start, stop in zip([0, *edges], [*edges, len(order)], strict=True):
        rows = order[start:stop]
        if not rows:
            continue
        windows = [case.windows[row] for row in rows]
        longest = max(map(len, windows))
        tallier.begin(Batch.of(windows))
        for layer, (output, maps) in enumerate(zip(case.outputs, case.maps, strict=True)):
            tallier.observe_layer(layer, output[rows, :longest], maps[rows][:, :, :longest, :longest])
        tallier.end()
    return tallier.get_sums()


@pytest.mark.parametrize("kernel", TALLIERS)
@settings(max_examples=25, deadline=None)
@given(case=cases, random=st.randoms(use_true_random=False), sketch=st.integers(1, 3))
def test_batches_and_their_order_do_not_matter(kernel: str, case: Case, random, sketch: int):
    order = list(range(len(case.windows))) * 2  # every text twice
    random.shuffle(order)
    edges = sorted(random.randrange(len(order) + 1) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        for module in (example_store, examples):
            patch.setattr(module, "SKETCH", sketch)  # so that windows are left out
        patch.setattr("headscope.tally.reference_examples.SKETCH", sketch)
        expected = case.tally("reference")
        actual = tally_in_batches(case, kernel, order, edges)
    assert_same_examples(actual.examples, expected.examples)
    doubled = expected.dominant_tokens.copy()
    doubled.add(expected.dominant_tokens)
    assert actual.dominant_tokens.list_entries().tolist() == doubled.list_entries().tolist()


def assert_same_examples(actual: ExampleStore, expected: ExampleStore) -> None:
    arrays = expected.to_arrays()
    for name, array in actual.to_arrays().items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def make_store(seed: int, texts: list[int]) -> ExampleStore:
    """Return the examples of texts with random counts, which follow from their digests."""
    windows = [window([text, 3, 4, 5]) for text in texts]
    chosen = examples.ExampleTexts(windows, Shape(1, 2, 8), 0.3, None)
    generators = [np.random.default_rng((seed, text)) for text in texts]
    counts = np.stack([generator.integers(5, 14, (2, len(COUNTS))) for generator in generators])
    keys = np.stack([generator.integers(0, 2**24, (2, 12)) for generator in generators]).astype(np.int32)
    chosen.set_layer(0, counts, keys)
    return chosen.collect()


texts_lists = st.lists(st.integers(0, 12), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 5), parts=st.lists(texts_lists, min_size=3, max_size=3), sketch=st.integers(1, 4))
def test_stores_add_in_any_order_and_grouping(seed: int, parts: list[list[int]], sketch: int):
    with pytest.MonkeyPatch.context() as patch:
        for module in (example_store, examples):
            patch.setattr(module, "SKETCH", sketch)
        whole = make_store(seed, sorted({text for part in parts for text in part}))
        stores = [make_store(seed, part) for part in parts]
        left, right = stores[0].copy(), stores[1].copy()
        left.add(stores[1])
        left.add(stores[2])
        right.add(stores[2])
        right.add(stores[0])
    for total in (left, right, pickle.loads(pickle.dumps(left))):
        assert_same_examples(total, whole)


def test_adding_leaves_the_other_and_the_copied_store_as_they_are():
    first, second = make_store(0, [1, 2, 3]), make_store(0, [4, 5])
    before = first.to_arrays(), second.to_arrays()
    copied = first.copy()
    copied.add(second)
    for store, arrays in zip((first, second), before, strict=True):
        for name, array in store.to_arrays().items():
            np.testing.assert_array_equal(array, arrays[name])
    assert len(copied.windows) == 5


def test_windows_of_equal_digest_with_other_numbers_are_one_whichever_comes_first():
    first, second = make_store(0, [1, 2]), make_store(1, [1, 2])
    forward, backward = first.copy(), second.copy()
    forward.add(second)
    backward.add(first)
    assert_same_examples(forward, backward)
    assert len(forward.windows) == 2


def test_long_windows_are_cut_and_their_pairs_lie_in_what_is_kept():
    n = 300
    text = window([3, *range(10, 10 + n - 1)])
    output = torch.zeros((1, n, 1, 2), dtype=torch.float64)
    output[0, 250:, 0, 0] = torch.linspace(2, 3, 50)  # the strongest pairs are beyond the 256th token
    output[0, :4, 0, 0] = 2.5
    counting = TallySettings(Shape(1, 1, n, maps=False, width=2), 0.3, 0.3, 1.0)
    stores = [tally(kernel, counting, [text], [output], [make_maps(1, 1, n)]).examples for kernel in TALLIERS]
    for store in stores:
        assert_same_examples(store, stores[0])
    assert stores[0].windows[text.digest].tolist() == text.ids[:256].tolist()
    i, j, level = decode_pairs(stores[0].sketch_keys[0, 0, 0])
    assert (level > 0).all()
    assert (i < j).all()
    assert j.max() <= 255
    assert stores[0].sketch_counts[0, 0, 0, 0] == 54 * 53 // 2  # of the whole window


def test_pairs_of_equal_steps_are_ordered_by_position():
    vectors = torch.ones((1, 20, 1), dtype=torch.float64)  # all of 190 pairs are the strongest
    vectors[0, 7] = 1.0001  # the same step, although larger
    keys = examples.find_strongest_pairs(vectors, torch.tensor([20]), 0.3)
    i, j, level = decode_pairs(keys[0].numpy())
    assert [i.tolist(), j.tolist(), set(level.tolist())] == [[0] * 12, list(range(1, 13)), {255}]


@pytest.mark.parametrize("n", [2, 5, 30])
def test_counts_on_a_device_are_those_of_the_loops(n: int):
    random = np.random.default_rng(n)
    texts = [window(random.integers(1, 9, m).tolist()) for m in (n, max(2, n // 2))]
    output = torch.from_numpy(random.normal(0.3, 1, (2, n, 3, 4)))
    batch = Batch.of(texts)
    sentences = torch.zeros((2, n), dtype=torch.int64)
    for row, text in enumerate(texts):
        sentences[row, : len(text)] = torch.from_numpy(text.sentence)
    lengths = torch.tensor([len(text) for text in texts])
    counts = examples.count_head_pairs(output, torch.from_numpy(batch.ids), sentences, lengths, 0.3)
    tallier = ReferenceTallier(TallySettings(Shape(1, 3, n + 1, width=4), 0.3, 0.3, 1.0))
    tallier.begin(batch)
    tallier.observe_layer(0, output, make_maps(2, 3, n))
    expected = {(record.window.digest, record.head): list(record.counts) for record in tallier.records}
    for row, text in enumerate(texts):
        assert [expected[text.digest, head] for head in range(3)] == counts[row].tolist()


def test_without_examples_only_tokens_are_counted():
    case = Case(3, [9, 8], 2, 1, 1.0, causal=False)
    case.counting = TallySettings(Shape(1, 2, 11, width=3, examples=False), 0.3, 0.3, 1.0)
    for kernel in TALLIERS:
        sums = case.tally(kernel)
        assert not sums.examples.windows
        assert sums.dominant_tokens.total == sums["texts_with_pairs"].sum() > 0


def test_tallies_with_tokens_and_examples_add_move_and_are_pickled():
    case = Case(5, [9, 8, 11], 2, 1, 1.0, causal=False)
    whole = case.tally("torch")
    first, second = case.tally("torch", [0]), case.tally("torch", [1, 2])
    assert_same_tokens_and_examples(pickle.loads(pickle.dumps(first)) + second, whole)
    total = Tally.zeros(case.counting.shape)
    total.move_from(first)
    total.add(second)
    assert_same_tokens_and_examples(total, whole)
    assert not first.examples.windows
    assert first.dominant_tokens.total == 0


def test_pairs_are_encoded_without_loss():
    i, j, level = np.array([0, 254, 3]), np.array([1, 255, 200]), np.array([255, 1, 77])
    assert [values.tolist() for values in decode_pairs(encode_pairs(i, j, level))] == [
        i.tolist(), j.tolist(), level.tolist()
    ]  # fmt: skip


def test_neighbors_are_those_of_the_rates():
    assert example_store.NEIGHBORS == rates.NEIGHBORS
    assert set(RATES) <= set(rates.HEAD_RATES)
    assert list_pairs(mark_high(np.zeros((3, 3)))) == []


@pytest.mark.parametrize("spoil", ["dtype", "windows", "length"])
def test_arrays_of_another_store_are_refused(spoil: str):
    arrays = make_store(0, [1, 2, 3]).to_arrays()
    if spoil == "dtype":
        arrays["sketch_counts"] = arrays["sketch_counts"].astype(np.int32)
    elif spoil == "windows":
        arrays |= {name: arrays[name][:1] for name in ("window_digests", "window_lengths")}
    else:
        arrays["sketch_keys"] = arrays["sketch_keys"][:1]
    with pytest.raises(ValueError, match="examples"):
        ExampleStore.from_arrays(1, 2, arrays)


# -- token counts ------------------------------------------------------------------------------------------------------

tokens_lists = st.lists(st.lists(st.integers(-1, 4), min_size=2, max_size=2), max_size=6)


@settings(max_examples=50, deadline=None)
@given(first=tokens_lists, second=tokens_lists, most=st.integers(0, 4))
def test_token_counts_are_those_of_loops(first: list[list[int]], second: list[list[int]], most: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headscope.tally.token_counts.MAX_PENDING", most)
        parts = []
        for rows in (first, second):
            counts = TokenCounts(layers=2, heads=2)
            for row in rows:
                counts.add_layer(1, np.array([row]))
            parts.append(counts)
        total, other = parts[0].copy(), pickle.loads(pickle.dumps(parts[1]))
        total.add(parts[1])
        other.add(parts[0])
    expected = {}
    for row in first + second:
        for head, token in enumerate(row):
            if token >= 0:
                expected[head, token] = expected.get((head, token), 0) + 1
    rows = [[token, 1, head, count] for (head, token), count in sorted(expected.items())]
    assert total.list_entries().tolist() == other.list_entries().tolist() == rows
    assert parts[0].total == sum(token >= 0 for row in first for token in row)


@pytest.mark.parametrize("keys", [[2, 1], [1, 1], [-1, 2]])
def test_arrays_of_no_token_counts_are_refused(keys: list[int]):
    with pytest.raises(ValueError, match="token counts"):
        TokenCounts.from_arrays(1, 2, np.array(keys), np.array([1, 1]))

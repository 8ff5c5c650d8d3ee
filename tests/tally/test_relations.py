"""Sums of labelled relations: worked by hand, and every backend against the plain loops.

Worked by hand: a text of five tokens, of which 0 and 4 are special and 1, 2, 3 begin words, and one head that writes
(1,0) (2,0) (0,1) (2,1) (0,−1). As in tests/tally/test_hand_worked.py, (0,1), (0,3) and (1,3) are high. Its attention:

    1    0    0    0    0
    .5   .5   0    0    0
    .5   0    .5   0    0
    .5   .1   .3   .1   0
    .5   0    0    0    .5

The pair (3, 1) is labelled "conj": it is high. Of words 2 apart there is no other pair: 1 is expected.
    A from 3 to 1 is .1, as expected; A from 1 to 3 is 0, as expected.
The pairs (1, 2) and (3, 2) are labelled "amod": they are not high, nor is any pair of words 1 apart: 0 is expected.
    A from a to b: 0 + .3; expected: of (1,2), (2,3) the mean 0; of (2,1), (3,2) the mean (0 + .3)/2 = .15.
    A from b to a: A21 + A23 = 0; expected .15 + 0.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Batch
from headscope.errors import StudyError
from headscope.model.capture.plain_attention import attend
from headscope.tally import relation_sums
from headscope.tally.numba_backend.tallier import NumbaTallier
from headscope.tally.quantities import MAX_RELATIONS, Shape
from headscope.tally.reference import ReferenceTallier
from headscope.tally.tally import Tallier, Tally, TallySettings
from tests.helpers.attention_inputs import question, windows_of
from tests.helpers.labelling import assert_same_relations, draw_relations, relate
from tests.helpers.synthetic import TALLIERS, tally, window
from tests.helpers.tally_cases import Case

WINDOW = relate(window([1, 7, 4, 7, 2]), [(3, 1, "conj"), (1, 2, "amod"), (3, 2, "amod")], words=[1, 2, 3])
OUTPUT = torch.tensor([[1.0, 0], [2, 0], [0, 1], [2, 1], [0, -1]], dtype=torch.float64)[None, :, None]
MAPS = torch.tensor(
    [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0.1, 0.3, 0.1, 0], [0.5, 0, 0, 0, 0.5]],
    dtype=torch.float64,
)[None, None]
COUNTING = TallySettings(Shape(1, 1, 6, width=2), 0.3, 0.3, 1.0)
BY_HAND = {
    "conj": {"texts": 1, "pairs": 1, "high": 1, "expected": 1.0, "attention_ab": 0.1, "attention_ab_expected": 0.1,
             "attention_ba": 0.0, "attention_ba_expected": 0.0},
    "amod": {"texts": 1, "pairs": 2, "high": 0, "expected": 0.0, "attention_ab": 0.3, "attention_ab_expected": 0.15,
             "attention_ba": 0.0, "attention_ba_expected": 0.15},
}  # fmt: skip


@pytest.mark.parametrize("kernel", TALLIERS)
def test_a_text_worked_by_hand(kernel: str):
    sums = tally(kernel, COUNTING, [WINDOW], [OUTPUT], [MAPS])
    for label, numbers in BY_HAND.items():
        arrays = sums.relations[label]
        for name, value in numbers.items():
            array = arrays[f"relation_{name}"]
            assert array[WINDOW.block].sum() == pytest.approx(value), (label, name)
            assert array.sum() == pytest.approx(value), (label, name)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_high_pairs_of_other_words_are_what_is_expected(kernel: str):
    """All six tokens begin words, and write 1 or 0: (0, 2), (0, 4) and (2, 4) are high, 2 of the 4 pairs 2 apart."""
    text = relate(window([6, 7, 8, 6, 7, 8]), [(0, 2, "conj"), (3, 1, "conj"), (0, 4, "amod")])
    output = torch.tensor([1.0, 0, 1, 0, 1, 0], dtype=torch.float64)[None, :, None, None]
    maps = torch.full((1, 1, 6, 6), 1 / 6, dtype=torch.float64)
    sums = tally(kernel, COUNTING, [text], [output], [maps]).relations
    assert sums["conj"]["relation_high"].sum() == 1
    assert sums["conj"]["relation_expected"].sum() == pytest.approx(2 * 2 / 4)
    assert sums["amod"]["relation_high"].sum() == 1
    assert sums["amod"]["relation_expected"].sum() == pytest.approx(1 / 2)  # (0, 4), and not (1, 5)
    assert sums["conj"]["relation_attention_ba"].sum() == pytest.approx(2 / 6)


@pytest.mark.parametrize("kernel", TALLIERS)
def test_texts_outside_of_the_sample_and_without_labels_add_nothing(kernel: str):
    unlabelled = tally(kernel, COUNTING, [window([1, 7, 4, 7, 2])], [OUTPUT], [MAPS])
    counting = TallySettings(Shape(1, 1, 6, width=2), 0.3, 0.3, 0.0)
    assert unlabelled.relations == tally(kernel, counting, [WINDOW], [OUTPUT], [MAPS]).relations == {}
    assert tally(kernel, COUNTING, [relate(WINDOW, [])], [OUTPUT], [MAPS]).relations == {}


def label_case(case: Case, seed: int) -> Case:
    random = np.random.default_rng(seed)
    case.windows = [draw_relations(random, text) for text in case.windows]
    return case


cases = st.builds(
    label_case,
    st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        lengths=st.lists(st.integers(2, 11), min_size=1, max_size=5),
        heads=st.integers(1, 4),
        layers=st.integers(1, 2),
        fraction=st.sampled_from([0.5, 1.0]),
        causal=st.booleans(),
    ),
    seed=st.integers(0, 2**32 - 1),
)


@pytest.mark.parametrize("kernel", ["torch", "numba"])
def test_fast_backends_equal_plain_loops(kernel: str):
    @settings(max_examples=40, deadline=None)
    @given(cases)
    def is_equal(case: Case) -> None:
        actual, expected = case.tally(kernel), case.tally("reference")
        exact = not expected["near_threshold"].any()
        assert_same_relations(actual, expected, atol=1e-9 if exact else 10.0, exact=exact)

    is_equal()


@settings(max_examples=20, deadline=None)
@given(cases, st.randoms(use_true_random=False))
def test_texts_can_be_counted_apart_in_any_order(case: Case, random):
    rows = list(range(len(case.windows)))
    random.shuffle(rows)
    total = Tally.zeros(case.counting.shape)
    for row in rows:
        total.add(case.tally("torch", [row]))
    assert_same_relations(total, case.tally("torch"), atol=1e-9)


def test_long_texts_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch):
    case = label_case(Case(3, [11, 9, 11, 5, 7], 3, 1, 1.0, False), 3)
    together = case.tally("torch")
    monkeypatch.setattr(relation_sums, "MAX_ELEMENTS", 800)
    assert_same_relations(case.tally("torch"), together)
    assert together.relations


def make_gpu_tallier(counting: TallySettings) -> Tallier:
    pytest.importorskip("triton")
    from headscope.tally.triton_backend.tallier import TritonTallier

    return TritonTallier(counting, "cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make_tallier", [NumbaTallier, make_gpu_tallier], ids=["numba", "triton"])
@pytest.mark.parametrize("shows_maps", [False, True])
def test_backends_that_compute_attention_themselves(make_tallier, causal: bool, shows_maps: bool):
    random = np.random.default_rng(5)
    batch = Batch.of([draw_relations(random, text) for text in windows_of(random, [30, 17, 9, 23])])
    counting = TallySettings(Shape(2, 2, 31, width=5), 0.3, 0.3, 1.0, causal)
    tallier, reference = make_tallier(counting), ReferenceTallier(counting)
    device = getattr(tallier, "device", torch.device("cpu"))
    tallier.begin(batch)
    reference.begin(batch)
    for layer in range(2):
        inputs = question(random, batch, 2, causal=causal)
        output, maps = attend(inputs)
        if shows_maps:
            tallier.observe_layer(layer, output.to(device), maps.to(device))
        else:
            moved = [None if t is None else t.to(device) for t in (inputs.query, inputs.key, inputs.value, inputs.mask)]
            output = tallier.attend(layer, type(inputs)(*moved, inputs.scaling, causal)).cpu()
        reference.observe_layer(layer, output, maps)
    tallier.end()
    reference.end()
    assert reference.get_sums().relations
    assert_same_relations(tallier.get_sums(), reference.get_sums(), rtol=2e-5, atol=2e-5)


def test_too_many_relations_are_refused():
    sums = Tally.zeros(Shape(1, 1, 4))
    for number in range(MAX_RELATIONS):
        sums.relate(f"r{number}")
    with pytest.raises(StudyError, match=f"more than {MAX_RELATIONS} different labelled relations \\('another'"):
        sums.relate("another")

"""Attention scores (METHOD §7), worked out by hand for two small windows; and what they are for any text.

    position   0      1   2   3   4   5          special: 0 and 5; punctuation: 2 (a full stop)
    token     [CLS]   a   .   a   b  [SEP]       duplicates: 1 and 3; 3 comes again after 1, which 2 followed
    id          1     7   4   7   8   2

The map of the first head:

    query 0    1    0    0    0    0    0
    query 1    .5   .25  0    .25  0    0
    query 2    0    .5   .5   0    0    0
    query 3    .25  .25  .5   0    0    0
    query 4    0    0    .25  .5   0    .25
    query 5    0    0    0    0    .5   .5

    previous   queries 1…5: .5 + .5 + .5 + .5 + .5 = 2.5 of 5        next      0…4: 0 + 0 + 0 + 0 + .25 of 5
    self       1 + .25 + .5 + 0 + 0 + .5 = 2.25 of 6                 first     1…5: .5 + 0 + .25 + 0 + 0 of 5
    special    queries 1…4, keys 0 and 5: .5 + 0 + .25 + .25 of 4    punctuation  key 2, all but query 2: .75 of 5
    duplicate  query 1 to 3: .25, query 3 to 1: .25, of 2            induction    query 3 to key 2: .5 of 1
    distance   0; 1·.5 + 2·.25 = 1; 1·.5; 3·.25 + 2·.25 + 1·.5 = 1.75; 2·.25 + 1·.5 + 1·.25 = 1.25; .5: 5 of 6
    entropy    of .5 .25 .25: 1.5 bits, three times; of .5 .5: 1 bit, twice; together 6.5 bits, of log₂6 each, 6 queries

Spread evenly, each key gets 1/6: special 2/6, with one target 1/6; distance: Σ|i − j|/6 = 70/6, of 6 queries.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.corpus.windows import Window
from headscope.studies.labels import add_derived_variables
from headscope.studies.rates import ATTENTION_SCORES
from headscope.tally.quantities import ENTROPY, SCORES, Shape
from headscope.tally.tally import TallySettings
from tests.helpers.synthetic import TALLIERS, make_masked_maps, study_of, tally, window

WINDOW = window([1, 7, 4, 7, 8, 2])
MAP = [
    [1, 0, 0, 0, 0, 0],
    [0.5, 0.25, 0, 0.25, 0, 0],
    [0, 0.5, 0.5, 0, 0, 0],
    [0.25, 0.25, 0.5, 0, 0, 0],
    [0, 0, 0.25, 0.5, 0, 0.25],
    [0, 0, 0, 0, 0.5, 0.5],
]
EXPECTED = {
    "attends_previous": (2.5, 5),
    "attends_next": (0.25, 5),
    "attends_self": (2.25, 6),
    "attends_first": (0.75, 5),
    "attends_special": (1.0, 4),
    "attends_punctuation": (0.75, 5),
    "attends_duplicate": (0.5, 2),
    "attends_induction": (0.5, 1),
    "attention_entropy": (6.5 / np.log2(6), 6),
    "attention_distance": (5.0, 6),
}
CHANCES = dict.fromkeys(EXPECTED, 1 / 6) | {
    "attends_special": 2 / 6,
    "attention_entropy": 1.0,
    "attention_distance": 70 / 36,
}


def measure(kernel: str, windows: list[Window], maps: torch.Tensor, causal: bool = False, **changes: object):
    """Return the study of one layer with these maps (text, head, query, key)."""
    count, heads, n, _ = maps.shape
    counting = TallySettings(Shape(1, heads, max(n, 3), width=2), 0.3, 0.3, 1.0, causal)
    output = torch.ones(count, n, heads, 2, dtype=torch.float64)
    return study_of(tally(kernel, counting, windows, [output], [maps]), causal=int(causal), **changes)


def make_even_maps(windows: list[Window], heads: int, causal: bool) -> torch.Tensor:
    """Return maps that spread attention evenly."""
    longest = max(map(len, windows))
    maps = torch.zeros(len(windows), heads, longest, longest, dtype=torch.float64)
    for row, text in enumerate(windows):
        reached = torch.ones(len(text), len(text), dtype=torch.float64)
        reached = reached.tril() if causal else reached
        maps[row, :, : len(text), : len(text)] = reached / reached.sum(1, keepdim=True)
    return maps


@pytest.mark.parametrize("kernel", TALLIERS)
class TestWorkedByHand:
    def test_every_token_looks_anywhere(self, kernel: str):
        maps = torch.stack([torch.tensor(MAP, dtype=torch.float64), torch.eye(6, dtype=torch.float64)])[None]
        study = measure(kernel, [WINDOW], maps)
        for name, (total, queries) in EXPECTED.items():
            assert float(study.data[f"{name}_sum"][0, 0]) == pytest.approx(total), name
            assert int(study.data[f"{name}_queries"]) == queries, name
            assert float(study.rate(name)[0, 0]) == pytest.approx(total / queries), name
            assert float(study.chance(name)) == pytest.approx(CHANCES[name]), name
            # the second head looks at itself only
            assert float(study.rate(name)[0, 1]) == pytest.approx(float(name == "attends_self")), name
        for name in ("attends_sink", "attends_recent", "attends_distant"):
            assert study.rate(name).isnull().all()

    def test_only_earlier_tokens_are_seen(self, kernel: str):
        """Head 0 spreads its attention evenly, 1/(i + 1) each; head 1 looks at the first token only."""
        maps = make_even_maps([WINDOW], 2, causal=True)
        maps[:, 1] = 0
        maps[:, 1, :, 0] = 1
        study = measure(kernel, [WINDOW], maps, causal=True)
        expected = {
            "attends_previous": (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6) / 5,
            "attends_self": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6) / 6,
            "attends_first": (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6) / 5,
            "attends_special": (1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 4,
            "attends_punctuation": (1 / 4 + 1 / 5 + 1 / 6) / 3,
            "attends_duplicate": 1 / 4,
            "attends_induction": 1 / 4,
            "attention_entropy": 1.0,
            "attention_distance": (0 + 1 + 2 + 3 + 4 + 5) / 2 / 6,
        }
        for name, value in expected.items():
            assert float(study.rate(name)[0, 0]) == pytest.approx(value), name
            assert float(study.chance(name)) == pytest.approx(value), name
        assert study.rate("attends_next").isnull().all()
        assert np.isnan(float(study.chance("attends_next")))
        assert float(study.rate("attends_first")[0, 1]) == pytest.approx(1.0)
        assert float(study.rate("attention_entropy")[0, 1]) == pytest.approx(0.0)
        assert float(study.rate("attention_distance")[0, 1]) == pytest.approx(15 / 6)

    def test_long_contexts(self, kernel: str):
        """Of 70 tokens, queries 68 and 69 count. Query 68 has sinks 0…3, distant 4, recent 5…68; query 69 distant 4 and
        5. Head 0 is even; head 1 puts 1/2 on token 1, 1/4 on token 4, and the rest on itself."""
        text = window([7] * 70)
        maps = make_even_maps([text], 2, causal=True)
        maps[:, 1, 5:] = 0
        maps[:, 1, 5:, 1], maps[:, 1, 5:, 4] = 0.5, 0.25
        maps[:, 1, 5:] += 0.25 * torch.eye(70, dtype=torch.float64)[5:]
        study = measure(kernel, [text], maps, causal=True)
        chances = {
            "attends_sink": (4 / 69 + 4 / 70) / 2,
            "attends_recent": (64 / 69 + 64 / 70) / 2,
            "attends_distant": (1 / 69 + 2 / 70) / 2,
        }
        for name, chance in chances.items():
            assert int(study.data[f"{name}_queries"]) == 2
            assert float(study.chance(name)) == pytest.approx(chance), name
            assert float(study.rate(name)[0, 0]) == pytest.approx(chance), name
        values = [float(study.rate(name)[0, 1]) for name in chances]
        assert values == pytest.approx([0.5, 0.25, 0.25])

    def test_two_tokens(self, kernel: str):
        study = measure(kernel, [window([7, 7])], torch.tensor([[[[0.5, 0.5], [0.25, 0.75]]]], dtype=torch.float64))
        values = {name: float(study.rate(name)[0, 0]) for name in SCORES}
        assert values["attends_previous"] == values["attends_first"] == 0.25
        assert values["attends_next"] == 0.5
        assert values["attends_duplicate"] == pytest.approx((0.5 + 0.25) / 2)
        assert np.isnan(values["attends_induction"])  # what followed the first 7 is the query itself
        assert np.isnan(values["attends_punctuation"])
        assert values["attends_special"] == 0


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(1, 6), min_size=2, max_size=9), min_size=1, max_size=4),
    causal=st.booleans(),
    kernel=st.sampled_from(sorted(TALLIERS)),
)
def test_even_attention_gives_what_chance_says(texts: list[list[int]], causal: bool, kernel: str):
    windows = [window(ids) for ids in texts]
    study = measure(kernel, windows, make_even_maps(windows, 2, causal), causal=causal)
    for name in SCORES:
        chance = float(study.chance(name))
        np.testing.assert_allclose(study.rate(name).values, np.full((1, 2), chance), atol=1e-12, err_msg=name)
        assert np.isnan(chance) == (int(study.data[f"{name}_queries"]) == 0), name


@pytest.mark.parametrize("kernel", TALLIERS)
def test_what_is_not_there_is_not_in_the_sums(kernel: str):
    """Zero weights add no entropy, and attention on padding adds nothing."""
    maps = torch.full((2, 1, 6, 6), 9.0, dtype=torch.float64)
    maps[0, 0] = torch.tensor(MAP, dtype=torch.float64)
    maps[1, 0, :3] = 0
    maps[1, 0, :3, :3] = torch.eye(3, dtype=torch.float64)
    study = measure(kernel, [WINDOW, window([7, 8, 7])], maps)
    assert float(study.data["attention_entropy_sum"][0, 0]) == pytest.approx(6.5 / np.log2(6))
    assert float(study.data["attends_self_sum"][0, 0]) == pytest.approx(2.25 + 3)
    assert float(study.data["attends_duplicate_sum"][0, 0]) == pytest.approx(0.5)
    assert int(study.data["attends_duplicate_queries"]) == 2 + 2


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(2, 20), min_size=1, max_size=3),
    causal=st.booleans(),
    empty=st.booleans(),
)
def test_maps_in_single_precision_have_the_entropy_of_plain_loops(
    seed: int, lengths: list[int], causal: bool, empty: bool
):
    random = np.random.default_rng(seed)
    windows = [window(random.integers(1, 7, n).tolist()) for n in lengths]
    maps = make_masked_maps(random, windows, 2, max(lengths), causal=causal)
    if empty:
        maps[:, 1] = torch.eye(max(lengths))  # all other weights are 0
    studies = [measure(kernel, windows, maps.float(), causal) for kernel in ("numba", "reference")]
    values = [study.rate("attention_entropy").values for study in studies]
    np.testing.assert_allclose(*values, atol=1e-6)
    assert not (empty and np.nan_to_num(values[0][0, 1]).round(6).any())


def test_scores_have_words_and_sums():
    assert tuple(ATTENTION_SCORES) == SCORES
    assert ATTENTION_SCORES[ENTROPY].chance_numerator == ATTENTION_SCORES[ENTROPY].denominator


def test_images_have_only_scores_without_words():
    study = measure("torch", [WINDOW], make_even_maps([WINDOW], 2, causal=False), modality="image")
    data = add_derived_variables(study.data)
    for name, score in ATTENTION_SCORES.items():
        is_long = name in ("attends_sink", "attends_recent", "attends_distant")
        assert bool(data[name].isnull().all()) == (score.of_words or is_long), name
        assert bool(np.isnan(data[f"{name}_chance"])) == (score.of_words or is_long), name

"""The classic segmenters: they find planted subjects, follow their papers, and accept any text."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from classics import c99, even, texttiling, utiyama_isahara, words
from classics.porter import stem

Segment = Callable[..., list[int]]
BY_CONTENT: dict[str, Segment] = {
    "TextTiling": texttiling.segment,
    "C99": c99.segment,
    "Utiyama–Isahara": utiyama_isahara.segment,
}
ALL: dict[str, Segment] = {**BY_CONTENT, "even": even.segment, "random": even.at_random}

SUBJECTS = [
    "engine wheel brake piston gear driver fuel motor axle valve",
    "violin sonata orchestra pianist melody concert chord opera tempo choir",
    "harvest wheat farmer tractor barley field orchard meadow cattle plough",
    "senator ballot treaty parliament election minister vote embassy cabinet tariff",
]
LINKS = ["and the", "of a", "with its", "for these"]


def plant_subjects(seed: int, lengths: tuple[int, ...]) -> tuple[list[str], list[int]]:
    """Return sentences of one subject after the other, and where each next one starts. Subjects share no word."""
    random = np.random.default_rng(seed)
    sentences = []
    for number, length in enumerate(lengths):
        subject = SUBJECTS[number % len(SUBJECTS)].split()
        for _ in range(length):
            chosen = random.choice(subject, 6, replace=False)
            sentences.append(f"The {chosen[0]} {' '.join(f'{random.choice(LINKS)} {word}' for word in chosen[1:])}.")
    return sentences, np.cumsum(lengths)[:-1].tolist()


# -- planted subjects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_CONTENT)
@pytest.mark.parametrize("lengths", [(7, 5, 8, 6), (4, 9, 6), (6, 6), (5, 7, 6, 8, 5, 9)])
@pytest.mark.parametrize("seed", range(3))
def test_planted_boundaries_are_found(name: str, lengths: tuple[int, ...], seed: int) -> None:
    sentences, true = plant_subjects(seed, lengths)
    assert BY_CONTENT[name](sentences, len(lengths)) == true


@pytest.mark.parametrize("name", BY_CONTENT)
@pytest.mark.parametrize("seed", range(3))
def test_planted_boundaries_are_found_without_their_number(name: str, seed: int) -> None:
    sentences, true = plant_subjects(seed, (7, 5, 8, 6, 7, 6))
    assert BY_CONTENT[name](sentences) == true


@pytest.mark.parametrize("name", BY_CONTENT)
def test_one_sentence_over_and_over_is_left_whole(name: str) -> None:
    assert BY_CONTENT[name](["The motor, its valves and the fuel."] * 12) == []


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "sentences",
    [
        plant_subjects(1, (5, 6, 4))[0],
        ["the same words again"] * 9,
        ["", "…", "The engine.", "", "and of the", "1961 !", "The violin."],
        ["", "  ", "?!", "of the"],
        ["engine"],
        [""],
        ["engine", "violin"],
    ],
)
def test_every_count_is_honoured(name: str, sentences: list[str]) -> None:
    n = len(sentences)
    for count in range(1, n + 1):
        boundaries = ALL[name](sentences, count)
        assert len(boundaries) == count - 1
        assert boundaries == sorted(set(boundaries))
        assert all(0 < boundary < n and type(boundary) is int for boundary in boundaries)
    boundaries = ALL[name](sentences)
    assert boundaries == sorted(set(boundaries))
    assert all(0 < boundary < n for boundary in boundaries)


@pytest.mark.parametrize("name", ALL)
def test_counts_that_cannot_be(name: str) -> None:
    assert ALL[name]([]) == ALL[name]([], 1) == []
    for count in (0, -1, 4):
        with pytest.raises(ValueError, match=f"3 sentences cannot make {count} segments"):
            ALL[name](["engine", "violin", "wheat"], count)


# -- without reading --------------------------------------------------------------------------------------------------


def test_even_spacing_by_hand() -> None:
    assert even.segment(["…"] * 12, 3) == [4, 8]
    assert even.segment(["…"] * 11, 3) == [4, 7]  # 3.67 and 7.33 rounded
    assert even.segment(["…"] * 21) == [7, 14]
    assert even.segment(["…"] * 3) == []


def test_random_boundaries_are_random_but_the_same_again() -> None:
    texts = [[f"{text} {sentence}" for sentence in range(15)] for text in range(600)]
    known = [even.at_random(text, 4) for text in texts]
    assert known == [even.at_random(text, 4) for text in texts]
    assert known != [even.at_random(text, 4, seed=1) for text in texts]
    places = np.bincount(np.concatenate(known), minlength=15)
    assert places[0] == 0
    assert np.abs(places[1:] - 600 * 3 / 14).max() < 5 * math.sqrt(600 * 3 / 14)
    drawn = np.mean([len(even.at_random(text)) for text in texts])
    assert drawn == pytest.approx(14 / even.LENGTH, abs=0.3)


# -- words ------------------------------------------------------------------------------------------------------------

PORTER = """
    caresses caress  ponies poni  ties ti  caress caress  cats cat  feed feed  agreed agre  plastered plaster
    bled bled  motoring motor  sing sing  conflated conflat  troubled troubl  sized size  hopping hop  tanned tan
    falling fall  hissing hiss  fizzed fizz  failing fail  filing file  happy happi  sky sky  relational relat
    conditional condit  rational ration  digitizer digit  vietnamization vietnam  predication predic  operator oper
    feudalism feudal  decisiveness decis  hopefulness hope  callousness callous  sensibiliti sensibl
    triplicate triplic  formative form  formalize formal  electrical electr  goodness good  revival reviv
    allowance allow  inference infer  airliner airlin  gyroscopic gyroscop  adjustable adjust  defensible defens
    irritant irrit  replacement replac  adjustment adjust  dependent depend  adoption adopt  communism commun
    activate activ  homologous homolog  effective effect  bowdlerize bowdler  probate probat  rate rate  cease ceas
    controll control  roll roll  generalizations gener  oscillators oscil  communion communion  snowing snow
    crying cry
"""


def test_stems_of_porters_examples() -> None:
    # Porter 1980; the paper shows most of them step by step, these are the results of all steps
    porter_words = PORTER.split()
    examples = dict(zip(porter_words[::2], porter_words[1::2], strict=True))
    assert {word: stem(word) for word in examples} == examples
    assert [stem(word) for word in ("", "a", "is", "by", "yes")] == ["", "a", "is", "by", "ye"]


def test_words_of_a_sentence() -> None:
    assert words.stems("The Engines' 12 valves -- it's a well-oiled motor, isn't it?") == [
        "engin", "valv", "oil", "motor",
    ]  # fmt: skip
    assert words.stems("Élan, naïve façade") == ["élan", "naïv", "façad"]
    rows = words.numbered(["engine, valve, engines", "", "valve fuel"])
    assert [row.tolist() for row in rows] == [[0, 1, 0], [], [1, 2]]
    assert words.counted(["engine, valve, engines", "", "valve fuel"]).tolist() == [[2, 1, 0], [0, 0, 0], [0, 1, 1]]
    assert words.counted(["", "of"]).shape == (2, 0)


# -- TextTiling -------------------------------------------------------------------------------------------------------


def test_block_scores_by_hand() -> None:
    counts = np.array([[1, 0], [1, 1], [0, 2], [0, 0]])
    # Blocks of two: [1 0] · [1 3]; [2 1] · [0 2]; [1 3] · [0 0]
    expected = [1 / math.sqrt(10), 2 / math.sqrt(5 * 4), 0]
    np.testing.assert_allclose(texttiling.scores(counts, 2), expected)


def test_depths_by_hand() -> None:
    depth, valley = texttiling.depths(np.array([0.2, 0.6, 0.9, 0.3, 0.5, 0.5, 0.1, 0.1, 0.4]))
    np.testing.assert_allclose(depth, [0.7, 0.3, 0, 0.6 + 0.2, 0, 0, 0.4 + 0.3, 0.4 + 0.3, 0], atol=1e-12)
    assert np.flatnonzero(valley).tolist() == [0, 3, 6, 7]


@pytest.mark.parametrize(
    ("deep", "expected"),
    [  # mean less half a deviation is 0.78 − 0.41 / 2 = 0.57, and 0.6 − 0.35 / 2 = 0.43
        ([0.8, 1.0, 0.1, 1.2], [3, 7, 15]),
        ([0.4, 0.4, 1.2, 0.4], [11]),
        ([0.45] * 7, [3, 7, 11, 15, 19, 23, 27]),  # all alike, but their mean rounds to a little more
    ],
)
def test_valleys_below_the_cutoff_are_no_boundaries(
    deep: list[float], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    heights = np.ones(4 * len(deep) + 1)  # peaks at every fourth gap, valleys in the middle, slopes in between
    for number, depth in enumerate(deep):
        heights[4 * number + 1 : 4 * number + 4] -= np.array([0.25, 0.5, 0.25]) * depth
    monkeypatch.setattr(texttiling, "scores", lambda counts: heights)
    sentences = ["…"] * (len(heights) + 1)
    assert texttiling.segment(sentences) == expected
    assert texttiling.segment(sentences, 2) == [4 * int(np.argmax(deep)) + 3]


def test_a_valley_goes_before_a_slope_that_is_deeper(monkeypatch: pytest.MonkeyPatch) -> None:
    heights = np.array([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 0.9, 1.0])
    depth, _ = texttiling.depths(heights)
    assert depth[2] > depth[11]
    monkeypatch.setattr(texttiling, "scores", lambda counts: heights)
    assert texttiling.segment(["…"] * 14, 3) == [6, 12]


def test_boundaries_are_apart_where_that_is_possible() -> None:
    assert texttiling.apart([5, 6, 3, 8, 2, 20], 10) == [5, 8, 2, 20]
    assert texttiling.apart([5, 6, 3, 8, 2, 20], 2) == [5, 8]


# -- C99 --------------------------------------------------------------------------------------------------------------


def test_ranks_by_hand() -> None:
    matrix = np.array([[9, 4, 1], [4, 9, 4], [1, 4, 9]]) / 9
    # A mask of 3 covers 2×2 in a corner, 2×3 at an edge, 3×3 in the middle; each has itself to leave out.
    np.testing.assert_allclose(
        c99.ranks(matrix, 3), [[2 / 3, 1 / 5, 0 / 3], [1 / 5, 6 / 8, 1 / 5], [0 / 3, 1 / 5, 2 / 3]]
    )
    # A mask of 11 covers all of it everywhere.
    np.testing.assert_allclose(c99.ranks(matrix), [[6 / 8, 2 / 8, 0], [2 / 8, 6 / 8, 2 / 8], [0, 2 / 8, 6 / 8]])
    assert c99.ranks(np.ones((1, 1))).tolist() == [[0]]


def test_ranks_as_a_plain_loop_has_them() -> None:
    matrix = np.random.default_rng(0).integers(0, 5, (17, 17)) / 4
    expected = np.zeros_like(matrix)
    for i in range(17):
        for j in range(17):
            around = matrix[max(i - 5, 0) : i + 6, max(j - 5, 0) : j + 6]
            expected[i, j] = (around < matrix[i, j]).sum() / (around.size - 1)
    np.testing.assert_allclose(c99.ranks(matrix), expected)


def test_cosines_by_hand() -> None:
    np.testing.assert_allclose(
        c99.cosines(np.array([[3, 4], [1, 0], [0, 0]])), [[1, 0.6, 0], [0.6, 1, 0], [0, 0, 0]], atol=1e-12
    )
    counts = np.random.default_rng(0).integers(0, 4, (40, 7))
    assert set(np.diag(c99.cosines(counts))) == {1}  # exactly: equal elements must not outrank each other


def test_splits_are_those_that_raise_the_density_most() -> None:
    random = np.random.default_rng(1)
    matrix = random.random((11, 11))
    matrix += matrix.T

    def compute_density(cut: list[int]) -> float:
        parts = [slice(*edges) for edges in pairwise([0, *sorted(cut), 11])]
        return sum(matrix[part, part].sum() for part in parts) / sum((p.stop - p.start) ** 2 for p in parts)

    cut: list[int] = []
    densities = [compute_density(cut)]
    for _ in range(10):
        cut.append(max((gap for gap in range(1, 11) if gap not in cut), key=lambda gap: compute_density([*cut, gap])))
        densities.append(compute_density(cut))
    splits, found_densities = c99.divided(matrix)
    assert splits == cut
    np.testing.assert_allclose(found_densities, densities)


def test_only_unusual_gains_count() -> None:
    gains = np.array([0.9] * 6 + [0.1] * 24)
    # Smoothed over three to each side, 0.9 becomes 0.9 0.9 0.9 .86 .79 .65 and 0.1 becomes .35 .21 .14 0.1 …;
    # mean and deviation are 0.26 and 0.29, so gains above 0.61 are unusual
    assert c99.telling(gains) == 6
    assert c99.telling(np.zeros(8)) == 0
    assert c99.telling(np.array([1.0])) == 0
    # gains after the first that is not unusual do not count
    assert c99.telling(np.concatenate([gains, gains[::-1]])) == 6


# -- Utiyama–Isahara --------------------------------------------------------------------------------------------------

texts = st.lists(st.lists(st.sampled_from("abcdef"), max_size=5), min_size=1, max_size=7)


def compute_cost(segment: list[list[str]], kinds: int) -> float:
    """Return the cost of a segment by the paper's formula: Σ over words of log (n_i + k) / (f_i + 1)."""
    inside = [word for sentence in segment for word in sentence]
    times = Counter(inside)
    return sum(math.log((len(inside) + kinds) / (times[word] + 1)) for word in inside)


def as_rows(text: list[list[str]]) -> tuple[list[np.ndarray], int]:
    known: dict[str, int] = {}
    rows = [np.array([known.setdefault(word, len(known)) for word in sentence], dtype=np.int64) for sentence in text]
    return rows, len(known)


@settings(deadline=None)
@given(texts)
def test_costs_are_those_of_the_formula(text: list[list[str]]) -> None:
    rows, kinds = as_rows(text)
    costs = utiyama_isahara.costs(rows)
    for start in range(len(text) + 1):
        for stop in range(len(text) + 1):
            expected = compute_cost(text[start:stop], kinds) if start < stop else math.inf
            assert costs[start, stop] == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(texts)
def test_nothing_is_cheaper(text: list[list[str]]) -> None:
    rows, kinds = as_rows(text)
    sentences = [" ".join(f"{letter}{letter}x" for letter in sentence) for sentence in text]
    prior = math.log(max(sum(len(row) for row in rows), 1))

    def sum_costs(cut: tuple[int, ...] | list[int]) -> float:
        return sum(compute_cost(text[start:stop], kinds) + prior for start, stop in pairwise([0, *cut, len(text)]))

    all_cuts = {count: list(combinations(range(1, len(text)), count - 1)) for count in range(1, len(text) + 1)}
    for count, cuts in all_cuts.items():
        boundaries = utiyama_isahara.segment(sentences, count)
        assert len(boundaries) == count - 1
        assert sum_costs(boundaries) == pytest.approx(min(map(sum_costs, cuts)), abs=1e-9)
    least = min(sum_costs(cut) for cuts in all_cuts.values() for cut in cuts)
    assert sum_costs(utiyama_isahara.segment(sentences)) == pytest.approx(least, abs=1e-9)

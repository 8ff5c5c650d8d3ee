"""The claims: a model built as the paper says is consistent with all of them, null models with none, and each verdict.

tests/helpers/planted_claims.py builds the models.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import headscope
from headscope.studies import claim_statistics as stats
from headscope.studies.claim_statistics import Condition
from headscope.studies.claims import CLAIMS
from headscope.studies.findings import (
    Finding,
    Findings,
    as_json,
    as_markdown,
    findings,
    judge,
    measure_claim,
)
from headscope.studies.labels import add_derived_variables
from headscope.studies.rates import MIN_BLOCKS
from headscope.studies.result import Study
from headscope.studies.sample_size import MIN_TEXTS
from headscope.tally.quantities import BY_NAME
from tests.helpers import tiny
from tests.helpers.planted_claims import ALL, make_claim_study, make_null_study
from tests.helpers.synthetic import make_random_study


def replace_sums(study: Study, **get_blocks: np.ndarray) -> Study:
    """Return the study with the block sums of some quantities replaced, and everything that depends on them."""
    data = study.data.copy(deep=True)
    for name, values in get_blocks.items():
        data[f"{name}_blocks"][:] = values
        dims = BY_NAME[name].dims if name in BY_NAME else data[name].dims
        data[name] = (dims, data[f"{name}_blocks"].values.sum(axis=0))
    return Study(add_derived_variables(data))


def measure(study: Study, number: int) -> Finding:
    """Return one finding, without measuring the others."""
    return measure_claim(CLAIMS[number - 1], study)


@pytest.fixture(scope="module")
def study() -> Study:
    return make_random_study(0, layers=4, heads=3, texts=60)


def get_blocks(study: Study, name: str) -> np.ndarray:
    return study.data[f"{name}_blocks"].values


def make_offsets(study: Study, offset: int, weight: float = 0.8) -> np.ndarray:
    """Return attention by offset that is strongest at `offset` in every head."""
    spread = np.zeros_like(get_blocks(study, "attention_offset"))
    tokens = get_blocks(study, "window_tokens") @ study.data["tokens"].values
    spread[:] = (1 - weight) / spread.shape[-1]
    spread[..., offset + study.data.attrs["length"] - 1] += weight
    return spread * tokens[:, None, None, None]


@pytest.fixture(scope="module")
def planted() -> Study:
    return make_claim_study()


def test_all_eighteen_in_order(planted: Study):
    results = findings(planted)
    assert [finding.number for finding in results] == list(range(1, 19))
    assert all(finding.title and finding.paper and finding.explanation and finding.criterion for finding in results)
    for finding in results:
        assert None not in (finding.value, finding.error, finding.null), finding.number
        assert finding.details["conditions"]


# -- planted structure, and none ---------------------------------------------------------------------------------------


def test_a_model_built_as_the_paper_says_is_consistent_with_every_claim(planted: Study):
    assert {finding.number: finding.verdict for finding in findings(planted)} == dict.fromkeys(ALL, "consistent")


@pytest.mark.parametrize(
    "without", [(1, 2, 3, 9, 11, 13), (4, 5, 8, 10, 15, 17, 18), (6, 12, 14), (7, 16)], ids=lambda numbers: str(numbers)
)
def test_claims_are_not_consistent_without_their_structure(without: tuple[int, ...]):
    study = make_claim_study(without)
    verdicts = {number: measure(study, number).verdict for number in without}
    assert set(verdicts.values()) <= {"not consistent", "undecided"}, verdicts
    assert list(verdicts.values()).count("undecided") <= 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_claim_is_consistent_with_even_attention_and_random_outputs(seed: int):
    verdicts = {finding.number: finding.verdict for finding in findings(make_null_study(seed))}
    assert "consistent" not in verdicts.values(), verdicts
    assert "too few texts" not in verdicts.values()


@pytest.mark.parametrize("seed", [0, 1])
def test_no_claim_is_consistent_with_random_weights(seed: int):
    random = np.random.default_rng(seed)
    words = ["the", "cat", "sat", "on", "a", "mat", "owl", "saw", "it", "ran", "dog", ".", ","]
    texts = [" ".join(random.choice(words, int(random.integers(20, 40)))) for _ in range(80)]
    model = tiny.model("bert", num_hidden_layers=6, seed=seed)
    verdicts = {finding.number: finding.verdict for finding in findings(headscope.study(model, texts, length=24))}
    assert "consistent" not in verdicts.values(), verdicts
    assert "too few texts" not in verdicts.values()


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "verdict"),
    [
        ([Condition("", 0.9, 0.1, 0.5)], "consistent"),
        ([Condition("", 0.1, 0.1, 0.5)], "not consistent"),
        ([Condition("", 0.65, 0.1, 0.5)], "undecided"),
        ([Condition("", 0.35, 0.1, 0.5)], "undecided"),
        ([Condition("", 0.35, 0.01, 0.5, at_most=True)], "consistent"),
        ([Condition("", 0.5, 0.0, 0.5)], "not consistent"),
        ([Condition("", 0.5, 0.0, 0.5, or_equal=True)], "consistent"),
        ([Condition("", 0.6, float("nan"), 0.5)], "consistent"),
        ([Condition("", float("nan"), 0.0, 0.5)], "undecided"),
        ([Condition("", 0.9, 0.1, 0.5), Condition("", 0.55, 0.1, 0.5)], "undecided"),
        ([Condition("", 0.1, 0.1, 0.5), Condition("", 0.55, 0.1, 0.5)], "not consistent"),
    ],
)
def test_verdicts_follow_from_the_conditions(conditions: list[Condition], verdict: str):
    assert judge(conditions) == verdict


def test_too_few_texts():
    for texts, number in ((MIN_TEXTS - 1, 1), (MIN_TEXTS - 1, 13), (MIN_TEXTS, 1)):
        finding = measure(make_random_study(3, texts=texts), number)
        assert (finding.verdict == "too few texts") == (texts < MIN_TEXTS)
        assert finding.value is not None
    assert (
        "A verdict needs 50 texts in the sample; there are 49."
        in measure(make_random_study(3, texts=49), 13).explanation
    )
    assert "there is 1." in measure(make_random_study(3, texts=1), 1).explanation


def test_what_few_texts_lack_is_not_called_unmeasurable():
    """One text has no halves, but more texts would have them; no number of texts gives a model more layers."""
    halves = measure(make_random_study(3, texts=1), 12)
    layers = measure(make_random_study(3, layers=2, texts=1), 4)
    assert (halves.verdict, layers.verdict) == ("too few texts", "not measurable")
    assert "there is 1. Not measured: two halves of the corpus" in halves.explanation


def test_too_few_blocks(planted: Study):
    used = np.flatnonzero(get_blocks(planted, "texts"))
    for kept, verdict in ((MIN_BLOCKS - 1, "too few texts"), (MIN_BLOCKS, "consistent")):
        counts = get_blocks(planted, "texts").copy()
        counts[used[kept:]] = 0
        counts[used[0]] += MIN_TEXTS
        finding = measure(replace_sums(planted, texts=counts), 1)
        assert finding.verdict == verdict
    assert (
        "in 10 of the 20 blocks; they are in 9."
        in measure(replace_sums(planted, texts=np.where(np.isin(np.arange(20), used[:9]), 10, 0)), 1).explanation
    )


def test_studies_of_earlier_versions_lack_what_some_claims_need(planted: Study):
    absent = ("sentence_tokens", "column_correlation_sum", "column_texts", "region_texts", "line_attention_sum")
    old = Study(planted.data.drop_vars([f"{name}{end}" for name in absent for end in ("", "_blocks")]))
    verdicts = {finding.number: finding.verdict for finding in findings(old)}
    assert {number for number, verdict in verdicts.items() if verdict == "not measurable"} == {8, 13, 14, 16, 17}
    assert "earlier version" in measure(old, 8).explanation


def test_claims_of_the_sample_need_one():
    study = make_random_study(0)
    nothing = {
        str(name).removesuffix("_blocks"): 0 * study.data[name].values
        for name in study.data
        if str(name).startswith(("sample_texts", "shuffled_", "value_histogram", "column_", "region_", "delineated_"))
        and str(name).endswith("_blocks")
    }
    verdicts = {finding.number: finding.verdict for finding in findings(replace_sums(study, **nothing))}
    assert {verdicts[number] for number in (5, 9, 10, 13, 14, 15, 16)} == {"too few texts"}
    explanation = measure(replace_sums(study, **nothing), 5).explanation
    assert "there are 0. Not measured: no text is in the sample" in explanation


# -- how they are shown ------------------------------------------------------------------------------------------------


def test_they_are_shown_as_a_table(study: Study):
    results = study.findings()
    assert results == findings(study) == headscope.findings(study)
    lines = repr(results).splitlines()
    assert lines[0].split() == ["verdict", "number", "null", "claim"]
    for line, finding in zip(lines[1:], results, strict=True):
        assert [part.strip() for part in line.strip().split("  ") if part.strip()] == [
            str(finding.number), finding.verdict, finding.number_text, finding.null_text, finding.title
        ]  # fmt: skip
        assert line.index(finding.title) == lines[0].index("claim")
    assert isinstance(results, list)


def test_they_are_shown_in_notebooks(study: Study):
    results = Findings([replace(findings(study)[0], title="<b>a & b</b>")])
    page = results._repr_html_()
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page
    assert "<b>" not in page
    assert [page.count(tag) for tag in ("<tr>", "</tr>", "<th ", "</th>")] == [2, 2, 5, 5]


def test_selected_heads_have_none(study: Study):
    with pytest.raises(headscope.StudyError, match="pass the whole study"):
        study.select(layers=[0]).findings()


# -- single claims -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 0, 1, 5])
def test_1_local_attention(study: Study, offset: int):
    finding = measure(replace_sums(study, attention_offset=make_offsets(study, offset)), 1)
    assert (finding.verdict, finding.value) == (("consistent", 1) if offset < 5 else ("not consistent", 0))
    assert finding.error == 0


def test_1_asks_for_twice_even_attention(study: Study):
    even = np.broadcast_to(stats.sum_even_attention(study), study.data["attention_offset"].shape)
    near = np.abs(study.data["offset"].values) <= 1
    for times, share in ((1.9, 0), (2.1, 1)):
        sums = even * np.where(near, times, 1.0)
        blocks = np.zeros_like(get_blocks(study, "attention_offset"))
        blocks[np.flatnonzero(get_blocks(study, "texts"))[0]] = sums
        assert stats.is_strongest_local(replace_sums(study, attention_offset=blocks)).mean() == share


def test_1_counts_heads(study: Study):
    mixed = make_offsets(study, 0)
    mixed[:, 1] = make_offsets(study, 7)[:, 1]  # one layer of four looks far
    assert measure(replace_sums(study, attention_offset=mixed), 1).value == pytest.approx(0.75)


@pytest.mark.parametrize("causal", [0, 1])
def test_even_attention_by_offset(causal: int):
    # One window of three tokens: causal rows are 1; 1/2, 1/2; 1/3, 1/3, 1/3. Otherwise every element is 1/3.
    study = make_random_study(0, texts=1, length=16, causal=causal)
    counts = np.zeros_like(get_blocks(study, "window_tokens"))
    counts[0, 3] = 1
    even = dict(
        zip(
            study.data["offset"].values.tolist(),
            stats.sum_even_attention(replace_sums(study, window_tokens=counts)),
            strict=True,
        )
    )
    expected = (
        {-2: 1 / 3, -1: 1 / 2 + 1 / 3, 0: 1 + 1 / 2 + 1 / 3}
        if causal
        else {-2: 1 / 3, -1: 2 / 3, 0: 1, 1: 2 / 3, 2: 1 / 3}
    )
    assert {offset: value for offset, value in even.items() if value} == pytest.approx(expected)


def set_most_attended(study: Study, token: str, layers: slice, share: float) -> Study:
    data = study.data.copy(deep=True)
    other = next(name for name in data["token"].values if name != token)
    texts = data["texts_blocks"].values
    for layer in range(len(study.layers))[layers]:
        data["most_attended_blocks"][:, layer] = 0
        data["most_attended_blocks"].loc[{"token": token, "layer": layer}] = np.floor(texts * share)
        data["most_attended_blocks"].loc[{"token": other, "layer": layer}] = texts - np.floor(texts * share)
    data["most_attended"] = data["most_attended_blocks"].sum("block")
    return Study(data)


def find_word(study: Study) -> str:
    return next(str(name) for name in study.data["token"].values if name not in ("t1", ".", ","))


def test_2_first_special_token(planted: Study):
    word = find_word(planted)
    fails = measure(set_most_attended(planted, word, slice(0, 2), 1.0), 2)
    assert (fails.verdict, fails.value) == ("not consistent", 0.0)
    none = Study(planted.data.assign_attrs(first_special_token=""))
    assert measure(none, 2).verdict == "not measurable"
    assert "no special token first" in measure(none, 2).explanation


def test_3_names_what_takes_the_attention(planted: Study):
    word = find_word(planted)
    taken = measure(set_most_attended(planted, word, slice(6, 8), 1.0), 3)
    assert (taken.verdict, taken.value) == ("not consistent", 0.0)
    assert f"In layer 7 {word} is the most attended token in 100.0 % of texts." in taken.explanation
    assert (
        "Among words and punctuation alone, a separator is the most attended in 100.0 ± 0.0 % of texts"
        in taken.explanation
    )


def test_4_needs_a_difference_beyond_its_error(study: Study):
    middle = make_offsets(study, 6)
    middle[:, stats.get_middle_layers(study)] = make_offsets(study, 0)[:, stats.get_middle_layers(study)]
    assert measure(replace_sums(study, attention_offset=middle), 4).verdict == "consistent"
    assert measure(replace_sums(study, attention_offset=make_offsets(study, 0)), 4).verdict == "not consistent"


def test_5_gap_of_values(study: Study):
    low = np.zeros_like(get_blocks(study, "value_histogram"))
    occupied = get_blocks(study, "texts") > 0
    low[occupied, ..., 100] = 9  # values 0.00 to 0.01
    low[occupied, ..., 180] = 1  # 0.80
    held = measure(replace_sums(study, value_histogram=low), 5)
    assert (held.verdict, held.value) == ("consistent", 0.9)
    low[occupied, ..., 130] = 5  # 0.30
    assert measure(replace_sums(study, value_histogram=low), 5).verdict == "not consistent"


def test_5_null_is_what_unrelated_outputs_give():
    # 200 normal numbers: their largest is about 2.6, and 60 % are below a tenth of that.
    study = make_random_study(0)
    counts = np.zeros_like(get_blocks(study, "window_tokens"))
    counts[0, 16] = 1
    null = stats.compute_scattered_share(replace_sums(study, window_tokens=counts))
    random = np.random.default_rng(0).normal(size=(4000, 120))
    shares = (random < 0.1 * random.max(axis=1, keepdims=True)).mean()
    assert null == pytest.approx(shares, abs=0.02)


def test_5_bin_edges():
    # 0.095 belongs below 0.1, 0.105 and 0.595 between, 0.605 above.
    data = make_random_study(0).data
    histogram = data["value_histogram"].sum(("layer", "head")) * 0
    for value, count in ((0.095, 1), (0.105, 2), (0.595, 4), (0.605, 8)):
        histogram.loc[{"value_bin": histogram["value_bin"].sel(value_bin=value, method="nearest")}] = count
    assert stats.compute_value_shares(histogram) == [1 / 15, 6 / 15]


def make_rate_sums(
    study: Study, layer_head_rates: np.ndarray, numerator: str, denominator: str
) -> dict[str, np.ndarray]:
    """Return block sums that give exactly these rates in every block with texts."""
    occupied = (get_blocks(study, "texts") > 0).astype(np.int64)[:, None, None]
    return {
        denominator: occupied * 1000 * np.ones_like(layer_head_rates, dtype=np.int64),
        numerator: occupied * np.round(1000 * layer_head_rates).astype(np.int64),
    }


def test_6_repeat_heads(study: Study):
    spread = np.linspace(0.01, 0.6, 12).reshape(4, 3)
    alike = replace_sums(
        study,
        all_equal=np.round(0.1 * get_blocks(study, "all_pairs")).astype(np.int64),
        **make_rate_sums(study, spread, "equal", "pairs"),
        **make_rate_sums(study, spread / 2, "equal_same", "same"),
    )
    assert measure(alike, 6).verdict == "consistent"
    assert measure(alike, 6).value == pytest.approx(1, abs=1e-3)
    reversed_ = replace_sums(
        study,
        **make_rate_sums(study, spread, "equal", "pairs"),
        **make_rate_sums(study, spread[::-1] / 2, "equal_same", "same"),
    )
    assert measure(reversed_, 6).verdict == "not consistent"


def test_6_correlation_is_corrected_for_errors():
    # Two rates of 2,000 heads that are the same but for independent errors as large as their spread: r = 1/2.
    random = np.random.default_rng(0)
    true, *errors = random.normal(size=(3, 2000))
    covariance = np.eye(2)
    first, second = true + errors[0], true + errors[1]
    assert stats.correlate(first, second) == pytest.approx(0.5, abs=0.05)
    assert stats.correlate_true(first, second, covariance) == pytest.approx(1, abs=0.08)
    assert stats.correlate_true(first, errors[1] + 0.0, covariance * [[1, 0], [0, 0]]) == pytest.approx(0, abs=0.05)
    assert np.isnan(stats.correlate_true(errors[0], second, 2 * covariance))


def test_7_short_distances(planted: Study):
    chance = float(planted.chance("mean_distance"))
    far = np.full((8, 4), 3.0)
    far[7, 1] = chance + 1

    def judge_distances(repeat_head: int) -> Finding:
        repeat = np.full((8, 4), 0.01)
        repeat[7, repeat_head] = 0.5
        sums = make_rate_sums(planted, far, "distance_sum", "pairs") | make_rate_sums(planted, repeat, "equal", "pairs")
        return measure(replace_sums(planted, **sums), 7)

    assert judge_distances(1).verdict == "consistent"
    assert judge_distances(2).verdict == "not consistent"
    assert judge_distances(2).details["not_shorter_than_all_pairs"] == [1]
    assert judge_distances(2).value == pytest.approx(chance + 1, abs=1e-3)
    far[7, 2] = chance + 2
    assert judge_distances(1).verdict == "not consistent"  # one exception, not two


def test_8_chance_at_the_same_distances():
    # One window of six tokens in sentences of 1, 2 and 3: at distance 1, 3 of 5 pairs lie in one, at 2, 1 of 4.
    study = make_random_study(0, layers=1, heads=1, texts=1)
    tokens, sentences = (np.zeros_like(get_blocks(study, "window_tokens")) for _ in range(2))
    tokens[0, 6], sentences[0, 1:4] = 1, 1
    distance, pairs = np.zeros_like(get_blocks(study, "distance")), np.zeros_like(get_blocks(study, "pairs"))
    distance[0, 0, 0, :3], pairs[0] = (3, 1, 4), 8
    data = replace_sums(study, window_tokens=tokens, sentence_tokens=sentences, pairs=pairs).data.copy()
    data = data.drop_vars("distance").assign_coords(distance=(("layer", "head", "distance"), distance.sum(axis=0)))
    assert stats.compute_matched_chance(Study(data)).tolist() == [[pytest.approx((3 * 3 / 5 + 1 / 4) / 8)]]


def test_8_limit_is_in_proportion_to_chance(planted: Study):
    chance = float(planted.chance("same_sentence_rate"))
    assert f"every head above {0.33 * 3.5 * chance:.1%}" in str(measure(planted, 8).details["conditions"])
    paper = Study(planted.data.assign_attrs(length=128))
    assert "every head above 33.0%" in str(measure(paper, 8).details["conditions"])


def test_9_one_token(planted: Study):
    counts = get_blocks(planted, "texts_with_pairs")
    weak = replace_sums(
        planted, dominant_share_sum=0.6 * counts, shuffled_share_sum=0.6 * counts, shuffled_share_texts=counts
    )
    assert measure(weak, 9).verdict == "not consistent"  # most of the pairs, but no more than random ones
    assert measure(replace_sums(planted, shuffled_share_texts=0 * counts), 9).verdict == "not measurable"


@pytest.mark.parametrize(
    ("distinct", "random", "verdict"), [(4, 3, "consistent"), (4, 4, "not consistent"), (2, 1, "not consistent")]
)
def test_10_different_tokens(planted: Study, distinct: int, random: int, verdict: str):
    counts, shuffled = (np.zeros_like(get_blocks(planted, "distinct_dominants")) for _ in range(2))
    counts[:, :, distinct] = shuffled[:, :, random] = get_blocks(planted, "texts")[:, None]
    finding = measure(replace_sums(planted, distinct_dominants=counts, shuffled_distinct_dominants=shuffled), 10)
    assert (finding.verdict, finding.value, finding.null, finding.unit) == (verdict, distinct, random, "of 4")


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [((5, 4, 3, 4), "consistent"), ((4, 5, 3, 9), "not consistent"), ((9, 2, 5, 4), "not consistent")],
)
def test_11_distances_over_layers(study: Study, layers: tuple[int, ...], verdict: str):
    # Of four layers the first quarter is 0, the middle third 2, the last quarter 3. Of all pairs the mean is about 4.
    by_layer = np.repeat(np.array(layers, dtype=float)[:, None], 3, axis=1)
    finding = measure(replace_sums(study, **make_rate_sums(study, by_layer, "distance_sum", "pairs")), 11)
    assert (finding.verdict, finding.value) == (verdict, layers[2])


def test_12_halves_that_agree_and_halves_that_do_not(study: Study):
    spread = np.linspace(0.1, 0.6, 12).reshape(4, 3)
    same = {}
    for numerator, denominator in (("equal", "pairs"), ("same", "pairs"), ("distance_sum", "pairs")):
        same |= make_rate_sums(study, spread, numerator, denominator)
    same["same"] = same["pairs"] // 2
    # The same-sentence rate has no spread then, so no correlation is defined.
    assert measure(replace_sums(study, **same), 12).verdict == "not measurable"
    same |= {
        "same": make_rate_sums(study, spread, "same", "pairs")["same"],
        "equal_same": make_rate_sums(study, spread**2, "same", "pairs")["same"],
    }
    holds = measure(replace_sums(study, **same), 12)
    assert (holds.verdict, holds.value) == ("consistent", pytest.approx(1))
    random = np.random.default_rng(0)
    same["equal"] = random.integers(0, 1000, same["equal"].shape)
    assert measure(replace_sums(study, **same), 12).verdict == "not consistent"


def test_12_is_corrected_to_the_whole_corpus(study: Study):
    halves = stats.compute_half_correlations(study)["mean_distance"]
    assert all(-1 <= value <= 1 for value in halves)
    # Spearman–Brown: halves that correlate by 1/2 are of a whole that correlates by 2/3 with another such corpus.
    first = [[1, 0, 0], [0, 1, 0]]
    assert stats.correlate(*map(np.array, first)) == pytest.approx(-0.5)


def test_18_share_of_pairs_at_other_distances(planted: Study):
    # All pairs at one distance d, where all pairs have a share p there: 1 − p would have to move.
    counts = np.zeros_like(get_blocks(planted, "distance"))
    counts[..., 0] = 1
    data = planted.data.drop_vars("distance").assign_coords(
        distance=(("layer", "head", "distance"), counts.sum(axis=0))
    )
    assert stats.compute_distance_deviation(Study(data)) == pytest.approx(1 - 47 / (48 * 47 / 2))


def test_too_few_layers_and_heads():
    results = findings(make_random_study(1, layers=1, heads=1, texts=60))
    verdicts = {finding.number: finding.verdict for finding in results}
    assert {number for number, verdict in verdicts.items() if verdict == "not measurable"} == {
        4,
        6,
        7,
        10,
        11,
        12,
        13,
        17,
        18,
    }


@pytest.mark.parametrize(("texts", "verdict"), [(30, "too few texts"), (60, "not measurable")])
def test_heads_without_pairs_are_left_out(texts: int, verdict: str):
    study = make_random_study(2, layers=3, heads=4, texts=texts)
    silent = {}
    for name in (
        "pairs",
        "equal",
        "same",
        "equal_same",
        "distance_sum",
        "texts_with_pairs",
        "dominant_share_sum",
        "shuffled_share_texts",
        "shuffled_share_sum",
    ):
        values = get_blocks(study, name).copy()
        values[:, :, 1] = 0
        silent[name] = values
    results = findings(replace_sums(study, **silent))
    # At random, repeat rates do not spread beyond their errors, so that they have no correlation.
    assert [finding.number for finding in results if finding.value is None] == [6]
    nothing = {name: 0 * values for name, values in silent.items()}
    verdicts = {finding.number: finding.verdict for finding in findings(replace_sums(study, **nothing))}
    # The sample is not emptied: claim 9, which is measured on it, lacks pairs, not texts.
    assert {verdicts[number] for number in (6, 7, 8, 9, 12)} == {verdict}


def test_selected_layers_have_no_findings(study: Study):
    with pytest.raises(headscope.StudyError, match="whole study"):
        findings(study.select(layers=[0]))


@pytest.mark.parametrize(
    ("layers", "groups"),
    [
        (1, ([0], [], [0])),
        (2, ([0], [], [1])),
        (3, ([0], [1], [2])),
        (6, ([0], [2, 3], [5])),
        (12, ([0, 1, 2], [4, 5, 6, 7], [9, 10, 11])),
    ],
)
def test_first_middle_and_last_layers(layers: int, groups: tuple):
    study = make_random_study(0, layers=layers, heads=2, texts=2)
    assert (stats.get_first_layers(study), stats.get_middle_layers(study), stats.get_last_layers(study)) == groups


def test_json_is_strict_and_complete(study: Study):
    read = json.loads(as_json(study, findings(study)), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert [finding["number"] for finding in read["findings"]] == list(range(1, 19))
    assert read["manifest"]["model"] == "synthetic"
    hollow = Finding(1, "c", "p", "m", "not measurable", "k", details={"x": [float("nan")]})
    assert json.loads(as_json(study, [hollow]))["findings"][0]["details"] == {"x": [None]}


def test_markdown_shows_text_as_text(study: Study):
    hostile = Study(
        study.data.assign_attrs(
            model="<script>alert(1)</script>", corpus="a|b *c*", complete=0, stopped_by="broken\nline"
        )
    )
    page = as_markdown(hostile, findings(hostile))
    assert "<script>" not in page
    assert r"a\|b \*c\*" in page
    assert "incomplete**: broken line" in page
    assert page.count("| **") == 18


def test_units_do_not_divide_cells_of_markdown(study: Study):
    """The unit of claim 15 is |o|²."""
    assert "|o|²" in findings(study)[14].number_text
    rows = [line for line in as_markdown(study, findings(study)).splitlines() if line.startswith("| ")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}


@pytest.mark.parametrize(
    ("value", "error", "unit", "text"),
    [
        (0.5, 0.01, "%", "50.0 ± 1.0 %"),
        (3.14159, None, "tokens", "3.14 tokens"),
        (0.98, 0.01, "(r)", "0.98 ± 0.01 (r)"),
        (-0.0002, 0.01, "%", "0.0 ± 1.0 %"),
        (None, None, "%", "–"),
        (float("nan"), None, "", "–"),
    ],
)
def test_numbers_in_words(value, error, unit, text):
    assert Finding(1, "", "", "", "consistent", "", value, error, unit).number_text == text

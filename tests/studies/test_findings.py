"""Test the twelve findings on studies built so that each claim holds, fails, or cannot be measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import headscope
from headscope.studies import claim_statistics as stats
from headscope.studies.claims import CLAIMS
from headscope.studies.findings import Finding, Findings, as_json, as_markdown, findings, measure_claim
from headscope.studies.labels import add_derived_variables
from headscope.studies.result import Study
from headscope.tally.quantities import BY_NAME
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
    """Return one finding, without measuring the other eleven."""
    return measure_claim(CLAIMS[number - 1], study)


@pytest.fixture(scope="module")
def study() -> Study:
    return make_random_study(0, layers=4, heads=3, texts=60)


def get_blocks(study: Study, name: str) -> np.ndarray:
    return study.data[f"{name}_blocks"].values


def make_offsets(study: Study, offset: int, weight: float = 0.8) -> np.ndarray:
    """Return attention by offset that is strongest at `offset` in every head."""
    spread = np.zeros_like(get_blocks(study, "attention_offset"))
    occupied = get_blocks(study, "texts") > 0
    spread[occupied] = (1 - weight) / spread.shape[-1]
    spread[occupied, ..., offset + study.data.attrs["length"] - 1] += weight
    return spread


def test_all_twelve_in_order(study: Study):
    results = findings(study)
    assert [finding.number for finding in results] == list(range(1, 13))
    assert all(finding.claim and finding.paper and finding.measured and finding.criterion for finding in results)
    assert all(finding.value is not None and finding.error is not None for finding in results)


def test_they_are_shown_as_a_table(study: Study):
    results = study.findings()
    assert results == findings(study) == headscope.findings(study)
    lines = repr(results).splitlines()
    assert lines[0].split() == ["verdict", "number", "claim"]
    for line, finding in zip(lines[1:], results, strict=True):
        assert [part.strip() for part in line.strip().split("  ") if part.strip()] == [
            str(finding.number), finding.verdict, finding.number_text, finding.claim
        ]  # fmt: skip
        assert line.index(finding.claim) == lines[0].index("claim")
    assert isinstance(results, list)


def test_they_are_shown_in_notebooks(study: Study):
    results = Findings([replace(findings(study)[0], claim="<b>a & b</b>")])
    page = results._repr_html_()
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page
    assert "<b>" not in page
    assert [page.count(tag) for tag in ("<tr>", "</tr>", "<th ", "</th>")] == [2, 2, 4, 4]


def test_selected_heads_have_none(study: Study):
    with pytest.raises(headscope.StudyError, match="pass the whole study"):
        study.select(layers=[0]).findings()


@pytest.mark.parametrize(("offset", "verdict"), [(-1, "holds"), (0, "holds"), (1, "holds"), (5, "does not hold")])
def test_1_local_attention(study: Study, offset: int, verdict: str):
    finding = measure(replace_sums(study, attention_offset=make_offsets(study, offset)), 1)
    assert (finding.verdict, finding.value) == (verdict, float(verdict == "holds"))
    assert finding.error == 0


def test_1_counts_heads(study: Study):
    mixed = make_offsets(study, 0)
    mixed[:, 1] = make_offsets(study, 7)[:, 1]  # one layer of four looks far
    assert measure(replace_sums(study, attention_offset=mixed), 1).value == pytest.approx(0.75)


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


def test_2_first_special_token(study: Study):
    assert measure(set_most_attended(study, "t1", slice(0, 1), 1.0), 2).verdict == "holds"
    fails = measure(set_most_attended(study, "t3", slice(0, 1), 1.0), 2)
    assert (fails.verdict, fails.value) == ("does not hold", 0.0)
    none = Study(study.data.assign_attrs(first_special_token=""))
    assert measure(none, 2).verdict == "cannot be measured"
    assert "no special token first" in measure(none, 2).measured


def test_3_separators(study: Study):
    renamed = Study(
        study.data.assign_coords(token=["." if name == "t4" else name for name in study.data["token"].values])
    )
    assert measure(set_most_attended(renamed, ".", slice(3, 4), 1.0), 3).verdict == "holds"
    assert measure(set_most_attended(renamed, "t3", slice(3, 4), 1.0), 3).verdict == "does not hold"
    assert measure(renamed, 3).details["attention_share_spread_evenly"] == pytest.approx(
        float(study.data["attention_spread"][2:4].sum() / study.data["attention_spread"].sum())
    )


def test_4_diagonal_in_the_middle(study: Study):
    middle = make_offsets(study, 6)
    middle[:, stats.get_middle_layers(study)] = make_offsets(study, 0)[:, stats.get_middle_layers(study)]
    assert measure(replace_sums(study, attention_offset=middle), 4).verdict == "holds"
    assert measure(replace_sums(study, attention_offset=make_offsets(study, 0)), 4).verdict == "does not hold"


def test_5_gap_of_values(study: Study):
    low = np.zeros_like(get_blocks(study, "value_histogram"))
    low[..., 100] = 9  # values 0.00 to 0.01
    low[..., 180] = 1  # 0.80
    holds = measure(replace_sums(study, value_histogram=low), 5)
    assert (holds.verdict, holds.value) == ("holds", 0.9)
    low[..., 130] = 5  # 0.30
    assert measure(replace_sums(study, value_histogram=low), 5).verdict == "does not hold"
    assert measure(replace_sums(study, value_histogram=0 * low), 5).verdict == "cannot be measured"


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
        **make_rate_sums(study, spread, "equal", "pairs"),
        **make_rate_sums(study, spread / 2, "equal_same", "same"),
    )
    assert measure(alike, 6).verdict == "holds"
    assert measure(alike, 6).value == pytest.approx(1, abs=1e-3)
    reversed_ = replace_sums(
        study,
        **make_rate_sums(study, spread, "equal", "pairs"),
        **make_rate_sums(study, spread[::-1] / 2, "equal_same", "same"),
    )
    assert measure(reversed_, 6).verdict == "does not hold"


def test_7_short_distances(study: Study):
    limit = 50 * 16 / 128  # windows of 16 tokens
    near = np.full((4, 3), 3.0)
    assert measure(replace_sums(study, **make_rate_sums(study, near, "distance_sum", "pairs")), 7).verdict == "holds"
    one_far = near.copy()
    one_far[3, 2] = limit
    repeat = np.full((4, 3), 0.01)
    repeat[3, 2] = 0.5
    far_repeater = replace_sums(
        study,
        **make_rate_sums(study, one_far, "distance_sum", "pairs"),
        **{"equal": make_rate_sums(study, repeat, "equal", "pairs")["equal"]},
    )
    assert measure(far_repeater, 7).verdict == "holds"
    repeat[3, 1] = 0.6  # now another head repeats more
    other = replace_sums(
        study,
        **make_rate_sums(study, one_far, "distance_sum", "pairs"),
        **{"equal": make_rate_sums(study, repeat, "equal", "pairs")["equal"]},
    )
    assert measure(other, 7).verdict == "does not hold"
    assert "L3H2" in measure(other, 7).measured


def test_8_same_sentence(study: Study):
    high = np.full((4, 3), 0.9)
    assert measure(replace_sums(study, **make_rate_sums(study, high, "same", "pairs")), 8).verdict == "holds"
    high[3, 1] = 0.33
    fails = measure(replace_sums(study, **make_rate_sums(study, high, "same", "pairs")), 8)
    assert (fails.verdict, fails.value) == ("does not hold", 0.33)
    high[3, 1] = 0.9
    high[0] = 0.0  # other layers do not matter
    assert measure(replace_sums(study, **make_rate_sums(study, high, "same", "pairs")), 8).verdict == "holds"


def test_8_must_exceed_chance(study: Study):
    high = np.full((4, 3), 0.5)
    every = replace_sums(study, **make_rate_sums(study, high, "same", "pairs"), all_same=get_blocks(study, "all_pairs"))
    assert measure(every, 8).verdict == "does not hold"


def test_9_one_token(study: Study):
    counts = get_blocks(study, "texts_with_pairs")
    strong = replace_sums(
        study, dominant_share_sum=0.8 * counts, shuffled_share_sum=0.2 * counts, shuffled_share_texts=counts
    )
    assert (measure(strong, 9).verdict, measure(strong, 9).value) == ("holds", pytest.approx(0.8))
    weak = replace_sums(
        study, dominant_share_sum=0.3 * counts, shuffled_share_sum=0.2 * counts, shuffled_share_texts=counts
    )
    assert measure(weak, 9).verdict == "does not hold"
    assert measure(replace_sums(study, shuffled_share_texts=0 * counts), 9).verdict == "cannot be measured"


@pytest.mark.parametrize(("distinct", "verdict"), [(3, "holds"), (2, "holds"), (1, "does not hold")])
def test_10_different_tokens(study: Study, distinct: int, verdict: str):
    counts = np.zeros_like(get_blocks(study, "distinct_dominants"))
    counts[:, :, distinct] = get_blocks(study, "texts")[:, None]
    finding = measure(replace_sums(study, distinct_dominants=counts), 10)
    assert (finding.verdict, finding.value, finding.unit) == (verdict, distinct, "of 3")


@pytest.mark.parametrize(
    ("layers", "verdict"), [((9, 5, 3, 4), "holds"), ((4, 5, 3, 9), "does not hold"), ((9, 2, 5, 4), "does not hold")]
)
def test_11_distances_over_layers(study: Study, layers: tuple[int, ...], verdict: str):
    # Of four layers the first quarter is 0, the middle third 2, the last quarter 3.
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
    assert measure(replace_sums(study, **same), 12).verdict == "cannot be measured"
    same |= {
        "same": make_rate_sums(study, spread, "same", "pairs")["same"],
        "equal_same": make_rate_sums(study, spread**2, "same", "pairs")["same"],
    }
    holds = measure(replace_sums(study, **same), 12)
    assert (holds.verdict, holds.value) == ("holds", pytest.approx(1))
    random = np.random.default_rng(0)
    same["equal"] = random.integers(0, 1000, same["equal"].shape)
    assert measure(replace_sums(study, **same), 12).verdict == "does not hold"


def test_too_few_layers_heads_and_texts():
    small = make_random_study(1, layers=2, heads=1, texts=1)
    results = findings(small)
    verdicts = {finding.number: finding.verdict for finding in results}
    assert [number for number, verdict in verdicts.items() if verdict == "cannot be measured"] == [4, 6, 7, 10, 11, 12]
    assert all(finding.error is None for finding in results)


def test_heads_without_pairs_are_left_out():
    study = make_random_study(2, layers=3, heads=4)
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
    assert all(finding.value is not None and np.isfinite(finding.value) for finding in results)
    nothing = {name: 0 * values for name, values in silent.items()}
    verdicts = {finding.number: finding.verdict for finding in findings(replace_sums(study, **nothing))}
    assert {verdicts[number] for number in (6, 7, 8, 9, 12)} == {"cannot be measured"}


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
    assert [finding["number"] for finding in read["findings"]] == list(range(1, 13))
    assert read["manifest"]["model"] == "synthetic"
    hollow = Finding(1, "c", "p", "m", "cannot be measured", "k", details={"x": [float("nan")]})
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
    assert page.count("| **") == 12


@pytest.mark.parametrize(
    ("value", "error", "unit", "text"),
    [
        (0.5, 0.01, "%", "50.0 ± 1.0 %"),
        (3.14159, None, "tokens", "3.14 tokens"),
        (0.98, 0.01, "(r)", "0.98 ± 0.01 (r)"),
        (None, None, "%", "–"),
        (float("nan"), None, "", "–"),
    ],
)
def test_numbers_in_words(value, error, unit, text):
    assert Finding(1, "", "", "", "holds", "", value, error, unit).number_text == text

"""Test what outputs are similar for: each criterion from both sides, on studies with constructed sums."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headscope
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.head_table import sort_heads
from headscope.studies.head_types import PARTS, TYPE_COLUMNS, count_heads
from headscope.studies.output_types import PREFERENCES, classify_outputs
from headscope.studies.rates import MIN_BLOCKS
from headscope.studies.result import Study
from headscope.studies.sample_size import MIN_TEXTS
from headscope.studies.study import study as run
from headscope.studies.type_criteria import Z
from tests.helpers.planted import ALL, EQUAL, NEAR, SAME, SHUFFLED, TEXTS, VARIED, Planted, get_share_at_odds, planted
from tests.helpers.synthetic import make_random_study

DOCS = Path(__file__).parents[2] / "docs" / "head-types.md"
HEAD_TYPES, NAMES = PARTS["writes"].types, PARTS["writes"].names
PREFERRED = tuple(preference.name for preference in PREFERENCES)


@pytest.fixture(scope="module")
def varied() -> Study:
    """One head of every type; tests do not modify it."""
    return planted(*VARIED)


def classify_head(head: Planted, **changes: Any) -> pd.Series:
    """Return the row of one planted head in the table of head types."""
    return planted([head], **changes).heads().iloc[0]


def classify_heads(*heads: Planted, **changes: Any) -> list[str]:
    """Return the types of these planted heads."""
    names: list[str] = planted(heads, **changes).heads()["writes_type"].tolist()
    return names


# -- what there is -----------------------------------------------------------------------------------------------------


def test_names_and_their_order() -> None:
    assert NAMES == (
        "repeat-token", "local", "within-sentence", "one-token", "long-range", "diffuse", "silent", "undecided",
        "too few texts",
    )  # fmt: skip
    for head_type in HEAD_TYPES:
        assert head_type.description.endswith(".")
        assert head_type.criterion.endswith(".")


def test_each_head_type_is_hit(varied: Study) -> None:
    table = varied.heads()
    assert table["writes_type"].tolist() == [*NAMES[:-1]]
    assert count_heads(table, "writes").tolist() == [1] * len(NAMES[:-1]) + [0]
    assert table["writes_also"].tolist() == [()] * len(NAMES[:-1])
    assert table["description"].tolist() == [
        f"attention not measured; outputs {words}"
        for words in (
            "similar for equal tokens (30 %, chance 1.0 %)",
            "similar for neighbours at most 2 tokens apart (50 %, chance 3.9 %, on average 12 apart, chance 34)",
            "similar within a sentence (80 %, chance 30 %)",
            "similar to that of one token (70 % of a text's pairs, chance 20 %)",
            "similar for tokens far apart (50 tokens on average, chance 34)",
            "similar for many tokens (50 % of all pairs), no rate far from chance",
            "hardly ever similar (no high pairs)",
            "similar, but not enough, for equal tokens (3.0 %, chance 1.0 %)",
        )
    ]


def test_columns_and_numbers(varied: Study) -> None:
    table = varied.heads()
    rates = ("repeat_rate", "same_sentence_rate", "mean_distance", "dominant_share", "near_share")
    named = ["head", "layer", "head_number", *TYPE_COLUMNS, "pairs", "pairs_per_text"]
    assert set(named + [f"{name}{part}" for name in rates for part in ("", "_error", "_chance")]) <= set(table.columns)
    assert table["head"].tolist() == [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    first = table.iloc[0]
    assert (first["pairs"], first["pairs_per_text"], first["pair_share"]) == (2_000_000, 100, 2_000_000 / (20 * ALL))
    assert first["repeat_rate"] == pytest.approx(0.3)
    assert [first[f"{name}_chance"] for name in rates] == pytest.approx([EQUAL, SAME, 34, SHUFFLED, NEAR], rel=1e-4)
    assert first["writes_strength"] == pytest.approx(math.log((0.3 / 0.7) / (0.01 / 0.99)) / math.log(6))
    assert math.isnan(table["writes_strength"][5])
    assert table.iloc[6][list(rates)].isna().all()


def test_near_pairs_are_those_of_the_distances_and_their_error_is_the_jackknife() -> None:
    study = make_random_study(3, texts=60)
    table = study.heads()
    tokens = np.repeat(study.data["tokens"].values, study.data["window_tokens"].values)
    apart = [j - i for n in tokens for i in range(n) for j in range(i + 1, n)]
    assert table["near_share_chance"].tolist() == pytest.approx([np.mean(np.array(apart) <= 2)] * len(table))
    near = study.data["distance_blocks"].values[..., :2].sum(-1).reshape(20, -1)
    pairs = study.data["pairs_blocks"].values.reshape(20, -1)
    assert table["near_share"].tolist() == pytest.approx((near.sum(0) / pairs.sum(0)).tolist())
    used = np.flatnonzero(study.data["texts_blocks"].values)
    remove_sums = np.array([(near.sum(0) - near[g]) / (pairs.sum(0) - pairs[g]) for g in used])
    expected = np.sqrt((len(used) - 1) / len(used) * ((remove_sums - remove_sums.mean(0)) ** 2).sum(0))
    assert table["near_share_error"].tolist() == pytest.approx(expected.tolist())
    assert table["repeat_rate_error"].tolist() == pytest.approx(study.standard_error("repeat_rate").values.ravel())


# -- how large an effect must be ---------------------------------------------------------------------------------------

EDGES = {
    "repeat-token": ("equal", get_share_at_odds(6, EQUAL)),
    "local": ("near", get_share_at_odds(8, NEAR)),  # and not far apart on average
    "within-sentence": ("same", get_share_at_odds(4, SAME)),
    "one-token": ("dominant", get_share_at_odds(3, SHUFFLED)),
    "long-range": ("distance", 1.2 * 34),
}
"""what has to be how large, worked out from what chance gives"""


def test_effects_are_large_enough_or_not() -> None:
    close = {"near": {"distance": 12.0}}
    above, below = (
        [Planted(**{rate: edge * k} | close.get(rate, {})) for rate, edge in EDGES.values()] for k in (1.0001, 0.9999)
    )
    table = planted(above, below).heads()
    assert table["writes_type"].tolist() == [*EDGES, *["undecided"] * len(EDGES)]
    assert table["writes_strength"][: len(EDGES)].tolist() == pytest.approx([1] * len(EDGES), abs=0.01)


def test_neighbours_are_close_on_average_too() -> None:
    table = planted([Planted(near=0.3, distance=17), Planted(near=0.3, distance=17.01)]).heads()
    assert table["writes_type"].tolist() == ["local", "undecided"]
    assert "; outputs similar, but not enough, for neighbours at most 2 tokens apart (30 %" in table["description"][1]


def test_no_odds_are_infinite() -> None:
    head = classify_head(Planted(equal=1.0))
    assert head["writes_strength"] == pytest.approx(math.log(999 * 99) / math.log(6), rel=1e-6)


# -- how certain it must be --------------------------------------------------------------------------------------------


def test_an_effect_is_certain_enough_or_not() -> None:
    # Shares that swing by d around their mean over 20 blocks of one size have a standard error of d / √19.
    edge = (0.2 - EQUAL) * math.sqrt(19) / Z
    table = planted([Planted(equal=0.2, swing={"equal": edge * k}) for k in (0.999, 1.001)]).heads()
    (_, sure), (_, unsure) = table.iterrows()
    assert sure["repeat_rate_error"] == pytest.approx((0.2 - EQUAL) / Z, rel=0.01)
    assert sure["writes_type"] == "repeat-token"
    assert unsure["writes_type"] == "undecided"
    assert "; outputs similar, but not certainly, for equal tokens (20 %" in unsure["description"]


def test_it_takes_enough_blocks() -> None:
    assert classify_head(Planted(equal=0.2), blocks=MIN_BLOCKS)["writes_type"] == "repeat-token"
    head = classify_head(Planted(equal=0.2), blocks=MIN_BLOCKS - 1)
    assert head["writes_type"] == "too few texts"
    assert head["description"] == "too few texts: they fill 9 of 20 blocks, and 10 are needed"


def test_it_takes_enough_texts() -> None:
    enough, few = (make_random_study(3, texts=count) for count in (50, 49))
    assert "too few texts" not in set(enough.heads()["writes_type"])
    assert set(few.heads()["writes_type"]) == {"too few texts"}
    assert set(few.heads()["description"]) == {"too few texts: 49, and 50 are needed"}
    images = Study(few.data.assign_attrs(modality="image"))
    assert set(images.heads()["description"]) == {"too few images: 49, and 50 are needed"}


def test_one_block_has_no_errors_and_no_types() -> None:
    table = planted(*VARIED, blocks=1).heads()
    assert table["writes_type"].tolist() == ["too few texts"] * 8
    assert table["repeat_rate_error"].isna().all()
    assert set(table["error_note"]) == {
        "No standard errors, for want of documents: the texts fill 1 of 20 blocks of documents, and 10 are needed."
    }
    assert table["writes_also"].tolist() == [()] * 8


def test_chance_moves_with_the_texts() -> None:
    """The difference must be certain: texts of long sentences raise a rate and its chance alike."""
    together = classify_head(Planted(same=0.64, swing={"same": 0.3}), all_same_swing=0.3)
    assert Z * together["same_sentence_rate_error"] > 0.64 - SAME
    assert together["writes_type"] == "within-sentence"
    against = Planted(same=0.65, swing={"same": -0.25})
    assert classify_head(against)["writes_type"] == "within-sentence"
    assert classify_head(against, all_same_swing=0.25)["writes_type"] == "undecided"


# -- heads without a preference ----------------------------------------------------------------------------------------


def test_many_pairs_or_not() -> None:
    assert classify_heads(Planted(pairs=ALL // 10), Planted(pairs=ALL // 10 - 1)) == ["diffuse", "undecided"]


def test_diffuse_heads_have_no_rate_far_below_chance_either() -> None:
    below = {
        "equal": get_share_at_odds(1 / 6, EQUAL),
        "near": get_share_at_odds(1 / 8, NEAR),
        "same": get_share_at_odds(1 / 4, SAME),
        "dominant": get_share_at_odds(1 / 3, SHUFFLED),
        "distance": 34 / 1.2,
    }
    inside, outside = (
        [Planted(pairs=ALL // 2, **{rate: edge * k}) for rate, edge in below.items()]  # type: ignore[arg-type]
        for k in (1.01, 0.99)
    )
    assert classify_heads(*inside, *outside) == ["diffuse"] * 5 + ["undecided"] * 5


def test_a_preference_comes_before_many_pairs() -> None:
    sure = Planted(pairs=ALL // 2, equal=0.2)
    unsure = Planted(pairs=ALL // 2, equal=0.2, swing={"equal": 0.19})  # large, and so not near chance
    assert classify_heads(sure, unsure) == ["repeat-token", "undecided"]


def test_too_few_pairs_to_speak_of() -> None:
    few, enough = Planted(pairs=2 * TEXTS - 1, equal=0.5), Planted(pairs=2 * TEXTS, equal=0.5)
    table = planted([few, enough]).heads()
    assert table["writes_type"].tolist() == ["silent", "repeat-token"]
    assert table["writes_also"][0] == ()
    assert table["description"][0].endswith("; outputs hardly ever similar (2.0 high pairs per text)")


def test_nothing_above_chance() -> None:
    head = classify_head(Planted(equal=0.005, near=0.02, same=0.1, dominant=0.1, distance=20))
    assert head["description"].endswith("; outputs similar, no rate above chance")


# -- several at once ---------------------------------------------------------------------------------------------------


def test_the_strongest_is_the_head_type_and_the_others_follow_in_order() -> None:
    """Strength is relative to each criterion, so a smaller odds ratio can be the stronger effect."""
    head = classify_head(
        Planted(
            equal=get_share_at_odds(6**1.2, EQUAL),
            near=get_share_at_odds(8**1.1, NEAR),
            same=get_share_at_odds(4**1.3, SAME),
            distance=15,
        )
    )
    assert head["writes_type"] == "within-sentence"
    assert head["writes_also"] == ("repeat-token", "local")
    other = classify_head(
        Planted(
            equal=get_share_at_odds(6**1.2, EQUAL),
            near=get_share_at_odds(8**1.4, NEAR),
            same=get_share_at_odds(4**1.3, SAME),
            distance=15,
        )
    )
    assert (other["writes_type"], other["writes_also"]) == ("local", ("within-sentence", "repeat-token"))
    assert other["writes_strength"] == pytest.approx(1.4, abs=0.001)


def test_what_is_not_certain_is_not_named_beside() -> None:
    head = classify_head(Planted(equal=0.5, same=0.65, swing={"same": 0.34}))
    assert (head["writes_type"], head["writes_also"]) == ("repeat-token", ())


def test_the_token_of_a_one_token_head_is_named_where_it_is_known() -> None:
    table = planted([Planted(dominant=0.7), Planted(equal=0.5)]).heads()
    table = table.assign(dominant_token=["the", "of"], dominant_token_share=[0.9, 0.9])
    is_certain = {p.rate: np.array([True, True]) for p in PREFERENCES}
    one_token, repeat_token = classify_outputs(table, is_certain)
    assert one_token.words == (
        "outputs similar to that of “the”, in 90 % of the texts (70 % of a text's pairs, chance 20 %)"
    )
    other, _ = classify_outputs(table.assign(dominant_token_share=0.2), is_certain)
    assert "that of one token, which is most often “the”, in 20 % of the texts (70 %" in other.words
    assert repeat_token.words == "outputs similar for equal tokens (50 %, chance 1.0 %)"


# -- what cannot be measured -------------------------------------------------------------------------------------------


def remove_sums(study: Study, *names: str) -> Study:
    """Return the study with these sums unknown, as for texts without tokens or sentences."""
    unknown = {name: xr.full_like(study.data[name], np.nan, dtype=float) for name in names}
    blocked = {f"{name}_blocks": xr.full_like(study.data[f"{name}_blocks"], np.nan, dtype=float) for name in names}
    rates = {name: xr.full_like(study.data[name], np.nan) for name in ("repeat_rate", "same_sentence_rate")}
    return Study(study.data.assign(unknown | blocked | rates))


def test_rates_that_are_not_there_never_decide() -> None:
    study = planted(
        [Planted(equal=0.5, same=0.9, near=0.4, distance=12), Planted(equal=0.5), Planted(pairs=ALL // 2, same=0.9)]
    )
    unknown = remove_sums(study, "equal", "same", "all_equal", "all_same")
    table = unknown.heads()
    assert table["repeat_rate"].isna().all()
    assert table["writes_type"].tolist() == ["local", "undecided", "diffuse"]
    assert table["writes_also"].tolist() == [()] * 3
    assert study.heads()["writes_type"].tolist() == ["repeat-token", "repeat-token", "within-sentence"]


def test_chance_that_leaves_no_room_never_decides() -> None:
    study = planted([Planted(equal=0.5, same=1.0)])
    data = study.data
    one_sentence = data.assign(all_same=data["all_pairs"], all_same_blocks=data["all_pairs_blocks"])
    assert Study(one_sentence).heads().iloc[0]["writes_also"] == ()
    no_repeats = data.assign(all_equal=data["all_equal"] * 0, all_equal_blocks=data["all_equal_blocks"] * 0)
    without_repeats = Study(no_repeats).heads().iloc[0]
    assert (without_repeats["writes_type"], without_repeats["writes_also"]) == ("within-sentence", ())
    no_sample = data.assign(
        {f"shuffled_share_{part}{end}": data[f"shuffled_share_{part}{end}"] * 0
         for part in ("sum", "texts") for end in ("", "_blocks")}
    )  # fmt: skip
    row = Study(no_sample).heads().iloc[0]
    assert math.isnan(row["dominant_share_chance"])
    assert (row["writes_type"], row["writes_also"]) == ("within-sentence", ("repeat-token",))


def test_no_texts_at_all() -> None:
    table = planted([Planted(pairs=0)], blocks=0).heads()
    assert table["writes_type"].tolist() == ["too few texts"]
    assert table["pairs_per_text"].isna().all()


# -- which heads -------------------------------------------------------------------------------------------------------


def assert_same_rows(first: pd.DataFrame, second: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(first.reset_index(drop=True), second.reset_index(drop=True), check_dtype=False)


def test_selected_heads_stay_what_they_are_in_any_order(varied: Study) -> None:
    table = varied.heads()
    assert_same_rows(varied.select(heads=[3, 1]).heads(), table[table["head_number"].isin([1, 3])].iloc[[1, 0, 3, 2]])
    assert_same_rows(
        varied.select(layers=[1, 0], heads=[2, 0]).heads(), table[table["head_number"].isin([0, 2])].iloc[[3, 2, 1, 0]]
    )
    assert_same_rows(varied.select(layers=1).heads(), table[table["layer"] == 1])


def test_layers_keep_their_numbers(varied: Study) -> None:
    table = Study(varied.data.assign_coords(layer=[3, 7])).heads()
    assert table["head"].tolist() == [f"L{layer}H{head}" for layer in (3, 7) for head in range(4)]
    assert table["layer"].tolist() == [3] * 4 + [7] * 4
    assert table["writes_type"].tolist() == [*NAMES[:-1]]


def test_causal_models_are_judged_alike(varied: Study) -> None:
    assert_same_rows(planted(*VARIED, causal=1).heads(), varied.heads())


def test_a_study_file_gives_the_same(varied: Study, tmp_path: Path) -> None:
    assert_same_rows(headscope.open_study(varied.save(tmp_path / "a.nc")).heads(), varied.heads())


SHARES = st.floats(0, 1)
HEADS = st.builds(
    Planted,
    pairs=st.sampled_from([0, 1, 1500, 5000, 100_000, ALL // 2, ALL]),
    equal=SHARES,
    near=st.floats(0, 0.4),
    same=SHARES,
    dominant=SHARES,
    distance=st.floats(5, 50),
    swing=st.dictionaries(st.sampled_from(["equal", "same", "dominant"]), st.floats(-0.5, 0.5), max_size=2),
)


@settings(max_examples=8, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(HEADS, min_size=2, max_size=4), st.integers(1, MIN_BLOCKS + 2), st.randoms())
def test_every_head_has_one_head_type_whatever_its_place(heads: list[Planted], blocks: int, random: Any) -> None:
    table = planted(heads, blocks=blocks).heads()
    assert len(table) == len(heads)
    assert set(table["writes_type"]) <= set(NAMES)
    assert count_heads(table, "writes").index.tolist() == list(NAMES)
    assert count_heads(table, "writes").sum() == len(heads)
    for head in table.itertuples():
        assert head.writes_type not in head.writes_also
        assert set(head.writes_also) <= set(PREFERRED)
        assert not head.writes_also or head.writes_type in PREFERRED
        assert math.isnan(head.writes_strength) == (head.writes_type not in PREFERRED)
        assert head.description.startswith(("attention not measured; outputs ", "too few texts: "))
    order = list(range(len(heads)))
    random.shuffle(order)
    shuffled = planted([heads[k] for k in order], blocks=blocks).heads()
    assert [table["description"][k] for k in order] == shuffled["description"].tolist()


# -- real heads, and the page that explains ----------------------------------------------------------------------------


def test_the_bundled_model_and_the_examples_of_the_docs(minilm: Model) -> None:
    table = run(minilm, headscope.documents()).heads().set_index("head")
    assert table.loc["L1H6", "writes_type"] == "repeat-token"
    assert table.loc["L1H2", "writes_type"] in ("within-sentence", "local")
    assert (table[table["layer"] == 5]["writes_type"] == "diffuse").all()
    examples = re.findall(r"^\| (L\d+H\d+) \| (.*) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(examples) == 6
    for name, description in examples:
        assert table.loc[name, "description"] == description


def test_heads_that_write_at_random_prefer_nothing() -> None:
    table = make_random_study(1, layers=3, heads=8, texts=200, length=48).heads()
    assert count_heads(table, "writes")["diffuse"] == 24


def test_the_docs_say_the_same() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for head_type in (*PARTS["attends"].types, *HEAD_TYPES):
        assert f"| `{head_type.name}` | {head_type.description} | {head_type.criterion} |" in text
    assert f"more than {Z} standard errors" in text
    assert f"at least {MIN_TEXTS} texts" in text
    assert f"at least {MIN_BLOCKS} blocks" in text


# -- the table in an order ---------------------------------------------------------------------------------------------


def test_order_by_a_column() -> None:
    table = planted(*VARIED[::-1]).heads()
    assert sort_heads(table, None) is table
    assert sort_heads(table, "repeat_rate")["repeat_rate"].dropna().is_monotonic_decreasing
    assert sort_heads(table, "repeat_rate")["writes_type"].tolist()[-1] == "silent"
    assert sort_heads(table, "writes_type")["writes_type"].tolist() == [*NAMES[:-1]]
    assert sort_heads(sort_heads(table, "pairs"), "layer")["layer"].tolist() == [0] * 4 + [1] * 4
    for unknown in ("nothing", "writes_also", "attends_also", "description"):
        with pytest.raises(StudyError, match=f"unknown column '{unknown}'; there are: head, layer, head_number"):
            sort_heads(table, unknown)

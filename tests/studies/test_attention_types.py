"""Test what heads attend to: each criterion from both sides, on studies whose attention scores are set by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headscope.errors import StudyError
from headscope.studies.attention_types import TARGETS, TIMES
from headscope.studies.head_table import filter_by_type, sort_heads
from headscope.studies.head_types import PARTS, count_heads
from headscope.studies.rates import ATTENTION_SCORES
from headscope.studies.result import Study
from headscope.studies.type_criteria import Z
from tests.helpers.planted import Planted, get_share_at_odds, planted
from tests.helpers.planted_attention import EVEN, VARIED_ATTENTION, plant_attention
from tests.helpers.synthetic import make_random_study

NAMES = PARTS["attends"].names


def plant_heads(*heads: dict[str, float], swing: float = 0.0, **changes: Any) -> Study:
    """Return a study of one layer whose heads have these scores; `changes` are for `planted`."""
    study = planted([Planted()] * len(heads), **{"first_special_token": "", **changes})
    return plant_attention(study, heads, swing=swing)


def list_types(*heads: dict[str, float], **changes: Any) -> list[str]:
    names: list[str] = plant_heads(*heads, **changes).heads()["attends_type"].tolist()
    return names


def test_names_and_letters() -> None:
    assert NAMES == (
        "previous-token", "next-token", "self", "duplicate-token", "induction", "local", "first-token", "special-token",
        "punctuation", "broad", "mixed", "not measured", "too few texts",
    )  # fmt: skip
    for part in PARTS.values():
        assert len({head_type.letter for head_type in part.types}) == len(part.types)
    assert {target.score for target in TARGETS} - {"attends_other_special"} <= ATTENTION_SCORES.keys()


def test_each_type_is_hit() -> None:
    table = plant_heads(*VARIED_ATTENTION).heads()
    assert table["attends_type"].tolist() == [*NAMES[:-2]]
    assert table["attends_also"].tolist() == [()] * len(VARIED_ATTENTION)
    assert count_heads(table, "attends").tolist() == [1] * len(VARIED_ATTENTION) + [0, 0]
    assert [words.partition("; ")[0] for words in table["description"]] == [
        "attends to the previous token (98 %, uniform 1.0 %)",
        "attends to the next token (50 %, uniform 1.0 %)",
        "attends to the token itself (50 %, uniform 1.0 %)",
        "attends to the same token elsewhere (25 %, uniform 3.0 %)",
        "attends to what followed the same token before (15 %, uniform 2.0 %)",
        "attends to near tokens (5.0 away on average, uniform 34)",
        "attends to the first token (60 %, uniform 1.0 %)",
        "attends to special tokens other than the first (70 %, uniform 2.0 %)",
        "attends to punctuation (50 %, uniform 12 %)",
        "attends to nearly all tokens (entropy 0.95 of 1)",
        "attends to several kinds of tokens, most to the previous token (12 %, uniform 1.0 %)",
    ]
    strengths = table["attends_strength"]
    assert strengths[0] == pytest.approx(math.log((0.98 / 0.02) / (0.01 / 0.99)) / math.log(4))
    assert strengths[5] == pytest.approx(math.log(5 / 34) / math.log(0.5))
    assert strengths[[9, 10]].isna().all()
    assert table["attends_previous_error"].tolist() == pytest.approx([0] * len(VARIED_ATTENTION), abs=1e-12)
    assert table["attends_previous_chance"].tolist() == pytest.approx([0.01] * len(VARIED_ATTENTION))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_effects_are_large_enough_or_not(target: Any) -> None:
    score = "attends_special" if target.name == "special-token" else target.score
    edge = max(target.min_share, get_share_at_odds(TIMES, EVEN[score]))
    assert list_types({score: edge * 1.001}, {score: edge * 0.999}) == [target.name, "mixed"]


def test_both_the_share_and_the_odds_count() -> None:
    assert list_types({"attends_punctuation": 0.3}) == ["mixed"]  # 3 times the odds, though more than a fifth
    assert list_types({"attends_previous": 0.1}) == ["mixed"]  # 11 times the odds, though less than a fifth


def test_an_effect_is_certain_enough_or_not() -> None:
    # Shares that swing by d around their mean over 20 blocks of one size have a standard error of d / √19.
    edge = (0.3 - 0.01) * math.sqrt(19) / Z
    assert list_types({"attends_next": 0.3}, swing=edge * 0.999) == ["next-token"]
    assert list_types({"attends_next": 0.3}, swing=edge * 1.001) == ["mixed"]
    near = (34 - 10) * math.sqrt(19) / Z
    assert list_types({"attention_distance": 10.0}, swing=near * 0.999)[0] == "local"
    assert list_types({"attention_distance": 10.0}, swing=near * 1.001)[0] != "local"


def test_relations_come_before_places_and_the_largest_share_first() -> None:
    table = plant_heads(
        {"attends_first": 0.6, "attends_induction": 0.15},
        {"attends_previous": 0.3, "attends_duplicate": 0.4, "attends_special": 0.2, "attends_punctuation": 0.4},
    ).heads()
    assert table["attends_type"].tolist() == ["induction", "duplicate-token"]
    assert table["attends_also"].tolist() == [("first-token",), ("previous-token", "punctuation", "special-token")]
    both = "what followed the same token before (15 %, uniform 2.0 %) and the first token (60 %, uniform 1.0 %)"
    assert table["description"][0].startswith(f"attends to {both}; ")


def test_local_is_said_where_no_single_place_is_near() -> None:
    table = plant_heads(
        {"attends_previous": 0.5, "attention_distance": 3.0},
        {"attends_duplicate": 0.3, "attends_first": 0.3, "attention_distance": 8.0},
        {"attention_distance": 17.0 * 0.999},
        {"attention_distance": 17.0 * 1.001},
    ).heads()
    assert table["attends_type"].tolist() == ["previous-token", "duplicate-token", "local", "mixed"]
    assert table["attends_also"].tolist() == [(), ("local", "first-token"), (), ()]
    assert table["attends_strength"][2] == pytest.approx(1, abs=0.01)


def test_the_first_token_is_not_counted_as_a_special_token_again() -> None:
    heads = {"attends_first": 0.6, "attends_special": 0.62}, {"attends_first": 0.3, "attends_special": 0.9}
    table = plant_heads(*heads, first_special_token="[CLS]").heads()
    assert table["attends_type"].tolist() == ["first-token", "special-token"]
    assert table["attends_also"].tolist() == [(), ("first-token",)]
    assert "special tokens other than the first (60 %, uniform 1.0 %)" in table["description"][1]
    assert "attends_other_special" not in table
    table = plant_heads(*heads).heads()  # a text does not begin with a special token
    assert table["attends_type"].tolist() == ["special-token", "special-token"]


def test_broad_or_not() -> None:
    assert list_types({"attention_entropy": 0.9}, {"attention_entropy": 0.899}) == ["broad", "mixed"]
    assert list_types({"attention_entropy": 0.95, "attends_self": 0.25}) == ["self"]


def test_nothing_above_even_attention() -> None:
    below = {name: value / 2 for name, value in EVEN.items() if name.startswith("attends")}
    description = plant_heads(below).heads()["description"][0]
    assert description.startswith("attends to no kind of token more than uniform attention; ")


def test_scores_that_are_missing_never_decide() -> None:
    assert list_types({"attends_next": math.nan, "attends_previous": 0.5}) == ["previous-token"]
    nothing = dict.fromkeys(EVEN, math.nan)
    assert list_types(nothing) == ["not measured"]
    assert planted([Planted(equal=0.3)]).heads()["attends_type"].tolist() == ["not measured"]


def test_studies_of_old_versions_have_no_type_of_attention() -> None:
    study = plant_heads({"attends_previous": 0.9})
    old = Study(
        study.data.drop_vars([str(name) for name in study.data if str(name).startswith(("attends", "attention_"))])
    )
    table = old.heads()
    assert table["attends_type"].tolist() == ["not measured"]
    assert table["attends_previous"].isna().all()


def test_too_few_texts_for_either_part() -> None:
    table = plant_heads({"attends_previous": 0.9}, blocks=9).heads()
    assert table[["attends_type", "writes_type"]].to_numpy().tolist() == [["too few texts"] * 2]
    assert table["description"].tolist() == ["too few texts: they fill 9 of 20 blocks, and 10 are needed"]


SCORES = st.fixed_dictionaries(
    {},
    optional={
        **{name: st.floats(0, 1) for name in EVEN if name.startswith("attends")},
        "attention_entropy": st.floats(0, 1),
        "attention_distance": st.floats(0, 99),
    },
)


@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(SCORES, min_size=1, max_size=5), st.sampled_from(["", "[CLS]"]))
def test_every_head_has_one_type_and_relations_come_first(heads: list[dict[str, float]], first: str) -> None:
    places = [target.name for target in TARGETS if target.is_place]
    table = plant_heads(*heads, first_special_token=first).heads()
    for scores, head in zip(heads, table.itertuples(), strict=True):
        types = [head.attends_type, *head.attends_also]
        assert set(types) <= set(NAMES)
        assert len(set(types)) == len(types)
        is_place = [name in places for name in types]
        assert is_place == sorted(is_place)
        assert not head.attends_also or not set(types) & set(NAMES[-4:])
        assert math.isnan(head.attends_strength) == (head.attends_type in NAMES[-4:])
        assert head.attends_strength >= 1 or math.isnan(head.attends_strength)
        if scores.get("attends_previous", 0) > 0.21:
            assert "previous-token" in types
        elif scores.get("attends_previous", 0) < 0.2:
            assert "previous-token" not in types


def test_filter_and_sort() -> None:
    table = plant_heads(*VARIED_ATTENTION, {"attends_first": 0.6, "attends_induction": 0.15}).heads()
    assert filter_by_type(table, "attends", None) is table
    assert filter_by_type(table, "attends", "first-token")["head"].tolist() == ["L0H6", "L0H11"]
    assert filter_by_type(table, "attends", "broad")["head"].tolist() == ["L0H9"]
    with pytest.raises(StudyError, match="unknown type 'repeat-token' of what a head attends; there are: previous-tok"):
        filter_by_type(table, "attends", "repeat-token")
    assert sort_heads(table[::-1], "attends_type")["attends_type"].tolist() == [*NAMES[:5], *NAMES[4:-2]]


def test_attention_at_random_has_no_type() -> None:
    table = make_random_study(1, layers=3, heads=8, texts=200, length=48).heads()
    assert set(table["attends_type"]) <= {"broad", "mixed"}

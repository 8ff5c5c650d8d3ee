"""Test head types on transformers whose heads are built by hand: every one is named as what it is."""

from __future__ import annotations

import pandas as pd
import pytest

import headscope
from tests.helpers import built_heads as built

ENCODER = {
    "previous-token": built.attend_previous,
    "next-token": built.attend_next,
    "self": built.attend_self,
    "duplicate-token": built.attend_duplicates,
    "first-token": built.attend_first,
    "special-token": lambda: built.attend_tokens(built.SEP),
    "punctuation": lambda: built.attend_tokens(built.STOP, built.COMMA),
    "local": built.attend_sentence,
    "broad": built.attend_evenly,
}


@pytest.fixture(scope="module")
def encoder_heads() -> pd.DataFrame:
    model = built.build_encoder([build() for build in ENCODER.values()])
    return headscope.study(model, built.make_texts(100), length=built.LENGTH).heads()


@pytest.fixture(scope="module")
def decoder_heads() -> pd.DataFrame:
    model = built.build_decoder(
        [built.attend_previous(), built.attend_duplicates(), built.attend_first(), built.attend_evenly()],
        [built.attend_followers(), built.attend_self(), built.attend_tokens(built.STOP), built.attend_at_random(0)],
    )
    return headscope.study(model, built.make_texts(100), length=built.LENGTH).heads()


def test_what_heads_of_an_encoder_attend_to(encoder_heads: pd.DataFrame) -> None:
    assert encoder_heads["attends_type"].tolist() == [*ENCODER]
    assert encoder_heads["attends_also"].tolist() == [()] * len(ENCODER)


def test_what_heads_of_a_decoder_attend_to(decoder_heads: pd.DataFrame) -> None:
    """The induction head reads what the previous-token head of the layer before has written."""
    assert decoder_heads["attends_type"].tolist() == [
        "previous-token", "duplicate-token", "first-token", "broad", "induction", "self", "punctuation", "mixed",
    ]  # fmt: skip
    induction = decoder_heads.iloc[4]
    assert induction["attends_induction"] == pytest.approx(1, abs=1e-3)
    assert induction["attends_also"] == ()


def test_outputs_are_another_matter(encoder_heads: pd.DataFrame) -> None:
    """A head that attends to the previous token writes nothing alike for equal tokens; one that attends to itself does.

    All heads but the one of sentences write the tokens that they attend to.
    """
    types = dict(zip(encoder_heads["attends_type"], encoder_heads["writes_type"], strict=True))
    assert types["self"] == types["duplicate-token"] == "repeat-token"
    assert types["local"] == "within-sentence"
    assert types["previous-token"] == types["next-token"] == "undecided"
    assert types["first-token"] == types["special-token"] == types["broad"] == "diffuse"


def test_heads_at_random_have_no_name() -> None:
    model = built.build_encoder([built.attend_at_random(seed, spread) for seed in range(6) for spread in (0.5, 2.0)])
    table = headscope.study(model, built.make_texts(100, seed=1), length=built.LENGTH).heads()
    assert set(table["attends_type"]) == {"broad", "mixed"}
    assert set(table["writes_type"]) <= {"diffuse", "undecided"}

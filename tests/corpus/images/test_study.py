"""Studies of images: patches are tokens, and rates that need words are marked as not measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headscope
from headscope import figures
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.rates import OF_WORDS, RATES
from headscope.studies.result import Study
from headscope.tally.quantities import QUANTITIES
from tests.corpus.images.conftest import COUNT
from tests.helpers import tiny

INTEGERS = [quantity.name for quantity in QUANTITIES if not quantity.real]


# What a study holds


def test_what_needs_words_is_nan_and_the_rest_is_measured(study: Study) -> None:
    assert study.manifest["modality"] == "image"
    assert study.has_images
    for name in RATES:
        values = [study.rate(name), study.chance(name), study.standard_error(name)]
        assert all(bool(array.isnull().all()) is (name in OF_WORDS) for array in values), name
    assert float(study.chance("mean_distance")) == pytest.approx(11 / 3)  # (N + 1) / 3
    assert int(study.data["all_pairs"]) == COUNT * 45
    assert int(study.data["all_equal"]) == int(study.data["equal"].sum()) == 0
    assert set(study.data["token"].values) <= {"[CLS]", *(f"r{k // 3}c{k % 3}" for k in range(9))}
    received = study.data["attention_received"].sel(receiver=["sentence end", "comma", "last special token"])
    assert not received.any()
    assert repr(study).endswith(f"{COUNT} images of images given in Python>")


def test_the_study_is_the_sum_of_its_readings(model: Model, study: Study) -> None:
    readings = [headscope.read(model, picture) for picture in tiny.pictures(COUNT)]
    for layer in study.layers:
        for head in study.head_numbers:
            pairs = [reading.pairs(layer, head) for reading in readings]
            apart = sum(int((table.index_j - table.index_i).sum()) for table in pairs)
            here = study.data.sel(layer=layer, head=head)
            assert int(here["pairs"]) == sum(map(len, pairs))
            assert int(here["distance_sum"]) == apart
    maps = sum(reading.attention.values for reading in readings)
    np.testing.assert_allclose(study.data["attention"].values, maps, rtol=1e-5)


def test_order_batches_and_kernel_change_no_integer(model: Model, study: Study) -> None:
    pictures = tiny.pictures(COUNT)
    shuffled = [pictures[k] for k in np.random.default_rng(5).permutation(COUNT)]
    assert int(study.data["near_threshold"].sum()) == 0
    for other in (
        headscope.study(model, shuffled, batch_size=1),
        headscope.study(model, shuffled, batch_size=7),
        headscope.study(model, shuffled, kernel="reference"),
    ):
        assert other.manifest["corpus_hash"] == study.manifest["corpus_hash"]
        for name in INTEGERS:
            for variable in (name, f"{name}_blocks"):
                if variable in study.data and name not in ("value_histogram", "near_bin_edge"):
                    assert np.array_equal(other.data[variable], study.data[variable]), variable
    assert np.count_nonzero(study.data["texts_blocks"]) > 5  # images are assigned to blocks by their content


def test_findings_say_what_images_have_none_of(study: Study) -> None:
    findings = {finding.number: finding for finding in headscope.findings(study)}
    unmeasured = {n for n, finding in findings.items() if "patches are no words" in finding.explanation}
    assert unmeasured == {3, 6, 7, 8, 17}
    assert all(findings[n].verdict == "not measurable" for n in unmeasured)
    assert "[CLS], the classification token, is the most attended token" in findings[2].explanation
    assert "of images" in findings[2].explanation
    assert list(findings[12].details) == ["conditions", "mean_distance"]
    # two layers have no middle
    assert {n for n in findings if findings[n].verdict == "not measurable"} == unmeasured | {4, 11}
    assert findings[15].verdict == "too few texts"  # of which lines have pairs on both sides
    assert not any(" texts" in finding.explanation or " tokens" in finding.explanation for finding in findings.values())


def test_without_a_special_token_finding_2_says_so() -> None:
    study = headscope.study(tiny.vision_model("ijepa"), tiny.pictures(3))
    finding = headscope.findings(study)[1]
    assert finding.verdict == "not measurable"
    assert "this model puts no special token first. What stands first in an image" in finding.explanation


def test_figures_of_words_are_not_drawn(study: Study) -> None:
    assert {n for n, drawing in figures.DRAWINGS.items() if not drawing.can_draw(study)} == {"6a", "6b", "8", "noise"}
    for number in ("6a", "6b", "8", "noise"):
        with pytest.raises(StudyError, match=f"figure {number} shows what only words"):
            figures.draw(study, number)
    drawn = figures.draw(study, "11b")
    words = [artist.get_text() for artist in drawn.findobj(lambda artist: hasattr(artist, "get_text"))]  # type: ignore[attr-defined]
    assert "share of images (%)" in words
    assert not any("text" in word or "tokens" in word for word in words)


def test_nan_stays_where_studies_are_saved_selected_and_merged(model: Model, study: Study, tmp_path: Path) -> None:
    other = headscope.study(model, tiny.pictures(3, seed=1))
    for derived in (headscope.open_study(study.save(tmp_path / "a.nc")), study.select(layers=[1]), study.merge(other)):
        assert derived.has_images
        assert derived.rate("same_sentence_rate").isnull().all()
        assert derived.chance("same_sentence_rate").isnull()
    assert study.merge(other).texts == COUNT + 3


def test_a_study_that_says_nothing_is_one_of_texts() -> None:
    study = headscope.study(tiny.model("bert"), ["a b . a b .", "c d e f ."], length=16)
    assert study.manifest["modality"] == "text"
    del study.data.attrs["modality"]
    assert not study.has_images
    assert study.chance("repeat_rate") > 0
    assert figures.DRAWINGS["6a"].can_draw(study)


def test_texts_are_not_compared_with_images(study: Study) -> None:
    texts = headscope.study(tiny.model("bert"), ["a b . a b .", "c d e f ."], length=10)
    with pytest.raises(StudyError, match="texts and of images cannot be compared"):
        headscope.compare([study, texts])


def test_head_types_of_heads_that_saw_no_words(study: Study) -> None:
    table = study.heads()
    assert not set(table["writes_type"]) & {"repeat-token", "within-sentence"}
    assert table["same_sentence_rate_chance"].isna().all()
    assert not table["description"].str.contains("text").any()

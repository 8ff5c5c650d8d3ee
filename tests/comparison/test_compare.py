"""Comparisons: what is refused, warnings and notes, every table, and the files written."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headscope
from headscope.comparison.claims import SHORT_CLAIMS, VERDICT_SIGNS, describe_spread, summarize_findings
from headscope.comparison.compare import choose_names, shorten_paths
from headscope.comparison.measures import MEASURES, NEAR, OVER_DEPTH, compute_relative_depth, tabulate_depth
from headscope.comparison.result import format_json
from headscope.errors import StudyError
from headscope.readings.reading import Reading
from headscope.studies.claims import CLAIMS
from headscope.studies.findings import Finding, findings
from headscope.studies.head_types import PARTS
from headscope.studies.labels import add_derived_variables
from headscope.studies.result import Study
from tests.helpers.comparison_studies import change_head, make_model_study


@pytest.fixture(scope="module")
def base_study() -> Study:
    return make_model_study(0)


@pytest.fixture(scope="module")
def copied_study(base_study: Study, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return headscope.open_study(base_study.save(tmp_path_factory.mktemp("copied") / "one.nc"))


@pytest.fixture(scope="module")
def small_study() -> Study:
    """A model of another shape."""
    return make_model_study(2, layers=4, heads=2)


@pytest.fixture(scope="module")
def comparison(base_study: Study, small_study: Study) -> headscope.Comparison:
    """A model, the same after training, and a smaller one."""
    return headscope.compare(
        [base_study, change_head(base_study, 1, 2, share=0.6), small_study], ["before", "after", "small"]
    )


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("length", 24, "tokens in a window: 16 \\(model-0\\), 24 \\(model-1\\)"),
        ("windows", "all", "windows taken of a document: first \\(model-0\\), all \\(model-1\\)"),
        ("sentences", "text", "how sentences are found: tokens \\(model-0\\), text \\(model-1\\)"),
        ("theta", 0.5, "threshold θ of a high pair: 0.3 \\(model-0\\), 0.5 \\(model-1\\)"),
    ],
)
def test_other_settings_are_refused_unless_forced(base_study: Study, setting: str, value: Any, words: str) -> None:
    other = make_model_study(1, **{setting: value})
    with pytest.raises(StudyError, match=f"{words}.*--{setting}.*--force") as refused:
        headscope.compare([base_study, other])
    assert "cannot be compared" in str(refused.value)
    forced = headscope.compare([base_study, other], force=True)
    assert len(forced.forced) == 1
    assert forced.warnings[0] == forced.forced[0]
    assert str(value) in forced.warnings[0]


def test_several_settings_are_named_at_once(base_study: Study) -> None:
    with pytest.raises(StudyError, match="--length and --theta"):
        headscope.compare([base_study, make_model_study(1, length=32, theta=0.4)])


def test_another_tau_changes_nothing_that_is_compared(base_study: Study) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, tau=0.5)])
    assert comparison.warnings == []
    assert "0.3 (model-0), 0.5 (model-1)" in "".join(comparison.notes)
    unchanged = headscope.compare([base_study, make_model_study(1)])
    pd.testing.assert_frame_equal(comparison.differences(), unchanged.differences())


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([], "at least two studies, and none was given"),
        (["one"], "at least two studies, and one was given"),
        (["one", "one"], "model-0 \\(1\\) and model-0 \\(2\\) are one and the same study"),
        (["one", "reading"], "a reading of one text was given in place of a study"),
        (["one", 7], "takes studies, or their folders, not int"),
        (["one", "nowhere"], "nowhere: no study there"),
        (["one", "selected"], "whole studies"),
        (["one", "copy"], "one and the same study"),
    ],
)
def test_what_is_no_pair_of_studies(
    base_study: Study, copied_study: Study, sources: list[Any], words: str, tmp_path: Path
) -> None:
    reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
    sources_by_name = {
        "one": base_study,
        "reading": reading,
        "nowhere": tmp_path / "nowhere",
        "selected": make_model_study(1).select(layers=[0]),
        "copy": copied_study,
    }
    with pytest.raises(StudyError, match=words):
        headscope.compare([sources_by_name.get(source, source) for source in sources])


def test_images_are_compared_with_images_only(base_study: Study) -> None:
    first, second = (
        Study(add_derived_variables(make_model_study(k, texts=30, blocks=6).data.assign_attrs(modality="image")))
        for k in (1, 2)
    )
    with pytest.raises(StudyError, match=r"patches are no words\. Of images: model-1"):
        headscope.compare([base_study, first], force=True)
    comparison = headscope.compare([first, second])
    wordless = comparison.depth["rate"].isin(["repeat_rate", "same_sentence_rate"])
    assert comparison.depth[wordless]["value"].isna().all()
    assert comparison.depth[~wordless]["value"].notna().all()
    assert comparison.summary.set_index("number")["consistent_for"][8] == "no verdict"


def test_one_study_is_no_list(base_study: Study) -> None:
    with pytest.raises(StudyError, match="give a list"):
        headscope.compare(base_study)  # type: ignore[arg-type]


def test_a_saved_reading_is_no_study(base_study: Study, tmp_path: Path) -> None:
    reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
    reading.save(tmp_path / "reading.nc")
    with pytest.raises(StudyError, match="a reading of one text, not a study"):
        headscope.compare([base_study, tmp_path / "reading.nc"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"names": ["a"]}, "1 names for 2 studies"),
        ({"names": ["a", " "]}, "a name is empty"),
        ({"names": ["a", "a"]}, "'a' is given twice"),
        ({"baseline": "c"}, "no study is called 'c'.*model-0, model-1"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": 1.5}, "alpha is 1.5"),
    ],
)
def test_options_that_make_no_sense(base_study: Study, options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        headscope.compare([base_study, make_model_study(1)], **options)


# -- warnings and notes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpus": 1}, "Different texts .*same name, other content.*cannot be paired"),
        ({"complete": 0, "stopped_by": "the disk is full"}, "model-1 is incomplete.*80 texts.*the disk is full"),
        ({"texts": 240, "corpus_hash": f"{0:032x}"}, "Very different numbers of texts \\(model-0 80, model-1 240\\)"),
        ({"texts": 49, "corpus_hash": f"{0:032x}"}, "model-1: too few texts: 49, and 50 are needed.*not tested"),
        ({"dtype": "bfloat16"}, "Different dtypes: float32 \\(model-0\\), bfloat16 \\(model-1\\)"),
        ({"headscope": "9.9"}, "different versions of headscope: 0 \\(model-0\\), 9.9 \\(model-1\\)"),
        ({"format": 2}, "different formats: 1 \\(model-0\\), 2 \\(model-1\\)"),
        ({"min_tokens": 5}, "shortest texts .*2 \\(model-0\\), 5 \\(model-1\\)"),
    ],
)
def test_warnings(base_study: Study, changes: dict[str, Any], words: str) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, **changes)])
    assert len(comparison.warnings) == 1
    assert comparison.forced == []
    assert re.search(words, comparison.warnings[0])


def test_nothing_to_warn_of(base_study: Study) -> None:
    comparison = headscope.compare([base_study, change_head(base_study, 0, 0)])
    assert comparison.warnings == comparison.notes == []


def test_one_text_has_no_error(base_study: Study) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, texts=1, corpus=3)], by_head=True)
    assert len(comparison.differences())
    assert any("model-1: no standard errors, for want of documents" in warning for warning in comparison.warnings)
    assert comparison.differences()["p"].isna().all()
    assert not comparison.differences()["significant"].any()


@pytest.mark.parametrize(("texts", "blocks"), [(49, 20), (80, 9)])
def test_heads_are_not_tested_with_too_few_texts(texts: int, blocks: int) -> None:
    before = make_model_study(0, texts, blocks=blocks)
    comparison = headscope.compare([before, change_head(before, 1, 2)], ["before", "after"])
    assert comparison.differences()["p"].isna().all()
    assert not comparison.differences()["significant"].any()
    assert (comparison.differences("repeat_rate")["difference"] != 0).sum() == 1
    assert comparison.pairs[0].how.startswith("not tested, too few texts: ")
    assert set(comparison.changes["after"]) == {"too few texts"}
    assert "Not tested, too few texts: " in comparison.to_html()


def test_blocks_of_windows_are_warned_of(base_study: Study) -> None:
    of_windows = make_model_study(1, blocks_of="windows")
    both = headscope.compare([base_study, of_windows]).warnings
    assert [warning for warning in both if "model-1: all standard errors are too small" in warning]
    assert [warning for warning in both if "documents (model-0), windows (model-1)" in warning]
    same = headscope.compare([make_model_study(0, blocks_of="windows"), of_windows])
    assert ["all standard errors are too small" in warning for warning in same.warnings] == [True, True]
    assert same.warnings[0] in same.to_html()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal": 1}, "model-1: only what came before; model-0: the whole window"),
        (
            {"tokenizer": "Other"},
            "Different tokenizers \\(Tokenizer \\(model-0\\), Other \\(model-1\\)\\).*another span",
        ),
        ({"corpus": 1, "corpus_hash": f"{0:032x}"}, "model-1 cut the same texts into other tokens than model-0"),
        ({"weight_hash": f"{0:064x}"}, "model-0 and model-1 are the very same model"),
        ({"stack": "cross"}, "model-1 looks from one text at another"),
    ],
)
def test_notes(base_study: Study, changes: dict[str, Any], words: str) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, **changes)])
    assert comparison.warnings == []
    assert re.search(words, " ".join(comparison.notes))


def test_stacks_of_one_model_stand_in_its_names() -> None:
    both = [
        make_model_study(k, stack=stack, model="t5", weight_hash="a") for k, stack in enumerate(("encoder", "decoder"))
    ]
    comparison = headscope.compare(both)
    assert comparison.names == ["t5 encoder", "t5 decoder"]
    assert any("Stacks of one model (encoder (t5 encoder), decoder (t5 decoder))" in note for note in comparison.notes)
    assert not any("very same model" in note for note in comparison.notes)


def test_names() -> None:
    assert shorten_paths(["bert", "x/bert"]) == ["bert", "x/bert"]
    assert shorten_paths(["a/b/best", "a/c/best", "d"]) == ["b/best", "c/best", "d"]
    assert shorten_paths(["C:\\models\\bert\\", "/models/gpt 2"]) == ["bert", "gpt 2"]
    assert shorten_paths(["/", "<b>/</b>"]) == ["/", "<b>/</b>"]
    studies = [make_model_study(0, model="m", texts=4), make_model_study(1, model="m", texts=4, dtype="float16")]
    assert choose_names(studies) == ["m float32", "m float16"]
    assert choose_names([studies[0], make_model_study(1, model="m", texts=4)]) == ["m (1)", "m (2)"]
    assert choose_names(studies, ["a", " b "]) == ["a", "b"]


# -- findings ---------------------------------------------------------------------------------------------------------


def test_findings_side_by_side(comparison: headscope.Comparison, base_study: Study) -> None:
    table = comparison.findings
    assert len(table) == 18 * 3
    assert table["number"].tolist() == [number for number in range(1, 19) for _ in range(3)]
    assert table["model"].tolist() == ["before", "after", "small"] * 18
    expected = findings(base_study)
    rows = table[table["model"] == "before"]
    assert rows["verdict"].tolist() == [finding.verdict for finding in expected]
    assert rows["explanation"].tolist() == [finding.explanation for finding in expected]
    np.testing.assert_allclose(
        rows["value"].astype(float), [math.nan if f.value is None else f.value for f in expected]
    )
    for row in comparison.summary.to_dict("records"):
        verdicts = {verdict: row[verdict.replace(" ", "_")] for verdict in VERDICT_SIGNS}
        assert sorted(name for names in verdicts.values() for name in names) == ["after", "before", "small"]
    assert set(SHORT_CLAIMS) == {claim.number for claim in CLAIMS}


def make_finding(verdict: str, value: float | None, error: float | None = None, unit: str = "%") -> Finding:
    return Finding(1, "A claim", "paper", "explanation", verdict, "criterion", value, error, unit)  # type: ignore[arg-type]


def test_summary_worked_by_hand() -> None:
    findings = {
        "a": [make_finding("consistent", 0.5, 0.03)],
        "b": [make_finding("not consistent", 0.2, 0.04)],
        "c": [make_finding("not measurable", None)],
        "d": [make_finding("undecided", 0.3, 0.04)],
        "e": [make_finding("too few texts", 0.3)],
    }
    (row,) = summarize_findings(findings).to_dict("records")
    assert row["consistent_for"] == "some"
    assert [row[verdict.replace(" ", "_")] for verdict in VERDICT_SIGNS] == [["a"], ["b"], ["d"], ["e"], ["c"]]
    # 0.3 / √(0.03² + 0.04²) = 6
    assert row["differs"] == "from 20.0 ± 4.0 % (b) to 50.0 ± 3.0 % (a), 6.0 standard errors apart"


def test_words_for_what_differs() -> None:
    assert (
        describe_spread({"a": make_finding("consistent", None), "b": make_finding("consistent", math.nan)})
        == "no number"
    )
    assert (
        describe_spread({"a": make_finding("consistent", None), "b": make_finding("consistent", 0.1)})
        == "one number only"
    )
    assert (
        describe_spread({"a": make_finding("consistent", 0.1), "b": make_finding("consistent", 0.1)})
        == "no difference: 10.0 % for both"
    )
    assert (
        describe_spread({"a": make_finding("consistent", 0.1), "b": make_finding("consistent", 0.3)})
        == "from 10.0 % (a) to 30.0 % (b)"
    )
    findings = {"a": make_finding("consistent", 3.0, None, "of 9"), "b": make_finding("consistent", 4.0, None, "of 12")}
    assert describe_spread(findings) == "3.00 of 9 (a), 4.00 of 12 (b)"


# -- depth ------------------------------------------------------------------------------------------------------------


def test_relative_depth() -> None:
    study = make_model_study(0, texts=4)
    np.testing.assert_allclose(compute_relative_depth(study), [0, 0.5, 1])
    hybrid = Study(study.data.assign_coords(layer=[3, 7, 11]))
    np.testing.assert_allclose(compute_relative_depth(hybrid), [3 / 11, 7 / 11, 1])
    np.testing.assert_allclose(compute_relative_depth(Study(hybrid.data.assign_attrs(depth=12))), [3 / 11, 7 / 11, 1])
    np.testing.assert_allclose(
        compute_relative_depth(Study(hybrid.data.assign_attrs(depth=16))), [3 / 15, 7 / 15, 11 / 15]
    )
    assert compute_relative_depth(make_model_study(0, texts=4, layers=1)).tolist() == [0]


def test_rates_over_depth(comparison: headscope.Comparison, base_study: Study) -> None:
    table = comparison.depth
    assert table["rate"].unique().tolist() == list(OVER_DEPTH)
    assert len(table) == (3 + 3 + 4) * len(OVER_DEPTH)
    model_rows = table[table["model"] == "before"].set_index(["rate", "layer"])
    for name in OVER_DEPTH:
        if name == NEAR:
            continue
        is_ratio = name == "mean_distance"

        def compute_relative(study: Study, name: str = name, is_ratio: bool = is_ratio) -> Any:
            rate, chance = study.rate(name), study.chance(name)
            return ((rate / chance) if is_ratio else (rate - chance)).mean("head")

        value, error = base_study.jackknife(lambda study, name=name: study.rate(name).mean("head"))
        relative, relative_error = base_study.jackknife(compute_relative)
        rows = model_rows.loc[name]
        np.testing.assert_allclose(rows["value"], value)
        np.testing.assert_allclose(rows["error"], error)
        np.testing.assert_allclose(rows["against_chance"], relative)
        np.testing.assert_allclose(rows["against_chance_error"], relative_error)
    assert model_rows["depth"].unique().tolist() == [0, 0.5, 1]
    assert table[table["model"] == "small"]["depth"].max() == 1


def test_heads_without_pairs_are_left_out_of_the_mean(base_study: Study) -> None:
    data = base_study.data.copy(deep=True)
    for name in ("pairs", "equal", "same", "distance_sum"):
        data[f"{name}_blocks"].loc[{"layer": 1, "head": [0, 1]}] = 0
    table = tabulate_depth(["x"], [Study(data)]).set_index(["rate", "layer"])
    assert table.loc[("repeat_rate", 1), "heads"] == 2
    assert table.loc[("repeat_rate", 1), "value"] == pytest.approx(float(base_study.rate("repeat_rate")[1, 2:].mean()))


# -- head types -------------------------------------------------------------------------------------------------------


def test_head_types_are_counted(comparison: headscope.Comparison, base_study: Study) -> None:
    table = comparison.head_types
    assert len(table) == 3 * sum(len(part.types) for part in PARTS.values())
    for part, rows in table.groupby("part"):
        assert rows.groupby("model")["heads"].sum().to_dict() == {"before": 12, "after": 12, "small": 8}
        assert rows.groupby("model")["share"].sum().tolist() == pytest.approx([1, 1, 1])
        expected = base_study.heads()[f"{part}_type"].value_counts()
        head_counts = rows[rows["model"] == "before"].set_index("type")["heads"]
        assert {name: number for name, number in head_counts.items() if number} == expected.to_dict()


def test_heads_that_change_head_type(comparison: headscope.Comparison) -> None:
    changes = comparison.changes
    assert len(changes) == 2 * 12
    assert changes[changes["changed"]][["head", "part"]].to_numpy().tolist() == [["L1H2", "writes"]]
    row = changes[changes["part"] == "writes"].set_index("head").loc["L1H2"]
    assert row["after"] == "repeat-token" != row["before"]


# -- head by head -----------------------------------------------------------------------------------------------------


def test_differences_of_one_shape(comparison: headscope.Comparison) -> None:
    assert [(pair.baseline, pair.model, pair.paired) for pair in comparison.pairs] == [("before", "after", True)]
    table = comparison.differences()
    assert len(table) == 12 * len(MEASURES)
    assert table["paired"].all()
    assert table[table["significant"]][["head", "rate"]].to_numpy().tolist() == [["L1H2", "repeat_rate"]]
    assert len(comparison.differences("mean_distance")) == 12
    scores = comparison.differences("attends_self")
    assert len(scores) == 12
    assert scores["p"].notna().all()
    assert comparison.differences("attends_distant")["p"].isna().all()
    assert len(comparison.differences(model="small")) == 0
    with pytest.raises(StudyError, match="unknown rate 'x'"):
        comparison.differences("x")
    with pytest.raises(StudyError, match="no study is called 'x'"):
        comparison.differences(model="x")
    correlations = comparison.correlations.set_index("rate")["correlation"]
    assert correlations["mean_distance"] == pytest.approx(1)
    assert (comparison.correlations["heads"] == 12).all()


def test_the_baseline_can_be_chosen(base_study: Study, small_study: Study) -> None:
    three = [base_study, make_model_study(1), small_study, change_head(base_study, 0, 0)]
    names = ["a", "b", "small", "c"]

    def list_pairs(baseline: str | None) -> list[tuple[str, str]]:
        comparison = headscope.compare(three, names, baseline=baseline, by_head=True)
        return [(pair.baseline, pair.model) for pair in comparison.pairs]

    assert list_pairs(None) == [("a", "b"), ("a", "c")]
    assert list_pairs("c") == [("c", "a"), ("c", "b")]
    assert list_pairs("small") == [("a", "b"), ("a", "c")]
    table = headscope.compare(three, names, baseline="c").differences("repeat_rate", "a").set_index("head")
    first = headscope.compare(three, names).differences("repeat_rate", "c").set_index("head")
    np.testing.assert_allclose(table["difference"], -first["difference"])


def test_heads_of_unrelated_models_are_compared_only_on_request(base_study: Study) -> None:
    tuned, unrelated = change_head(base_study, 0, 0), make_model_study(1)
    three, names = [base_study, unrelated, tuned], ["base", "unrelated", "tuned"]
    comparison = headscope.compare(three, names)
    assert [(pair.baseline, pair.model) for pair in comparison.pairs] == [("base", "tuned")]
    (note,) = comparison.notes
    assert re.fullmatch(
        r"base and unrelated are not compared head by head: within layers, heads of one number are not alike "
        r"\(correlation -?0\.\d\d; 0\.5 is needed\), .* --by-head \(in Python by_head=True\) compares them .*",
        note,
    )
    assert set(comparison.differences()["model"]) == {"tuned"}
    on_request = headscope.compare(three, names, by_head=True)
    assert len(on_request.pairs) == 2
    assert on_request.notes == []
    never = headscope.compare(three, names, by_head=False)
    assert never.pairs == []
    assert len(never.differences()) == 0
    assert "this was asked for" in never.notes[0]


def test_heads_that_changed_places_are_not_those_of_the_same_number(base_study: Study) -> None:
    data = base_study.data.isel(head=[1, 2, 3, 0]).assign_coords(head=base_study.data["head"])
    rotated = Study(data.assign_attrs(weight_hash="f" * 64))
    assert headscope.compare([base_study, rotated]).pairs == []


@pytest.mark.parametrize("changes", [{"model_type": "gpt2"}, {"tokenizer": "Other"}, {"stack": "decoder"}])
def test_heads_of_another_architecture_do_not_correspond(base_study: Study, changes: dict[str, str]) -> None:
    comparison = headscope.compare([base_study, change_head(base_study, 0, 0, **changes)], ["a", "b"])
    assert comparison.pairs == []
    assert any("s differ, " in note and "--by-head" in note for note in comparison.notes)


def test_other_texts_are_not_paired(base_study: Study) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, corpus=1)], by_head=True)
    (pair,) = comparison.pairs
    assert not pair.paired
    assert "quadrature" in pair.how
    rows = comparison.differences("repeat_rate")
    errors = [study.standard_error("repeat_rate").values.ravel() for study in comparison.studies]
    np.testing.assert_allclose(rows["error"], np.hypot(*errors))


def test_alpha_decides_what_is_significant(base_study: Study) -> None:
    after = change_head(base_study, 1, 2, share=0.3)
    p = float(headscope.compare([base_study, after]).differences("repeat_rate")["p_corrected"].min())
    for alpha, expected in ((p * 0.99, 0), (p * 1.01, 1)):
        assert (
            headscope.compare([base_study, after], alpha=alpha).differences("repeat_rate")["significant"].sum()
            == expected
        )


def test_no_two_of_one_shape(base_study: Study, small_study: Study) -> None:
    comparison = headscope.compare([base_study, small_study])
    assert comparison.pairs == []
    assert len(comparison.differences()) == len(comparison.correlations) == len(comparison.changes) == 0
    assert "significant" in comparison.differences().columns


def test_rates_that_cannot_be_measured(base_study: Study) -> None:
    data = make_model_study(1).data.copy(deep=True)
    data["same_sentence_rate"][:] = np.nan
    comparison = headscope.compare([base_study, Study(data)], by_head=True)
    rows = comparison.depth[
        (comparison.depth["model"] == "model-1") & (comparison.depth["rate"] == "same_sentence_rate")
    ]
    assert rows["value"].isna().all()
    assert (rows["heads"] == 0).all()
    assert comparison.differences("same_sentence_rate")["p"].isna().all()
    assert comparison.differences("repeat_rate")["p"].notna().all()
    content = json.loads(format_json(comparison), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [row["p"] for row in content["differences"] if row["rate"] == "same_sentence_rate"] == [None] * 12


# -- files ------------------------------------------------------------------------------------------------------------


def test_json_holds_every_table(comparison: headscope.Comparison) -> None:
    text = format_json(comparison)
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [study["name"] for study in content["studies"]] == comparison.names
    assert content["pairs"] == [{"baseline": "before", "model": "after", "paired": True, "blocks": 20, "missing": ""}]
    for name, table in {
        "findings": comparison.findings,
        "summary": comparison.summary,
        "depth": comparison.depth,
        "head_types": comparison.head_types,
        "differences": comparison.differences(),
        "correlations": comparison.correlations,
        "changes": comparison.changes,
    }.items():
        restored = pd.DataFrame(content[name])
        for column in table.columns:
            if pd.api.types.is_float_dtype(table[column]):
                expected = table[column].replace([np.inf, -np.inf], np.nan)
                np.testing.assert_array_equal(restored[column].astype(float), expected)
            else:
                assert restored[column].tolist() == table[column].tolist(), column
    assert comparison.as_dict() == content


def test_forced_warnings_are_in_the_json(base_study: Study) -> None:
    comparison = headscope.compare([base_study, make_model_study(1, theta=0.5)], force=True)
    content = json.loads(format_json(comparison))
    assert content["forced"] == content["warnings"] == comparison.warnings
    assert "by force" in content["warnings"][0]


def test_saving(comparison: headscope.Comparison, small_study: Study, base_study: Study, tmp_path: Path) -> None:
    written = comparison.save(tmp_path / "compare", formats=["svg"])
    assert sorted(str(path.relative_to(tmp_path / "compare")) for path in written) == [
        "comparison.html",
        "comparison.json",
        "differences.csv",
        "figures/differences.svg",
        "figures/head-types.svg",
        "figures/rates-over-depth.svg",
    ]
    restored = pd.read_csv(tmp_path / "compare" / "differences.csv")
    pd.testing.assert_frame_equal(restored, comparison.differences(), check_dtype=False)
    headscope.compare([base_study, small_study]).save(tmp_path / "compare", formats=[])
    assert not (tmp_path / "compare" / "differences.csv").exists()


def test_what_is_not_ours_is_left_alone(comparison: headscope.Comparison, base_study: Study, tmp_path: Path) -> None:
    (tmp_path / "comparison.html").write_text("my own page")
    for write in (lambda: comparison.save(tmp_path), lambda: comparison.to_html(tmp_path / "comparison.html")):
        with pytest.raises(StudyError, match="no page of headscope"):
            write()
    assert (tmp_path / "comparison.html").read_text() == "my own page"
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.html"]
    folder = tmp_path / "study"
    folder.mkdir()
    base_study.save(folder)
    with pytest.raises(StudyError, match="holds a study"):
        comparison.save(folder)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StudyError, match="cannot write there"):
        comparison.save(tmp_path / "file")
    with pytest.raises(StudyError, match="cannot be written as gif"):
        comparison.save(tmp_path / "new", formats=["gif"])
    assert not (tmp_path / "new").exists()


def test_folders_and_files_can_be_given(base_study: Study, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    base_study.save(tmp_path / "a")
    make_model_study(1).save(tmp_path / "b.nc")
    comparison = headscope.compare([str(tmp_path / "a"), tmp_path / "b.nc"])
    assert comparison.names == ["model-0", "model-1"]
    assert repr(comparison) == "<Comparison of model-0, model-1: 2 studies>"


def test_the_python_of_the_page_runs(base_study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "comparison.md").read_text(encoding="utf-8")
    block, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)  # the other one needs models
    monkeypatch.chdir(tmp_path)
    for name, study in {"before": base_study, "after": change_head(base_study, 0, 1)}.items():
        (tmp_path / name).mkdir()
        study.save(tmp_path / name)
    exec(compile(block, "comparison.md", "exec"), {})  # our own file, not anybody's text
    assert (tmp_path / "tuning" / "comparison.html").stat().st_size > 10_000

"""Comparisons: what is refused and what is said, every table, and the files they are written to."""

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
from headscope.comparison.depth import over_depth, relative_depth
from headscope.comparison.measures import MEASURES, NEAR, OVER_DEPTH
from headscope.comparison.names import names_of, shortened
from headscope.comparison.plain import as_json
from headscope.comparison.verdicts import SHORT, apart, summary_table
from headscope.errors import StudyError
from headscope.readings.reading import Reading
from headscope.studies.characters import CHARACTERS, characters
from headscope.studies.claims import CLAIMS
from headscope.studies.findings import Finding, findings
from headscope.studies.labels import derived
from headscope.studies.result import Study
from tests.compared import changed, model_study


@pytest.fixture(scope="module")
def one() -> Study:
    return model_study(0)


@pytest.fixture(scope="module")
def copied(one: Study, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return headscope.open_study(one.save(tmp_path_factory.mktemp("copied") / "one.nc"))


@pytest.fixture(scope="module")
def small() -> Study:
    """A model of another shape."""
    return model_study(2, layers=4, heads=2)


@pytest.fixture(scope="module")
def made(one: Study, small: Study) -> headscope.Comparison:
    """A model, the same after training, and a smaller one."""
    return headscope.compare([one, changed(one, 1, 2, share=0.3), small], ["before", "after", "small"])


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
def test_other_settings_are_refused_unless_forced(one: Study, setting: str, value: Any, words: str) -> None:
    other = model_study(1, **{setting: value})
    with pytest.raises(StudyError, match=f"{words}.*--{setting}.*--force") as refused:
        headscope.compare([one, other])
    assert "cannot be compared" in str(refused.value)
    forced = headscope.compare([one, other], force=True)
    assert len(forced.forced) == 1
    assert forced.warnings[0] == forced.forced[0]
    assert str(value) in forced.warnings[0]


def test_several_settings_are_named_at_once(one: Study) -> None:
    with pytest.raises(StudyError, match="--length and --theta"):
        headscope.compare([one, model_study(1, length=32, theta=0.4)])


def test_another_tau_changes_nothing_that_is_compared(one: Study) -> None:
    made = headscope.compare([one, model_study(1, tau=0.5)])
    assert made.warnings == []
    assert "0.3 (model-0), 0.5 (model-1)" in "".join(made.notes)
    plain = headscope.compare([one, model_study(1)])
    pd.testing.assert_frame_equal(made.differences(), plain.differences())


@pytest.mark.parametrize(
    ("given", "words"),
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
def test_what_is_no_pair_of_studies(one: Study, copied: Study, given: list[Any], words: str, tmp_path: Path) -> None:
    reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
    meant = {
        "one": one,
        "reading": reading,
        "nowhere": tmp_path / "nowhere",
        "selected": model_study(1).select(layers=[0]),
        "copy": copied,
    }
    with pytest.raises(StudyError, match=words):
        headscope.compare([meant.get(each, each) for each in given])


def test_images_are_compared_with_images_only(one: Study) -> None:
    first, second = (
        Study(derived(model_study(k, texts=30, blocks=6).data.assign_attrs(modality="image"))) for k in (1, 2)
    )
    with pytest.raises(StudyError, match=r"patches are no words\. Of images: model-1"):
        headscope.compare([one, first], force=True)
    made = headscope.compare([first, second])
    wordless = made.depth["rate"].isin(["repeat_rate", "same_sentence_rate"])
    assert made.depth[wordless]["value"].isna().all()
    assert made.depth[~wordless]["value"].notna().all()
    assert made.summary.set_index("number")["holds_for"][8] == "not measurable"


def test_one_study_is_no_list(one: Study) -> None:
    with pytest.raises(StudyError, match="give a list"):
        headscope.compare(one)  # type: ignore[arg-type]


def test_a_saved_reading_is_no_study(one: Study, tmp_path: Path) -> None:
    reading = Reading.from_arrays(["a", "b", "a"], np.eye(3)[None, :, None, :] + 0.5)
    reading.save(tmp_path / "reading.nc")
    with pytest.raises(StudyError, match="a reading of one text, not a study"):
        headscope.compare([one, tmp_path / "reading.nc"])


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
def test_options_that_make_no_sense(one: Study, options: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        headscope.compare([one, model_study(1)], **options)


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpus": 1}, "Other texts .*one name, other content.*cannot be paired"),
        ({"complete": 0, "stopped_by": "the disk is full"}, "model-1 is incomplete.*80 texts.*the disk is full"),
        ({"texts": 20, "corpus_hash": f"{0:032x}"}, "Very different numbers of texts \\(model-0 80, model-1 20\\)"),
        ({"dtype": "bfloat16"}, "Other numeric types: float32 \\(model-0\\), bfloat16 \\(model-1\\)"),
        ({"headscope": "9.9"}, "other versions of headscope: 0 \\(model-0\\), 9.9 \\(model-1\\)"),
        ({"format": 2}, "other formats: 1 \\(model-0\\), 2 \\(model-1\\)"),
        ({"min_tokens": 5}, "shortest texts .*2 \\(model-0\\), 5 \\(model-1\\)"),
    ],
)
def test_warnings(one: Study, changes: dict[str, Any], words: str) -> None:
    made = headscope.compare([one, model_study(1, **changes)])
    assert len(made.warnings) == 1
    assert made.forced == []
    assert re.search(words, made.warnings[0])


def test_nothing_to_warn_of(one: Study) -> None:
    made = headscope.compare([one, model_study(1)])
    assert made.warnings == made.notes == []


def test_one_text_has_no_error(one: Study) -> None:
    made = headscope.compare([one, model_study(1, texts=1, corpus=3)])
    assert any("no number of it has a standard error" in warning for warning in made.warnings)
    assert made.differences()["p"].isna().all()
    assert not made.differences()["significant"].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"causal": 1}, "model-1: only what came before; model-0: the whole window"),
        ({"tokenizer": "Other"}, "Other tokenizers \\(Tokenizer \\(model-0\\), Other \\(model-1\\)\\).*another span"),
        ({"corpus": 1, "corpus_hash": f"{0:032x}"}, "model-1 cut the same texts into other tokens than model-0"),
        ({"weight_hash": f"{0:064x}"}, "model-0 and model-1 are the very same model"),
        ({"stack": "cross"}, "model-1 looks from one text at another"),
    ],
)
def test_notes(one: Study, changes: dict[str, Any], words: str) -> None:
    made = headscope.compare([one, model_study(1, **changes)])
    assert made.warnings == []
    assert re.search(words, " ".join(made.notes))


def test_stacks_of_one_model_stand_in_its_names() -> None:
    both = [model_study(k, stack=stack, model="t5", weight_hash="a") for k, stack in enumerate(("encoder", "decoder"))]
    made = headscope.compare(both)
    assert made.names == ["t5 encoder", "t5 decoder"]
    assert any("Stacks of one model (encoder (t5 encoder), decoder (t5 decoder))" in note for note in made.notes)
    assert not any("very same model" in note for note in made.notes)


def test_names() -> None:
    assert shortened(["bert", "x/bert"]) == ["bert", "x/bert"]
    assert shortened(["a/b/best", "a/c/best", "d"]) == ["b/best", "c/best", "d"]
    assert shortened(["C:\\models\\bert\\", "/models/gpt 2"]) == ["bert", "gpt 2"]
    assert shortened(["/", "<b>/</b>"]) == ["/", "<b>/</b>"]
    studies = [model_study(0, model="m", texts=4), model_study(1, model="m", texts=4, dtype="float16")]
    assert names_of(studies) == ["m float32", "m float16"]
    assert names_of([studies[0], model_study(1, model="m", texts=4)]) == ["m (1)", "m (2)"]
    assert names_of(studies, ["a", " b "]) == ["a", "b"]


# -- findings ---------------------------------------------------------------------------------------------------------


def test_findings_side_by_side(made: headscope.Comparison, one: Study) -> None:
    table = made.findings
    assert len(table) == 12 * 3
    assert table["number"].tolist() == [number for number in range(1, 13) for _ in range(3)]
    assert table["model"].tolist() == ["before", "after", "small"] * 12
    alone = findings(one)
    mine = table[table["model"] == "before"]
    assert mine["verdict"].tolist() == [finding.verdict for finding in alone]
    assert mine["measured"].tolist() == [finding.measured for finding in alone]
    np.testing.assert_allclose(mine["value"].astype(float), [math.nan if f.value is None else f.value for f in alone])
    for row in made.summary.to_dict("records"):
        verdicts = {kind: row[kind] for kind in ("holds", "does_not_hold", "cannot_be_measured")}
        assert sorted(name for names in verdicts.values() for name in names) == ["after", "before", "small"]
    assert set(SHORT) == {claim.number for claim in CLAIMS}


def finding(verdict: str, value: float | None, error: float | None = None, unit: str = "%") -> Finding:
    return Finding(1, "A claim", "paper", "measured", verdict, "criterion", value, error, unit)  # type: ignore[arg-type]


def test_summary_worked_by_hand() -> None:
    found = {
        "a": [finding("holds", 0.5, 0.03)],
        "b": [finding("does not hold", 0.2, 0.04)],
        "c": [finding("cannot be measured", None)],
    }
    (row,) = summary_table(found).to_dict("records")
    assert row["holds_for"] == "some"
    assert (row["holds"], row["does_not_hold"], row["cannot_be_measured"]) == (["a"], ["b"], ["c"])
    # 0.3 / √(0.03² + 0.04²) = 6
    assert row["differs"] == "from 20.0 ± 4.0 % (b) to 50.0 ± 3.0 % (a), 6.0 standard errors apart"


def test_words_for_what_differs() -> None:
    assert apart({"a": finding("holds", None), "b": finding("holds", math.nan)}) == "no number"
    assert apart({"a": finding("holds", None), "b": finding("holds", 0.1)}) == "one number only"
    assert apart({"a": finding("holds", 0.1), "b": finding("holds", 0.1)}) == "no difference: 10.0 % for both"
    assert apart({"a": finding("holds", 0.1), "b": finding("holds", 0.3)}) == "from 10.0 % (a) to 30.0 % (b)"
    of = {"a": finding("holds", 3.0, None, "of 9"), "b": finding("holds", 4.0, None, "of 12")}
    assert apart(of) == "3.00 of 9 (a), 4.00 of 12 (b)"


# -- depth ------------------------------------------------------------------------------------------------------------


def test_relative_depth() -> None:
    study = model_study(0, texts=4)
    np.testing.assert_allclose(relative_depth(study), [0, 0.5, 1])
    hybrid = Study(study.data.assign_coords(layer=[3, 7, 11]))
    np.testing.assert_allclose(relative_depth(hybrid), [3 / 11, 7 / 11, 1])
    np.testing.assert_allclose(relative_depth(Study(hybrid.data.assign_attrs(depth=12))), [3 / 11, 7 / 11, 1])
    np.testing.assert_allclose(relative_depth(Study(hybrid.data.assign_attrs(depth=16))), [3 / 15, 7 / 15, 11 / 15])
    assert relative_depth(model_study(0, texts=4, layers=1)).tolist() == [0]


def test_rates_over_depth(made: headscope.Comparison, one: Study) -> None:
    table = made.depth
    assert table["rate"].unique().tolist() == list(OVER_DEPTH)
    assert len(table) == (3 + 3 + 4) * len(OVER_DEPTH)
    mine = table[table["model"] == "before"].set_index(["rate", "layer"])
    for name in OVER_DEPTH:
        if name == NEAR:
            continue
        over = name == "mean_distance"

        def against(study: Study, name: str = name, over: bool = over) -> Any:
            rate, chance = study.rate(name), study.chance(name)
            return ((rate / chance) if over else (rate - chance)).mean("head")

        value, error = one.jackknife(lambda study, name=name: study.rate(name).mean("head"))
        relative, relative_error = one.jackknife(against)
        rows = mine.loc[name]
        np.testing.assert_allclose(rows["value"], value)
        np.testing.assert_allclose(rows["error"], error)
        np.testing.assert_allclose(rows["against_chance"], relative)
        np.testing.assert_allclose(rows["against_chance_error"], relative_error)
    assert mine["depth"].unique().tolist() == [0, 0.5, 1]
    assert table[table["model"] == "small"]["depth"].max() == 1


def test_heads_without_pairs_are_left_out_of_the_mean(one: Study) -> None:
    data = one.data.copy(deep=True)
    for name in ("pairs", "equal", "same", "distance_sum"):
        data[f"{name}_blocks"].loc[{"layer": 1, "head": [0, 1]}] = 0
    table = over_depth(["x"], [Study(data)]).set_index(["rate", "layer"])
    assert table.loc[("repeat_rate", 1), "heads"] == 2
    assert table.loc[("repeat_rate", 1), "value"] == pytest.approx(float(one.rate("repeat_rate")[1, 2:].mean()))


# -- characters -------------------------------------------------------------------------------------------------------


def test_characters_are_counted(made: headscope.Comparison, one: Study) -> None:
    table = made.characters
    assert len(table) == 3 * len(CHARACTERS)
    sizes = table.groupby("model")["heads"].sum()
    assert sizes.to_dict() == {"before": 12, "after": 12, "small": 8}
    assert table.groupby("model")["share"].sum().tolist() == pytest.approx([1, 1, 1])
    counted = characters(one)["character"].value_counts()
    mine = table[table["model"] == "before"].set_index("character")["heads"]
    assert {name: number for name, number in mine.items() if number} == counted.to_dict()


def test_heads_that_change_character(made: headscope.Comparison) -> None:
    changes = made.changes
    assert len(changes) == 12
    assert changes[changes["changed"]]["name"].tolist() == ["L1H2"]
    row = changes.set_index("name").loc["L1H2"]
    assert row["after"] == "repeat-token" != row["before"]


# -- head by head -----------------------------------------------------------------------------------------------------


def test_differences_of_one_shape(made: headscope.Comparison) -> None:
    assert [(pair.one, pair.other, pair.paired) for pair in made.pairs] == [("before", "after", True)]
    table = made.differences()
    assert len(table) == 12 * len(MEASURES)
    assert table["paired"].all()
    assert table[table["significant"]][["name", "rate"]].to_numpy().tolist() == [["L1H2", "repeat_rate"]]
    assert len(made.differences("mean_distance")) == 12
    assert len(made.differences(model="small")) == 0
    with pytest.raises(StudyError, match="unknown rate 'x'"):
        made.differences("x")
    with pytest.raises(StudyError, match="no study is called 'x'"):
        made.differences(model="x")
    alike = made.correlations.set_index("rate")["correlation"]
    assert alike["mean_distance"] == pytest.approx(1)
    assert (made.correlations["heads"] == 12).all()


def test_the_baseline_can_be_chosen(one: Study, small: Study) -> None:
    three = [one, model_study(1), small, changed(one, 0, 0)]
    names = ["a", "b", "small", "c"]

    def pairs(baseline: str | None) -> list[tuple[str, str]]:
        return [(pair.one, pair.other) for pair in headscope.compare(three, names, baseline=baseline).pairs]

    assert pairs(None) == [("a", "b"), ("a", "c")]
    assert pairs("c") == [("c", "a"), ("c", "b")]
    assert pairs("small") == [("a", "b"), ("a", "c")]
    table = headscope.compare(three, names, baseline="c").differences("repeat_rate", "a").set_index("name")
    first = headscope.compare(three, names).differences("repeat_rate", "c").set_index("name")
    np.testing.assert_allclose(table["difference"], -first["difference"])


def test_other_texts_are_not_paired(one: Study) -> None:
    made = headscope.compare([one, model_study(1, corpus=1)])
    (pair,) = made.pairs
    assert not pair.paired
    assert "quadrature" in pair.how
    rows = made.differences("repeat_rate")
    errors = [study.standard_error("repeat_rate").values.ravel() for study in made.studies]
    np.testing.assert_allclose(rows["error"], np.hypot(*errors))


def test_alpha_decides_what_is_significant(one: Study) -> None:
    after = changed(one, 1, 2, share=0.3)
    p = float(headscope.compare([one, after]).differences("repeat_rate")["p_corrected"].min())
    for alpha, found in ((p * 0.99, 0), (p * 1.01, 1)):
        assert headscope.compare([one, after], alpha=alpha).differences("repeat_rate")["significant"].sum() == found


def test_no_two_of_one_shape(one: Study, small: Study) -> None:
    made = headscope.compare([one, small])
    assert made.pairs == []
    assert len(made.differences()) == len(made.correlations) == len(made.changes) == 0
    assert "significant" in made.differences().columns


def test_rates_that_cannot_be_measured(one: Study) -> None:
    data = model_study(1).data.copy(deep=True)
    data["same_sentence_rate"][:] = np.nan
    made = headscope.compare([one, Study(data)])
    rows = made.depth[(made.depth["model"] == "model-1") & (made.depth["rate"] == "same_sentence_rate")]
    assert rows["value"].isna().all()
    assert (rows["heads"] == 0).all()
    assert made.differences("same_sentence_rate")["p"].isna().all()
    assert made.differences("repeat_rate")["p"].notna().all()
    held = json.loads(as_json(made), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [row["p"] for row in held["differences"] if row["rate"] == "same_sentence_rate"] == [None] * 12


# -- files ------------------------------------------------------------------------------------------------------------


def test_json_holds_every_table(made: headscope.Comparison) -> None:
    text = as_json(made)
    held = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [study["name"] for study in held["studies"]] == made.names
    assert held["pairs"] == [{"one": "before", "other": "after", "paired": True, "blocks": 20}]
    for name, table in {
        "findings": made.findings,
        "summary": made.summary,
        "depth": made.depth,
        "characters": made.characters,
        "differences": made.differences(),
        "correlations": made.correlations,
        "changes": made.changes,
    }.items():
        again = pd.DataFrame(held[name])
        for column in table.columns:
            if pd.api.types.is_float_dtype(table[column]):
                expected = table[column].replace([np.inf, -np.inf], np.nan)
                np.testing.assert_array_equal(again[column].astype(float), expected)
            else:
                assert again[column].tolist() == table[column].tolist(), column
    assert made.as_dict() == held


def test_forced_warnings_are_in_the_json(one: Study) -> None:
    made = headscope.compare([one, model_study(1, theta=0.5)], force=True)
    held = json.loads(as_json(made))
    assert held["forced"] == held["warnings"] == made.warnings
    assert "by force" in held["warnings"][0]


def test_saving(made: headscope.Comparison, small: Study, one: Study, tmp_path: Path) -> None:
    written = made.save(tmp_path / "compare", formats=["svg"])
    assert sorted(str(path.relative_to(tmp_path / "compare")) for path in written) == [
        "comparison.html",
        "comparison.json",
        "differences.csv",
        "figures/characters.svg",
        "figures/differences.svg",
        "figures/rates-over-depth.svg",
    ]
    again = pd.read_csv(tmp_path / "compare" / "differences.csv")
    pd.testing.assert_frame_equal(again, made.differences(), check_dtype=False)
    headscope.compare([one, small]).save(tmp_path / "compare", formats=[])
    assert not (tmp_path / "compare" / "differences.csv").exists()


def test_what_is_not_ours_is_left_alone(made: headscope.Comparison, one: Study, tmp_path: Path) -> None:
    (tmp_path / "comparison.html").write_text("my own page")
    for write in (lambda: made.save(tmp_path), lambda: made.page(tmp_path / "comparison.html")):
        with pytest.raises(StudyError, match="no page of headscope"):
            write()
    assert (tmp_path / "comparison.html").read_text() == "my own page"
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.html"]
    folder = tmp_path / "study"
    folder.mkdir()
    one.save(folder)
    with pytest.raises(StudyError, match="holds a study"):
        made.save(folder)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StudyError, match="cannot write there"):
        made.save(tmp_path / "file")
    with pytest.raises(StudyError, match="cannot be written as gif"):
        made.save(tmp_path / "new", formats=["gif"])
    assert not (tmp_path / "new").exists()


def test_folders_and_files_can_be_given(one: Study, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one.save(tmp_path / "a")
    model_study(1).save(tmp_path / "b.nc")
    made = headscope.compare([str(tmp_path / "a"), tmp_path / "b.nc"])
    assert made.names == ["model-0", "model-1"]
    assert repr(made) == "<Comparison of model-0, model-1: 2 studies>"


def test_the_python_of_the_page_runs(one: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent / "docs" / "comparison.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name, study in {"before": one, "after": changed(one, 0, 1)}.items():
        (tmp_path / name).mkdir()
        study.save(tmp_path / name)
    exec(compile(block, "comparison.md", "exec"), {})  # our own file, not anybody's text
    assert (tmp_path / "tuning" / "comparison.html").stat().st_size > 10_000

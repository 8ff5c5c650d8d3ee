"""Test merging: studies of different texts become one, and no text counts twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headscope
from headscope.model.model import Model
from headscope.studies.result import open_study
from tests.helpers import tiny
from tests.helpers.interrupting import OPTIONS, assert_equal, files, save_tiny_model, stop_after

SETTINGS = {**OPTIONS, "sample": 0.5}


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


def study(model: Model, *paths: Path) -> headscope.Study:
    return headscope.study(model, headscope.documents(paths), **SETTINGS)


@pytest.mark.usefixtures("small_chunks")  # no batch has texts of two files, so that batches are the same
def test_files_studied_apart_are_the_corpus_studied_whole(model: Model, tmp_path: Path):
    first, second, third = files(tmp_path, [20, 25, 15])
    expected = study(model, first, second, third)
    merged = study(model, first).merge(study(model, second)).merge(study(model, third))
    for name in ("pairs", "equal", "same", "texts", "most_attended", "location", "window_tokens"):
        assert (merged.data[name].values == expected.data[name].values).all(), name
    assert merged.manifest["corpus_hash"] == expected.manifest["corpus_hash"]
    assert merged.manifest["documents_read"] == 60
    assert merged.data["source"].values.tolist() == [str(first), str(second), str(third)]
    assert merged.data["source_documents"].values.tolist() == [20, 25, 15]
    assert merged.data["source_hash"].values.tolist() == expected.data["source_hash"].values.tolist()


def test_a_file_in_both_is_refused_whatever_its_name(model: Model, tmp_path: Path):
    first, second, third = files(tmp_path, [20, 25, 15])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(second.read_bytes())
    left, right = study(model, first, second), study(model, copy, third)
    with pytest.raises(headscope.StudyError, match=r"01\.jsonl here are those of .*copy\.jsonl there.*count twice"):
        left.merge(right)
    assert left.merge(study(model, third)).texts == left.texts + study(model, third).texts


def test_a_part_of_a_file_is_refused_although_a_copy_of_the_file_was_studied_too(model: Model, tmp_path: Path):
    (path,) = files(tmp_path, [20])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    part = headscope.study(model, headscope.documents(path, limit=5), **SETTINGS)
    with pytest.raises(headscope.StudyError, match=r"00\.jsonl is in both, one of them was made with --limit 5"):
        study(model, path, copy).merge(part)


def test_stacks_of_one_model_are_not_merged(tmp_path: Path):
    first, second = files(tmp_path, [20, 25])
    bart = tiny.model("bart")
    encoder = study(bart.on("encoder"), first)
    decoder = headscope.study(bart.on("decoder"), headscope.documents(second, target="text"), **SETTINGS)
    with pytest.raises(headscope.StudyError, match="differ in stack: encoder here, decoder there"):
        encoder.merge(decoder)


@pytest.mark.usefixtures("small_chunks")
def test_an_incomplete_study_is_not_merged_with_one_of_the_same_file(model: Model, tmp_path: Path):
    first, second = files(tmp_path, [40, 20])
    with pytest.raises(headscope.Stopped) as caught:
        headscope.study(model, headscope.documents(first), progress=stop_after(4), **SETTINGS)
    part = caught.value.study
    assert part is not None
    with pytest.raises(headscope.StudyError, match=r"00\.jsonl is in both, one of them is incomplete"):
        part.merge(study(model, first))
    assert not part.merge(study(model, second)).manifest["complete"]


def test_the_command(headscope_command, one_figure, model: Model, tmp_path: Path):
    first, second, third = files(tmp_path / "in", [20, 25, 15])
    for name, path in (("a", first), ("b", second), ("c", third)):
        (tmp_path / name).mkdir()
        study(model, path).save(tmp_path / name)
    ran = headscope_command("merge", "a", "b", "c", "--out", "all", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)
    merged = open_study(tmp_path / "all")
    assert_equal(merged, study(model, first).merge(study(model, second)).merge(study(model, third)))
    assert (tmp_path / "all" / "report.html").exists()
    for arguments, message in (
        (("all", "b"), "b: these studies cannot be merged"),
        (("a",), "two studies at least"),
        (("a", "absent"), "absent: no study there"),
    ):
        ran = headscope_command("merge", *arguments, "--out", "other")
        assert ran.code == 1
        assert message in ran.err
        assert "Traceback" not in ran.err
    ran = headscope_command("merge", "a", "b", "--out", "all")
    assert ran.code == 1
    assert "all holds a study already" in ran.err


def test_what_was_trusted_is_said(model: Model, tmp_path: Path, headscope_command, one_figure):
    save_tiny_model(tmp_path / "model")
    (texts,) = files(tmp_path / "in", [5])
    plain = ("study", str(texts), "--model", str(tmp_path / "model"), "--length", "24", "--quiet")
    assert headscope_command(*plain, "--out", "plain").code == 0
    assert open_study(tmp_path / "plain").manifest["trusted"] == "nothing"
    ran = headscope_command(*plain, "--out", "trusting", "--trust-remote-code", "--allow-pickle")
    assert ran.code == 0, ran.err
    trusted = "code that comes with the model, pickled weights"
    assert open_study(tmp_path / "trusting").manifest["trusted"] == trusted
    page = (tmp_path / "trusting" / "report.html").read_text("utf-8")
    assert "Trusted on request" in page
    assert trusted in page


def test_broken_documents_are_skipped_and_counted_on_request(
    tmp_path: Path, headscope_command, one_figure, model: Model
):
    save_tiny_model(tmp_path / "model")
    (texts,) = files(tmp_path / "in", [6])
    lines = texts.read_text("utf-8").splitlines(keepends=True)
    texts.write_text("".join([*lines[:3], "no JSON\n", '{"body": 1}\n', *lines[3:]]), "utf-8")
    command = ("study", str(texts), "--model", str(tmp_path / "model"), "--length", "24", "--quiet", "--out", "out")
    ran = headscope_command(*command)
    assert ran.code == 1
    assert "00.jsonl:4: not a JSON object" in ran.err
    ran = headscope_command(*command, "--skip-broken")
    assert ran.code == 0, ran.err
    manifest = open_study(tmp_path / "out").manifest
    assert manifest["skip_broken"] == 1
    assert manifest["documents_read"] == 8
    assert manifest["documents_skipped"]["not JSON"] == 1
    assert manifest["documents_skipped"]["no text in its field"] == 1

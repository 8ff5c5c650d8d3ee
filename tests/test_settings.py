"""The table of manifest entries: it is complete, and resume, repeat, merge and compare do as it says."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope import output_folder
from headscope.cli.study import run_study
from headscope.comparison.compare import collect_notes, collect_warnings
from headscope.errors import Changed, StudyError
from headscope.model.model import Model
from headscope.run.checkpoint import pack_checkpoint, parse_checkpoint
from headscope.settings import MANIFEST, ManifestEntry, Settings, Use, list_matching
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from tests.helpers import tiny
from tests.helpers.comparison_studies import make_model_study
from tests.helpers.interrupting import OPTIONS, files, save_tiny_model

EXAMPLES = {"text": ("this", "that"), "number": (16, 17), "yes or no": (0, 1)}
"""Two values of each kind of entry."""
CHOSEN_EXAMPLES = {
    "weight_hash": ("a" * 64, "b" * 64),
    "modality": ("text", "image"),
    "stack": ("decoder", "cross"),
    "complete": (1, 0),
}


def list_entries(use: Use) -> list[Any]:
    return [pytest.param(entry, id=entry.name) for entry in MANIFEST if use in entry.must_match]


def get_examples(entry: ManifestEntry) -> tuple[Any, Any]:
    return CHOSEN_EXAMPLES[entry.name] if entry.name in CHOSEN_EXAMPLES else EXAMPLES[entry.kind]


def make_differing_studies(
    entry: ManifestEntry, corpora: tuple[int, int] = (1, 2), shares: tuple[str, str] = ("all", "all")
) -> list[Study]:
    """Return two studies by one model whose manifests differ in this entry."""
    common = {"model": "m", "weight_hash": "a" * 64}
    return [
        Study(make_model_study(0, 6, corpus=corpus).data.assign_attrs(common | {"share": share, entry.name: value}))
        for corpus, share, value in zip(corpora, shares, get_examples(entry), strict=True)
    ]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("bert")


# -- the table is complete --------------------------------------------------------------------------------------------


def test_every_entry_of_a_manifest_is_in_the_table(model: Model):
    study = headscope.study(model, ["the cat sat on a mat."], **OPTIONS)
    assert sorted(study.manifest) == sorted(entry.name for entry in MANIFEST)


def test_every_setting_is_in_the_table_and_an_option():
    names = [field.name for field in fields(Settings)]
    assert set(names) <= {entry.name for entry in MANIFEST}
    assert set(names) <= inspect.signature(run_study).parameters.keys()


# -- what must match --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unfinished_run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a corpus, and the folder of the checkpoints of its study."""
    folder = tmp_path_factory.mktemp("unfinished")
    (corpus,) = files(folder / "in", [5])
    headscope.study(model, headscope.documents(corpus), checkpoint_dir=folder / "out", **OPTIONS)
    return corpus, folder / "out"


@pytest.mark.parametrize("entry", list_entries("resume"))
def test_another_value_is_not_resumed(model: Model, unfinished_run: tuple[Path, Path], entry: ManifestEntry):
    corpus, folder = unfinished_run
    content = (folder / "last").read_bytes()
    saved = parse_checkpoint(content)
    state = saved.load_state(
        Shape(model.architecture.layers, model.architecture.heads, OPTIONS["length"], width=model.architecture.width)
    )
    value = saved.header["identity"][entry.name]
    identity = {**saved.header["identity"], entry.name: "another value"}
    try:
        (folder / "last").write_bytes(b"".join(pack_checkpoint(identity, saved.chunk_size, state)))
        expected = re.escape(f"What changed: {entry.name} (another value before, {value} now).")
        with pytest.raises(Changed, match=expected):
            headscope.study(model, headscope.documents(corpus), checkpoint_dir=folder, **OPTIONS)
    finally:
        (folder / "last").write_bytes(content)


def test_other_values_are_not_taken_for_the_same_command(
    headscope_command, one_figure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    save_tiny_model(tmp_path / "model")
    (texts,) = files(tmp_path / "in", [5])
    command = ("study", str(texts), "--model", "model", "--length", "24", "--quiet", "--kernel", "torch")
    command = (*command, "--no-tf32", "--out", "out")
    assert headscope_command(*command).code == 0
    open_previous = output_folder.open_previous

    def change_everything(folder: Path) -> Study:
        study = open_previous(folder)
        assert study is not None
        return Study(study.data.assign_attrs(dict.fromkeys(list_matching("repeat"), "another value")))

    monkeypatch.setattr(output_folder, "open_previous", change_everything)
    result = headscope_command(*command)
    assert result.code == 1
    for name in list_matching("repeat"):
        assert f"{name} (another value there, " in result.err


@pytest.mark.parametrize("entry", list_entries("merge"))
def test_studies_with_other_values_are_not_merged(entry: ManifestEntry):
    first, second = make_differing_studies(entry)
    here, there = get_examples(entry)
    expected = f"these studies cannot be merged; they differ in {entry.name}: {here} here, {there} there"
    with pytest.raises(StudyError, match=f"^{expected}$"):
        first.merge(second)


@pytest.mark.parametrize("entry", list_entries("join shares"))
def test_shares_with_other_values_are_not_merged(entry: ManifestEntry):
    first, second = make_differing_studies(entry, shares=("1/2", "2/2"))
    here, there = get_examples(entry)
    expected = f"not of the same corpus cut in the same way: {entry.name}: {here} here, {there} there"
    with pytest.raises(StudyError, match=expected):
        first.merge(second)


@pytest.mark.parametrize("entry", list_entries("compare"))
def test_studies_with_other_values_are_not_compared(entry: ManifestEntry):
    first, second = make_differing_studies(entry)
    with pytest.raises(StudyError, match="cannot be compared") as refused:
        headscope.compare([first, second], ["a", "b"])
    for value in get_examples(entry):
        assert str(value) in str(refused.value)


# -- what is only said, and what is free ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=entry.name)
        for entry in MANIFEST
        if entry.kind != "JSON" and "compare" not in entry.must_match
    ],
)
def test_a_comparison_tells_of_a_difference_where_the_table_says_so(entry: ManifestEntry):
    first, second = make_differing_studies(entry, corpora=(1, 1))
    same = Study(second.data.assign_attrs({entry.name: first.manifest[entry.name]}))
    without, told = (
        {*collect_warnings(studies), *collect_notes(studies)}
        for studies in ([("a", first), ("b", same)], [("a", first), ("b", second)])
    )
    assert bool(told - without) == ("compare" in entry.warns)

"""A model whose captured heads cannot be verified is refused; on request it is measured, and every output says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

import headscope
from headscope import output_folder
from headscope.errors import ModelError, StudyError
from headscope.figures import draw
from headscope.model.model import Model
from headscope.settings import list_matching
from tests.helpers import tiny
from tests.helpers.families import COMMON

TEXTS = ["the cat sat. the dog, a cat, ran!", "a b c. d e f, g h.", "owl the owl. owl, the owl."]
NYSTROMFORMER = {**COMMON, "num_landmarks": 24, "segment_means_seq_len": 24, "conv_kernel_size": 3}
REASON = "something else is added to its heads' outputs before the output projection"
MARK = "nverified capture"


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model("nystromformer", **NYSTROMFORMER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unverified") / "model"
    tiny.network("nystromformer", **NYSTROMFORMER).save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def study(model: Model) -> headscope.Study:
    return headscope.study(model, TEXTS, length=16, allow_unverified=True)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "study": lambda model, **options: headscope.study(model, TEXTS, length=16, **options),
    "read": lambda model, **options: headscope.read(model, TEXTS[0], length=16, **options),
    "segment": lambda model, **options: headscope.segment(model, TEXTS[0], length=16, level="fine", **options),
    "ablate": lambda model, **options: headscope.ablate(model, TEXTS, length=16, heads="L0H1", **options),
    "prune": lambda model, **options: headscope.prune(model, "L0H1", how="mask", **options),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_is_refused_with_the_reason(function: str, model: Model) -> None:
    with pytest.raises(
        ModelError, match=rf"{REASON}\. --allow-unverified \(in Python allow_unverified=True\)"
    ) as refused:
        FUNCTIONS[function](model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("function", ["study", "read", "segment"])
def test_it_is_measured_on_request_and_marked(function: str, model: Model) -> None:
    result = FUNCTIONS[function](model, allow_unverified=True)
    assert (result.manifest["verified"], REASON in result.manifest["verified_note"]) == (0, True)


@pytest.mark.parametrize("function", ["ablate", "prune"])
def test_heads_that_enter_no_known_projection_cannot_be_silenced(function: str, model: Model) -> None:
    with pytest.raises(ModelError, match=r"cannot be (silenced|taken out)"):
        FUNCTIONS[function](model, allow_unverified=True)


@pytest.fixture
def model_of_other_maps(monkeypatch: pytest.MonkeyPatch) -> Model:
    """Return a model whose outputs enter its projections, and whose maps are not those that give them."""
    from transformers.models.bert import modeling_bert

    eager = modeling_bert.eager_attention_forward

    def report_other_map(*args: Any, **options: Any) -> Any:
        output, maps = eager(*args, **options)
        return output, maps.flip(-1)

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", report_other_map)
    return tiny.model("bert")


def test_ablations_and_pruned_models_are_marked(model_of_other_maps: Model, tmp_path: Path) -> None:
    for function in ("ablate", "prune"):
        with pytest.raises(ModelError, match="its maps multiplied with its values do not give its heads' outputs"):
            FUNCTIONS[function](model_of_other_maps)
    ablation = FUNCTIONS["ablate"](model_of_other_maps, allow_unverified=True)
    assert MARK in repr(ablation)
    assert set(ablation.table()["capture"]) == {"unverified"}
    assert headscope.open_ablation(ablation.save(tmp_path)).manifest["verified"] == 0
    manifest = FUNCTIONS["prune"](model_of_other_maps, allow_unverified=True).save(tmp_path / "pruned")
    assert (manifest["verified"], "maps" in manifest["verified_note"]) == (0, True)


def test_a_verified_model_has_no_mark() -> None:
    study = headscope.study(tiny.model("bert"), TEXTS, length=16)
    assert (study.manifest["verified"], study.manifest["verified_note"]) == (1, "")
    assert MARK not in repr(study)
    assert "capture" not in study.heads().columns
    reading = headscope.read(tiny.model("bert"), TEXTS[0], length=16)
    assert "capture" not in {*reading.pairs().columns, *reading.dominant().columns}
    assert not [text for text in draw(study, "7").findobj(Text) if MARK in text.get_text()]  # type: ignore[attr-defined]


class TestMarks:
    def test_in_python_and_notebooks(self, study: headscope.Study, model: Model) -> None:
        reading = FUNCTIONS["read"](model, allow_unverified=True)
        assert MARK in repr(study)
        assert MARK in study._repr_html_()
        assert MARK in repr(reading)
        assert MARK in reading.to_html()
        for table in (reading.pairs(), reading.pairs(0, 1), reading.pairs(explain=True), reading.dominant()):
            assert table.columns[-1] == "capture"
            assert set(table["capture"]) == {"unverified"}
        assert set(study.heads()["capture"]) == {"unverified"}

    @pytest.mark.usefixtures("one_figure")
    def test_in_every_file_of_a_study(self, study: headscope.Study, tmp_path: Path) -> None:
        output_folder.write_study(study, tmp_path)
        opened = headscope.open_study(tmp_path)
        assert (opened.manifest["verified"], REASON in opened.manifest["verified_note"]) == (0, True)
        assert json.loads((tmp_path / "findings.json").read_text("utf-8"))["manifest"]["verified"] == 0
        assert f"**u{MARK}" in (tmp_path / "findings.md").read_text("utf-8")
        assert ",unverified\n" in (tmp_path / "heads.csv").read_text("utf-8")
        page = (tmp_path / "report.html").read_text("utf-8")
        assert "<strong>Unverified capture: numbers could be wrong.</strong>" in page
        assert page.count(f"U{MARK}, numbers could be wrong: layer 0: ") >= 1  # the caption of each figure

    def test_in_figures(self, study: headscope.Study, model: Model) -> None:
        for figure in (draw(study, "7"), draw(FUNCTIONS["read"](model, allow_unverified=True), "12")):
            assert [text for text in figure.findobj(Text) if MARK in text.get_text()]  # type: ignore[attr-defined]

    def test_on_the_page_of_a_segmentation(self, model: Model) -> None:
        assert f"U{MARK}: numbers could be wrong." in FUNCTIONS["segment"](model, allow_unverified=True).to_html()


class TestUses:
    def test_runs_are_neither_resumed_nor_merged_with_verified_ones(self, study: headscope.Study) -> None:
        for use in ("resume", "repeat", "merge"):
            assert "verified" in list_matching(use)  # type: ignore[arg-type]
        other = headscope.Study(study.data.assign_attrs(verified=1))
        with pytest.raises(StudyError, match="verified"):
            study.merge(other)

    def test_a_comparison_warns(self, study: headscope.Study) -> None:
        verified = headscope.study(tiny.model("bert"), TEXTS, length=16)
        assert any("erified" in warning for warning in headscope.compare([study, verified]).warnings)


class TestCommands:
    @pytest.mark.parametrize("command", ["study", "read", "segment", "ablate", "prune"])
    def test_each_command_refuses(self, headscope_command: Any, command: str, folder: Path, tmp_path: Path) -> None:
        text = tmp_path / "text.txt"
        text.write_text(TEXTS[0])
        arguments = ["--heads", "L0H1"] if command == "prune" else [str(text)]
        result = headscope_command(
            command, *arguments, "--model", str(folder), "--length", "16", "--output", str(tmp_path / "out.html")
        )
        assert result.code == 1
        assert REASON in result.err
        assert "--allow-unverified" in result.err
        assert "Traceback" not in result.err

    @pytest.mark.usefixtures("one_figure")
    def test_a_study_on_request_says_so_in_the_terminal(
        self, headscope_command: Any, folder: Path, tmp_path: Path
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text(TEXTS[0])
        arguments = [str(text), "--model", str(folder), "--length", "16", "--output", str(tmp_path / "out")]
        result = headscope_command("study", *arguments, "--allow-unverified")
        assert result.code == 0
        assert "unverified capture, numbers could be wrong" in result.err
        assert "Unverified capture" in result.out
        # The finished study of this folder is no way around the refusal.
        assert headscope_command("study", *arguments).code == 1

    def test_a_reading_on_request_says_so_in_the_terminal(
        self, headscope_command: Any, folder: Path, tmp_path: Path
    ) -> None:
        result = headscope_command(
            "read", TEXTS[0], "--model", str(folder), "--length", "16", "--output", str(tmp_path / "page.html"),
            "--allow-unverified", "--pairs", str(tmp_path / "pairs.csv"),
        )  # fmt: skip
        assert result.code == 0
        assert "unverified capture, numbers could be wrong" in result.err
        assert MARK in (tmp_path / "page.html").read_text("utf-8")
        header, *rows = (tmp_path / "pairs.csv").read_text("utf-8").splitlines()
        assert header.endswith(",capture")
        assert rows
        assert all(row.endswith(",unverified") for row in rows)

    def test_a_segmentation_on_request_says_so_beside_the_text_and_in_json(
        self, headscope_command: Any, folder: Path, tmp_path: Path
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text(TEXTS[0])
        arguments = [
            "segment", str(text), "--model", str(folder), "--length", "16", "--level", "fine", "--allow-unverified",
        ]  # fmt: skip
        for options in ([], ["--json"]):
            result = headscope_command(*arguments, *options)
            assert result.code == 0
            assert "unverified capture, numbers could be wrong" in result.err
        manifest = json.loads(result.out)["manifest"]
        assert (manifest["verified"], REASON in manifest["verified_note"]) == (0, True)

    def test_inspect_says_why(self, headscope_command: Any, folder: Path) -> None:
        result = headscope_command("inspect", str(folder), "--json")
        (stack,) = json.loads(result.out)["stacks"]
        assert (stack["verified"], REASON in stack["problem"]) == (False, True)

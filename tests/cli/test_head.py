"""`headscope head`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headscope.studies.labels import label_sums
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from tests.helpers.synthetic import make_random_study, manifest, tally, window


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_random_study(length=20, examples=1, model="[red]model[/red]\x1b[31m").save(folder)
    return folder


def test_numbers_tokens_and_texts_of_one_head(headscope_command, study_folder: Path):
    result = headscope_command("head", str(study_folder), "L1H2", "--rate", "repeat_rate")
    assert result.code == 0
    assert result.out.startswith("L1H2 of [red]model[/red]\ufffd[31m on synthetic texts: 30 texts")
    for words in ("repeat rate: ", "chance", "Tokens it centers on", "L1H2, typical: ", "L1H2, strongest: ", "[t"):
        assert words in result.out
    assert "\x1b" not in result.out


def test_as_json(headscope_command, study_folder: Path):
    content = json.loads(headscope_command("head", str(study_folder), "L0H0", "--examples", "2", "--json").out)
    assert content["head"]["head"] == "L0H0"
    assert {"token", "texts", "share"} <= content["dominant_tokens"][0].keys()
    assert {example["kind"] for example in content["examples"]} == {"typical", "strongest"}
    assert content["examples"][0]["pairs"][0]["similarity"] == 1
    none = json.loads(headscope_command("head", str(study_folder), "L0H0", "--examples", "0", "--json").out)
    assert none["examples"] == []


def test_control_characters_of_tokens_do_not_reach_the_terminal(headscope_command, tmp_path: Path):
    counting = TallySettings(Shape(1, 1, 8, width=1), 0.3, 0.3, 1.0)
    sums = tally(
        "torch", counting, [window([3, 4, 3, 5, 6])], [torch.ones((1, 5, 1, 1))], [torch.full((1, 1, 5, 5), 0.2)]
    )
    data = label_sums(sums, lambda ids: [f"\x1b[2J[bold]\u202e{k}" for k in ids])
    Study(data.assign_attrs(manifest(sums.shape, examples=1))).save(tmp_path)
    out = headscope_command("head", str(tmp_path), "L0H0", "--rate", "repeat_rate").out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "\ufffd[2J[bold]\ufffd3" in out


def test_without_examples(headscope_command, tmp_path: Path):
    data = make_random_study(length=20).data
    old = [n for n in data.variables if str(n).startswith(("example_", "sketch", "strongest"))]
    Study(data.drop_vars(old)).save(tmp_path)
    result = headscope_command("head", str(tmp_path), "L0H0")
    assert result.code == 0
    assert "This study has no example texts." in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("L9H9",), 1, "L9H9"),
        (("L0",), 1, "L0 names 3 heads: give one, such as L3H7"),
        (("nothing",), 1, "write heads like L3H7"),
        (("L0H0", "--rate", "color"), 2, "color"),
        (("L0H0", "--examples", "-1"), 2, "greater than or equal to 0"),
    ],
)
def test_bad_input(headscope_command, study_folder: Path, arguments: tuple[str, ...], code: int, message: str):
    result = headscope_command("head", str(study_folder), *arguments)
    assert result.code == code
    assert message in " ".join(result.err.split())
    assert "Traceback" not in result.err

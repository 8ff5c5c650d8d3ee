"""The README and the docs: their Python runs, their commands and options exist, their pictures and links are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope import cli
from headscope.model.model import Model
from headscope.tally.quantities import ENTROPY, RELATION_QUANTITIES, SCORES
from tests.helpers.synthetic import make_random_study

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_python_runs(minilm: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    # The bundled model stands in for the hub's, which has twelve layers where this one has six.
    monkeypatch.setattr(headscope, "load", lambda name: minilm, raising=False)
    block = block.replace("layers=[10, 11]", "layers=[4, 5]").replace("layers=[0, 11]", "layers=[0, 5]")
    block = block.replace("layer=11", "layer=5").replace("layers=11", "layers=5")
    headscope.study(minilm, ["Another text. Another sentence of that text."]).save("more.nc")
    exec(compile(block, "README.md", "exec"), {})  # our own file, not anybody's text
    assert (tmp_path / "bert.nc").exists()
    assert (tmp_path / "distances.pdf").stat().st_size > 1000


def test_the_python_of_the_reading_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "reading.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "reading.md", "exec"), {})  # our own file, not anybody's text
    assert {"airports.html", "airports.nc", "fig9.pdf"} <= {path.name for path in tmp_path.iterdir()}


def test_the_python_of_the_segmentation_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "segmentation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    exec(compile(block, "segmentation.md", "exec"), variables)  # our own file, not anybody's text
    assert len(variables["segmentation"]) == len(variables["chunks"]) == 2
    assert (tmp_path / "segments.html").stat().st_size > 10_000


def test_the_python_of_the_export_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "export.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    exec(compile(block, "export.md", "exec"), variables)  # our own file, not anybody's text
    assert variables["vectors"].shape == (len(variables["table"]), 32)
    assert variables["ravens"].shape == (2, 32)
    assert variables["manifest"]["tokens"] == len(variables["table"])


def test_the_numbers_of_the_reading_page(minilm: Model):
    reading = headscope.read(minilm, headscope.examples()["airport-policing"])
    close = reading.pairs(layer=2, head=3)
    sentence = reading.data["sentence"].values
    assert len(close) == 197
    assert round((sentence[close.index_i] == sentence[close.index_j]).mean(), 2) == 0.79
    dominant = reading.dominant(layer=1, head=10).iloc[0]
    assert (dominant.token, dominant.pairs, round(dominant.share * dominant.pairs)) == ("police", 119, 79)
    assert reading.lines(layer=2, head=3, tau=0.05).token.tolist() == ["[CLS]", ".", "saw", "varied"]
    several_lines = [
        (layer, head) for layer in range(1, 5) for head in range(12) if len(reading.lines(layer, head)) != 1
    ]
    assert len(several_lines) == 1


def test_commands_and_options_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = "study|merge|read|segment|findings|heads|figures|report|compare|ablate|prune|models|inspect|paper"
    commands = set(re.findall(rf"headscope ({names})\b([^\n`|]*)", text))
    assert {name for name, _ in commands} >= {"study", "figures", "models"}
    monkeypatch.setenv("COLUMNS", "200")
    for name, rest in commands:
        monkeypatch.setattr(sys, "argv", ["headscope", name, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        help_text = capsys.readouterr().out
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in help_text, f"headscope {name} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_packages_and_files_named_are_there():
    for name in re.findall(r"^      (\w+(?:\.py|/)) ", README, re.MULTILINE):
        assert (ROOT / "src" / "headscope" / name).exists(), name
    for name in set(re.findall(r"`((?:src|tests|docs)/[\w/]+\.\w+)`", README)):
        assert (ROOT / name).exists(), name


def test_the_variables_of_the_method_page_are_those_of_a_study():
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"NAME_blocks"}
    scores = {name.replace("SCORE", score) for name in documented for score in SCORES if "SCORE" in name}
    documented = {name for name in documented if "SCORE" not in name} | scores - {f"{ENTROPY}_chance_sum"}
    variables = {str(name) for name in make_random_study(0).data.variables if not str(name).endswith("_blocks")}
    coordinates = {str(name) for name in make_random_study(0).data.coords} - {"distance"}
    relations = {name for name in documented if name.startswith("relation_")}  # only if texts are labelled
    assert relations < {quantity.name for quantity in RELATION_QUANTITIES}
    documented -= relations
    assert documented == variables - coordinates


def test_files_that_contributing_names_exist():
    """The answers to "Where is …?", and what the map of the packages lists for each of them."""
    contributing, package = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), ROOT / "src" / "headscope"
    answers = re.findall(r"^\| Where .*\? \| `([^`]+)` \|$", contributing, re.MULTILINE)
    assert len(answers) >= 20
    assert [name for name in answers if not (package / name).is_file()] == []
    named_paths = set(re.findall(r"`((?:tally|run|studies|model|corpus|page|cli)/[\w/]*(?:\.py|/))`", contributing))
    assert {name for name in named_paths if not (package / name).exists()} == set()
    layout = re.search(r"^    src/headscope/\n(.*?)^    tests/", contributing, re.DOTALL | re.MULTILINE)
    assert layout is not None
    listed = {words.split()[0] for words in re.findall(r"^      (\w+/) ", layout[1], re.MULTILINE)}
    folders = {f"{path.name}/" for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert listed == folders

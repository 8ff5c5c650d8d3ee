"""`headscope heads`, and the table of heads in a study's folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from headscope import output_folder
from headscope.studies.head_types import PARTS
from tests.helpers.planted import VARIED, Planted, planted
from tests.helpers.synthetic import make_random_study

NAMES = PARTS["writes"].names


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    planted(*VARIED, model="[red]planted[/red]\x1b[31m").save(folder)
    return folder


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_one_line_a_head_and_how_many_are_what(
    headscope_command, study_folder: Path, monkeypatch: pytest.MonkeyPatch, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = headscope_command("heads", str(study_folder))
    assert result.code == 0
    lines = {line.split()[0]: line.split() for line in result.out.splitlines() if line.strip().startswith(("L0", "L1"))}
    assert [words[1:4] for words in lines.values()] == [["not", "measured", name] for name in NAMES[:-1]]
    assert lines["L0H0"][4:] == ["30", "1.0"]
    assert lines["L1H0"][4:] == ["50", "34"]
    assert lines["L1H2"][4:] == []
    totals = " ".join(result.out.split())
    assert "8 heads attends to: 8 not measured outputs similar for: " in totals
    assert f"outputs similar for: {', '.join(f'1 {name}' for name in NAMES[:-1])}" in totals
    assert "[red]planted[/red]\ufffd[31m" in result.out
    assert max(map(len, result.out.splitlines())) <= columns


def test_a_part_in_an_order(headscope_command, study_folder: Path):
    part = headscope_command("heads", str(study_folder), "--layers", "1", "--heads", "H0-1", "--json")
    output = json.loads(part.out)
    assert [head["head"] for head in output["heads"]] == ["L1H0", "L1H1"]
    assert {kind["name"]: kind["heads"] for kind in output["head_types"]["writes"]} == {
        name: int(name in ("long-range", "diffuse")) for name in NAMES
    }
    assert output["manifest"]["length"] == 101
    ragged = headscope_command("heads", str(study_folder), "--heads", "L1H2,L0H0-1,L1H3", "--json")
    assert [head["head"] for head in json.loads(ragged.out)["heads"]] == ["L0H0", "L0H1", "L1H2", "L1H3"]
    filtered = json.loads(headscope_command("heads", str(study_folder), "--writes", "one-token", "--json").out)
    assert [(head["head"], head["writes_also"]) for head in filtered["heads"]] == [("L0H3", [])]
    assert [sum(kind["heads"] for kind in kinds) for kinds in filtered["head_types"].values()] == [8, 8]
    sorted_heads = json.loads(headscope_command("heads", str(study_folder), "--sort", "mean_distance", "--json").out)[
        "heads"
    ]
    assert [sorted_heads[0]["head"], sorted_heads[-1]["head"], sorted_heads[-1]["mean_distance"]] == [
        "L1H0",
        "L1H2",
        None,
    ]


def test_a_file_for_a_spreadsheet(headscope_command, tmp_path: Path):
    study = planted([Planted(equal=0.4, same=0.9), Planted()])
    study.save(tmp_path / "a.nc")
    result = headscope_command("heads", "a.nc", "--csv", "heads.csv", "--writes", "within-sentence")
    assert (result.code, "written: heads.csv" in result.err) == (0, True)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text(encoding="utf-8")))
    table = study.heads()
    assert list(row) == table.columns.tolist()
    assert (row["head"], row["writes_type"], row["writes_also"]) == ("L0H0", "repeat-token", "within-sentence")
    assert float(row["repeat_rate"]) == table["repeat_rate"][0]


def test_exports_are_the_table_of_the_study(headscope_command, tmp_path: Path):
    study = make_random_study(2, layers=2, heads=3, texts=60)
    study.save(tmp_path / "a.nc")
    result = headscope_command("heads", "a.nc", "--csv", "heads.csv", "--json")
    table = study.heads()
    others = [part.also_column for part in PARTS.values()]
    exported = pd.DataFrame(json.loads(result.out)["heads"])
    exported[others] = exported[others].map(tuple)
    pd.testing.assert_frame_equal(exported.astype(table.dtypes), table, rtol=1e-12)
    empty_cells = {name: [""] for name in table.select_dtypes("float")}
    from_csv = pd.read_csv(tmp_path / "heads.csv", keep_default_na=False, na_values=empty_cells)
    in_cells = table.assign(**{name: table[name].map("; ".join) for name in others})
    pd.testing.assert_frame_equal(from_csv.astype(in_cells.dtypes), in_cells, rtol=1e-12)


def test_help_names_the_types(headscope_command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    listed = " ".join(headscope_command("heads", "--help").out.replace("│", " ").split())
    for part in PARTS.values():
        names = [f"'{name}'" if " " in name else name for name in part.names]
        assert f"{', '.join(names[:-1])}, or {names[-1]}." in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--writes", "noisy"], "unknown type 'noisy' of what a head writes; there are: repeat-token, local, "),
        (["--attends", "noisy"], "unknown type 'noisy' of what a head attends; there are: previous-token, "),
        (["--sort", "size"], "unknown column 'size'; there are: head, layer, head_number, attends_type, "),
        (["--layers", "5"], "layer 5: the study has layers 0 to 1"),
        (["--heads", "x"], "heads 'x': not a head; write heads like"),
        (["--csv", "nowhere/heads.csv"], "nowhere/heads.csv"),
    ],
)
def test_errors_say_what_to_do(headscope_command, study_folder: Path, arguments: list[str], message: str):
    result = headscope_command("heads", str(study_folder), *arguments)
    assert result.code == 1
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_the_folder_of_a_study_holds_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_folder, "write_figures", lambda study, folder: [])
    study = make_random_study(0)
    output_folder.write_study(study, tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "heads.csv").read_text(encoding="utf-8"))))
    assert [row["description"] for row in rows] == study.heads()["description"].tolist()


def test_a_cache_policy_of_a_model_without_a_cache_is_refused(headscope_command, study_folder: Path, tmp_path: Path):
    result = headscope_command("heads", str(study_folder), "--cache-policy", str(tmp_path / "policy"))
    assert result.code == 1
    assert "a cache is kept by decoders only" in " ".join(result.err.split())
    assert not (tmp_path / "policy").exists()
    alone = headscope_command("heads", str(study_folder), "--kv-heads", "2")
    assert alone.code == 1
    assert "--kv-heads is for --cache-policy" in alone.err

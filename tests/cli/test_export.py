"""`headscope export` and `headscope match`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headscope.exporting import export
from tests.helpers import language_models, tiny

TEXTS = "the cat sat. the dog ran!\na b c d e f g\n\nwho, me? the one.\n"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    language_models.make_network("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    (tmp_path / "texts.txt").write_text(TEXTS)
    return ["texts.txt", "--format", "lines", "--length", "16"]


def test_a_file_is_written_once(headscope_command: Any, model_folder: Path, texts: list[str], tmp_path: Path) -> None:
    command = ["export", *texts, "--model", str(model_folder), "--heads", "L1H3,L0H2", "--output", "heads.parquet"]
    result = headscope_command(*command)
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "heads.parquet"
    table = pd.read_parquet(tmp_path / "heads.parquet")
    assert [*table][7:] == ["L0H2", "L1H3"]
    assert f"{len(table)} tokens of 3 texts" in result.err
    again = headscope_command(*command)
    assert again.code == 1
    assert "heads.parquet is there already" in again.err
    assert "Traceback" not in again.err
    replaced = headscope_command(*command, "--overwrite", "--what", "attention", "--numbers", "float16", "--json")
    assert replaced.code == 0, replaced.err
    content = json.loads(replaced.out)
    assert content["file"] == "heads.parquet"
    assert content["manifest"]["what"] == "attention"
    assert content["manifest"]["command"].startswith("headscope ")
    assert pd.read_parquet(tmp_path / "heads.parquet")["L1H3"][0].dtype == "float16"


def test_an_interrupted_export_leaves_nothing(
    headscope_command: Any, model_folder: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export._Writer, "set_manifest", interrupt)
    result = headscope_command("export", *texts, "--model", str(model_folder))
    assert result.code == 130
    assert "interrupted: nothing was written" in result.err
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt"}


def test_heads_of_two_models_are_matched(
    headscope_command: Any, model_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    command = ["match", str(model_folder), str(model_folder), *texts]
    result = headscope_command(*command, "--csv", "heads.csv")
    assert result.code == 0, result.err
    assert "3 texts" in result.out
    table = pd.read_csv(tmp_path / "heads.csv")
    assert table["head"].tolist() == table["other"].tolist() == table["best"].tolist()
    content = json.loads(headscope_command(*command, "--json").out)
    assert [row["other"] for row in content["heads"]] == table["head"].tolist()
    assert content["texts"] == 3


def test_models_of_other_tokens_are_refused(
    headscope_command: Any, model_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    result = headscope_command("match", str(model_folder), "minilm", *texts)
    assert result.code == 1
    assert "read different tokens" in result.err

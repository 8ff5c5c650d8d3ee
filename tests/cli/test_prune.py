"""`headscope prune`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModel

import headscope
from headscope.corpus import documents
from headscope.errors import ModelError
from headscope.model import loading
from headscope.pruning import prune as pruning
from tests.helpers import tiny


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "llama"
    tiny.network("llama").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_printed(
    headscope_command: Any, llama_folder: str, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = headscope_command("prune", llama_folder, "--heads", "L0H0-1,L1H2", "--out", "small", "--quiet")
    assert (result.code, result.err) == (0, "")
    words = " ".join(result.out.split())
    assert "3 of 8 heads removed" in words
    assert "0 H0-1 removed 2" in words
    assert "1 H2 masked 4" in words
    assert "masked in layer 1: heads share their keys, and the layer would not get smaller" in words
    assert "parameters: 16 k → 14.4 k (90.4%)" in words
    assert 'transformers.AutoModel.from_pretrained("small", trust_remote_code=True)' in words
    assert 'headscope.load("small")' in words


def test_the_line_it_prints_opens_it(headscope_command: Any, llama_folder: str, tmp_path: Path) -> None:
    result = headscope_command(
        "prune", llama_folder, "--keep", "50%", "--by", "random", "--per-layer", "--out", "small", "--json"
    )
    output = json.loads(result.out)
    assert (output["form"], output["folder"], len(output["heads_removed"])) == ("plain", "small", 4)
    assert output["command"].startswith("headscope prune")
    network = eval(output["opens_with"][0], {"transformers": __import__("transformers")})
    assert isinstance(network, type(AutoModel.from_pretrained(llama_folder)))
    assert headscope.load(tmp_path / "small", device="cpu").architecture.heads == 2
    assert output["after"]["bytes"] == sum(weight.numel() * 4 for weight in network.parameters())
    assert output["before"]["parameters"] - output["after"]["parameters"] == 2048  # 2 layers, 2 heads, 2 maps of 8 × 32


def test_texts_rank(headscope_command: Any, llama_folder: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"body": "the cat sat. a b c"}\n{"body": "who, me? the dog."}\n')
    result = headscope_command(
        "prune",
        llama_folder,
        "texts.jsonl",
        "--field",
        "body",
        "--keep",
        "4",
        "--by",
        "norm",
        "--how",
        "mask",
        "--json",
        "--length",
        "20",
    )
    output = json.loads(result.out)
    assert (output["ranking"]["texts"], output["form"], output["folder"]) == (2, "masked", "pruned")
    assert output["before"] == output["after"]
    columns = AutoModel.from_pretrained(tmp_path / "pruned").layers
    silent = {
        f"L{k}H{head}" for k in range(2) for head in range(4)
        if not columns[k].self_attn.o_proj.weight[:, head * 8 : head * 8 + 8].any()
    }  # fmt: skip
    assert silent == set(output["heads_removed"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--keep", "much"), "write a share"),
        ((), "one of the two"),
        (("--heads", "L0H9"), "head 9: a layer has heads 0 to 3"),
        (("--heads", "L0H0", "--how", "remove"), "cannot be removed in layer 0"),
        (("--keep", "4", "--by", "signal-share", "--study", "nowhere"), "nowhere"),
        (
            ("--keep", "4", "--study", "nowhere"),
            "'gradient' reads no study: leave the study out, or rank by one of signal-share",
        ),
        (("--heads", "L0H0", "--out", "taken"), "not empty"),
        (("--heads", "L0H0", "--out", "taken", "--overwrite"), "holds no pruned model"),
        (("--heads", "L0H0", "--out", "taken/file"), "is a file"),
    ],
)
def test_bad_commands_end_in_a_sentence(
    headscope_command: Any, llama_folder: str, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    result = headscope_command("prune", llama_folder, *arguments)
    assert (result.code, result.out) == (1, "")
    assert words in " ".join(result.err.split())
    assert "Traceback" not in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_forms_that_name_the_model(headscope_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(name: str, **options: object) -> None:
        raise ModelError(f"load {name}")

    def read(sources: Any, **options: object) -> Any:
        calls.append(sources)
        return SimpleNamespace(notes=())

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(documents, "documents", read)
    for arguments, model, sources in (
        (["a"], "a", None),
        (["a", "b.txt", "c.txt"], "a", ["b.txt", "c.txt"]),
        (["b.txt", "--model", "a", "c.txt"], "a", ["b.txt", "c.txt"]),
        (["--model", "a"], "a", None),
        ([], "minilm", None),
    ):
        assert f"load {model}" in headscope_command("prune", *arguments, "--keep", "1").err
        assert calls.pop() == sources


@pytest.mark.parametrize(
    "arguments",
    [(), ("--keep", "much"), ("--keep", "150%"), ("--keep", "4", "--study", "s")],
)
def test_bad_commands_end_before_a_model_is_loaded(
    headscope_command: Any, llama_folder: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("known before a model is loaded"))
    assert headscope_command("prune", llama_folder, *arguments).code == 1


@pytest.mark.usefixtures("loaded_once")
def test_the_bundled_texts_rank_by_gradient(headscope_command: Any, tmp_path: Path) -> None:
    command = ("prune", "minilm", "--keep", "70%", "--limit", "3", "--length", "16", "--quiet")
    result = headscope_command(*command)
    assert result.code == 0
    assert "22 of 72 heads removed, the least by gradient over 3 texts of bundled openings" in " ".join(
        result.out.split()
    )
    assert "heads are ranked on the bundled texts" in result.err
    assert "bundled" not in headscope_command(*command, "--by", "random", "--overwrite").err


def test_a_model_that_is_not_there(headscope_command: Any) -> None:
    result = headscope_command("prune", "./nowhere", "--heads", "L0H0")
    assert result.code == 1
    assert "no such folder" in result.err


def test_ctrl_c(headscope_command: Any, llama_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pruning, "write_folder", interrupt)
    result = headscope_command("prune", llama_folder, "--heads", "L0H0", "--out", "small")
    assert result.code == 130
    assert "interrupted" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("loaded_once")
def test_the_bundled_model(headscope_command: Any, minilm: Any, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in minilm.network.state_dict().items()}
    result = headscope_command("prune", "minilm", "--keep", "70%", "--by", "random", "--out", "small", "--json")
    output = json.loads(result.out)
    assert (len(output["heads_removed"]), output["form"]) == (22, "with code")
    assert output["before"]["parameters"] - output["after"]["parameters"] == 22 * (4 * 32 * 384 + 3 * 32)
    assert output["difference"] <= 1e-9  # in float64
    assert all(torch.equal(weight, before[name]) for name, weight in minilm.network.state_dict().items())
    assert headscope.load(tmp_path / "small", device="cpu").network.config.num_attention_heads == 12

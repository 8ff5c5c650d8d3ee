"""`headscope prune` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

import headscope
from headscope.pruning import prune as pruning
from tests import tiny


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("models") / "llama"
    tiny.network("llama").save_pretrained(made)
    tiny.tokenizer().save_pretrained(made)
    return str(made)


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_printed(headscope_command: Any, llama: str, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = headscope_command("prune", llama, "--heads", "L0H0-1,L1H2", "--out", "small", "--quiet")
    assert (ran.code, ran.err) == (0, "")
    words = " ".join(ran.out.split())
    assert "3 of 8 heads removed" in words
    assert "0 H0-1 removed 2" in words
    assert "1 H2 masked 4" in words
    assert "masked in layer 1: heads share their keys, and the layer would not get smaller" in words
    assert "parameters: 16 k → 14.4 k (90.4%)" in words
    assert 'transformers.AutoModel.from_pretrained("small", trust_remote_code=True)' in words
    assert 'headscope.load("small")' in words


def test_the_line_it_prints_opens_it(headscope_command: Any, llama: str, tmp_path: Path) -> None:
    ran = headscope_command(
        "prune", llama, "--keep", "50%", "--by", "random", "--per-layer", "--out", "small", "--json"
    )
    found = json.loads(ran.out)
    assert (found["form"], found["folder"], len(found["heads_removed"])) == ("plain", "small", 4)
    assert found["command"].startswith("headscope prune")
    network = eval(found["opens_with"][0], {"transformers": __import__("transformers")})
    assert isinstance(network, type(AutoModel.from_pretrained(llama)))
    assert headscope.load(tmp_path / "small", device="cpu").anatomy.heads == 2
    assert found["after"]["bytes"] == sum(weight.numel() * 4 for weight in network.parameters())
    assert found["before"]["parameters"] - found["after"]["parameters"] == 2048  # 2 layers, 2 heads, 2 maps of 8 × 32


def test_texts_rank(headscope_command: Any, llama: str, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"body": "the cat sat. a b c"}\n{"body": "who, me? the dog."}\n')
    ran = headscope_command(
        "prune",
        llama,
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
    found = json.loads(ran.out)
    assert (found["ranking"]["texts"], found["form"], found["folder"]) == (2, "masked", "pruned")
    assert found["before"] == found["after"]
    columns = AutoModel.from_pretrained(tmp_path / "pruned").layers
    silent = {
        f"L{k}H{head}" for k in range(2) for head in range(4)
        if not columns[k].self_attn.o_proj.weight[:, head * 8 : head * 8 + 8].any()
    }  # fmt: skip
    assert silent == set(found["heads_removed"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--keep", "much"), "write a share"),
        ((), "one of the two"),
        (("--heads", "L0H9"), "no head 9"),
        (("--keep", "50%", "--by", "beauty"), "unknown ranking"),
        (("--keep", "50%", "--by", "random", "--how", "saw"), "how is 'saw'"),
        (("--heads", "L0H0", "--how", "remove"), "cannot be removed in layer 0"),
        (("--keep", "4", "--study", "nowhere"), "nowhere"),
        (("--heads", "L0H0", "--out", "taken"), "not empty"),
        (("--heads", "L0H0", "--out", "taken", "--overwrite"), "holds no pruned model"),
        (("--heads", "L0H0", "--out", "taken/file"), "is a file"),
    ],
)
def test_bad_commands_end_in_a_sentence(
    headscope_command: Any, llama: str, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    ran = headscope_command("prune", llama, *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert words in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_a_model_that_is_not_there(headscope_command: Any) -> None:
    ran = headscope_command("prune", "./nowhere", "--heads", "L0H0")
    assert ran.code == 1
    assert "no such folder" in ran.err


def test_ctrl_c(headscope_command: Any, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pruning, "write_folder", interrupt)
    ran = headscope_command("prune", llama, "--heads", "L0H0", "--out", "small")
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("loaded_once")
def test_the_bundled_model(headscope_command: Any, minilm: Any, tmp_path: Path) -> None:
    before = {name: weight.clone() for name, weight in minilm.network.state_dict().items()}
    ran = headscope_command("prune", "minilm", "--keep", "70%", "--by", "random", "--out", "small", "--json")
    found = json.loads(ran.out)
    assert (len(found["heads_removed"]), found["form"]) == (22, "with code")
    assert found["before"]["parameters"] - found["after"]["parameters"] == 22 * (4 * 32 * 384 + 3 * 32)
    assert found["difference"] <= 1e-9  # in float64
    assert all(torch.equal(weight, before[name]) for name, weight in minilm.network.state_dict().items())
    assert headscope.load(tmp_path / "small", device="cpu").network.config.num_attention_heads == 12

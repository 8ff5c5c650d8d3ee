"""Folders of pruned models: each form opens and gives what the masked model gives; bad folders are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    dynamic_module_utils,
)

import headscope
from headscope.errors import StudyError
from headscope.model.loading import load
from headscope.pruning import saved_model as folders
from headscope.pruning.removal import remove
from headscope.pruning.saved_model import write_folder
from tests.helpers import tiny
from tests.helpers.architectures import batch, result, watched
from tests.helpers.families import FAMILIES
from tests.helpers.pruning import PLAIN, choose_heads, compute_error, get_expected_form, run_silenced
from tests.helpers.removed_heads import NEAR, count_parameters, replace_network, save_pruned

WITH_CODE = ("bert", "gpt2", "phi3", "nomic_bert", "mixtral", "umt5", "deepseek_v3")
"""opened by transformers, running the code in the folder"""
CODED = [
    *((name, "uneven") for name in ("modernbert", "deberta-v2", "squeezebert", "gpt_neox", "falcon", "qwen3_next")),
    *((name, "even") for name in ("albert", "t5", "bart", "recurrent_gemma")),
]
AS_LARGE = [("mpnet", "even"), ("convbert", "uneven"), ("t5", "uneven"), ("bitnet", "even")]


@pytest.fixture(autouse=True)
def cache_code_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep transformers' copies of the code that it runs in the test's folder."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "code"))


@pytest.mark.parametrize(("name", "pattern"), [*((name, "even") for name in sorted(PLAIN)), *CODED, *AS_LARGE])
def test_an_architecture_opens_in_its_form(name: str, pattern: str, tmp_path: Path) -> None:
    model = watched(name)
    heads = choose_heads(model, pattern)
    manifest = save_pruned(model, heads, tmp_path / "out")
    assert manifest["form"] == get_expected_form(name, pattern)
    inputs = batch(model, FAMILIES[name], "right")
    silent, code = run_silenced(model, heads, inputs), tmp_path / "out" / "pruned_heads.py"
    if manifest["form"] == "with code":
        assert f"class {type(model.network).__name__}(" in code.read_text("utf-8")
        code.write_text("raise SystemExit('code of the folder was run')", encoding="utf-8")
        network = headscope.load(tmp_path / "out", device="cpu").network
    else:
        assert not code.exists()
        network = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert compute_error(silent, result(replace_network(model, network), inputs), inputs) <= NEAR


@pytest.mark.parametrize("name", WITH_CODE)
def test_transformers_opens_it_with_its_code(name: str, tmp_path: Path) -> None:
    model = watched(name)
    heads = choose_heads(model, "uneven")
    save_pruned(model, heads, tmp_path / name)
    inputs = batch(model, FAMILIES[name], "right")
    network = AutoModel.from_pretrained(tmp_path / name, trust_remote_code=True).eval()
    assert "transformers_modules" in type(network).__module__
    pruned = result(replace_network(model, network), inputs)
    assert compute_error(run_silenced(model, heads, inputs), pruned, inputs) <= NEAR
    network.save_pretrained(tmp_path / "again")  # copies its code
    again = AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    assert compute_error(pruned, result(replace_network(model, again), inputs), inputs) == 0
    unpruned = AutoModel.from_config(model.network.config, trust_remote_code=True)
    assert count_parameters(unpruned) == count_parameters(model.network), "the class is unchanged for unpruned models"


def test_the_stock_class_does_not_open_it_unnoticed(tmp_path: Path) -> None:
    save_pruned(watched("bert"), "L0H1", tmp_path / "bert")
    with pytest.raises(RuntimeError, match=r"size|shape|mismatch"):
        AutoModel.from_pretrained(tmp_path / "bert")


def test_parts_for_language_and_classes_are_kept(tmp_path: Path) -> None:
    config = tiny.network("llama").config
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "whole")
    tiny.tokenizer().save_pretrained(tmp_path / "whole")
    model = load(tmp_path / "whole", device="cpu")
    for name, heads in (("plain", "L0H1,L0H3,L1H0,L1H2"), ("with code", "L0H0-1")):
        manifest = save_pruned(model, heads, tmp_path / name)
        assert manifest["form"] == name
        assert manifest["before"]["parameters"] - manifest["after"]["parameters"] == (2048 if name == "plain" else 1536)
        config = json.loads((tmp_path / name / "config.json").read_text("utf-8"))
        assert config["architectures"] == ["LlamaForCausalLM"]
        opened, original = (
            AutoModelForCausalLM.from_pretrained(tmp_path / subfolder, trust_remote_code=True)
            for subfolder in (name, "whole")
        )
        assert torch.equal(opened.lm_head.weight, original.lm_head.weight)
        assert load(tmp_path / name, device="cpu", objective=True).network.lm_head is not None
        assert len(opened.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=3, do_sample=False)[0]) == 6
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "with code", trust_remote_code=True)
    assert classifier.model.layers[0].self_attn.q_proj.weight.shape == (16, 32)


def test_a_file_in_half_precision_stays_so(tmp_path: Path) -> None:
    tiny.network("bert").to(torch.bfloat16).save_pretrained(tmp_path / "whole")
    tiny.tokenizer().save_pretrained(tmp_path / "whole")
    model = load(tmp_path / "whole", device="cpu")
    assert model.dtype == "float32"
    save_pruned(model, "L0H1", tmp_path / "small")
    assert {weight.dtype for weight in load_file(tmp_path / "small" / "model.safetensors").values()} == {torch.bfloat16}


def test_weights_that_were_changed_in_memory_are_those_that_are_saved(tmp_path: Path) -> None:
    tiny.network("bert").save_pretrained(tmp_path / "whole")
    network = AutoModel.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        network.embeddings.word_embeddings.weight.mul_(2)
    save_pruned(load(network, tiny.tokenizer()), "L0H1", tmp_path / "small")
    weights = load_file(tmp_path / "small" / "model.safetensors")
    assert torch.equal(weights["embeddings.word_embeddings.weight"], network.embeddings.word_embeddings.weight)


def test_a_pruned_folder_is_pruned_again(tmp_path: Path) -> None:
    model = watched("bert")
    save_pruned(model, "L0H1,L1H2", tmp_path / "one")
    for heads, silent in (("L0H0", [(0, 0)]), ("L0H2,L1H2", [(0, 3), (1, 3)])):
        folder = tmp_path / heads
        assert save_pruned(load(tmp_path / "one", device="cpu"), heads, folder)["form"] == "with code"
        inputs = tiny.batch(9, 4)
        expected = run_silenced(model, [(0, 1), (1, 2), *silent], inputs)
        assert compute_error(expected, tiny.run(load(folder, device="cpu").network, inputs), inputs) <= NEAR


def test_the_folder_holds_what_is_needed_and_no_more(tmp_path: Path) -> None:
    manifest = save_pruned(watched("bert"), "L0H1", tmp_path / "new" / "bert")
    names = {path.name for path in (tmp_path / "new" / "bert").iterdir()}
    assert names >= {"config.json", "model.safetensors", "pruned_heads.py", "pruning.json", "tokenizer.json"}
    assert not [name for name in names if name.endswith((".bin", ".pt"))]
    assert json.loads((tmp_path / "new" / "bert" / "pruning.json").read_text("utf-8")) == manifest
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bert"]
    assert AutoTokenizer.from_pretrained(tmp_path / "new" / "bert").vocab_size == len(tiny.VOCABULARY)


# Existing folders


def test_what_is_there_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = watched("bert"), tmp_path / "out"
    removal = remove(model, "L0H1")
    folder.mkdir()
    write_folder(model, removal, {}, folder, overwrite=False)  # an empty folder may be replaced
    with pytest.raises(StudyError, match=r"not empty.*--overwrite"):
        write_folder(model, removal, {}, folder, overwrite=False)
    write_folder(model, removal, {"second": 1}, folder, overwrite=True)
    assert "second" in json.loads((folder / "pruning.json").read_text("utf-8"))
    monkeypatch.setattr(
        folders, "_write_form", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(StudyError, match="cannot be written: No space left"):
        write_folder(model, removal, {}, folder, overwrite=True)
    with pytest.raises(StudyError, match="cannot be written: No space left"):
        write_folder(model, removal, {}, tmp_path / "new" / "folder", overwrite=True)
    assert "second" in json.loads((folder / "pruning.json").read_text("utf-8"))
    assert [path.name for path in tmp_path.iterdir() if path.name != "code"] == ["out"]


def test_places_that_are_refused(tmp_path: Path) -> None:
    model, removal = watched("bert"), remove(watched("bert"), "L0H1")
    (tmp_path / "file").write_text("a")
    with pytest.raises(StudyError, match="is a file"):
        write_folder(model, removal, {}, tmp_path / "file", overwrite=True)
    with pytest.raises(StudyError, match="cannot write there"):
        write_folder(model, removal, {}, tmp_path / "file" / "in", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("a")
    with pytest.raises(StudyError, match="holds no pruned model"):
        write_folder(model, removal, {}, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()
    tiny.network("bert").save_pretrained(tmp_path / "whole")
    tiny.tokenizer().save_pretrained(tmp_path / "whole")
    loaded = load(tmp_path / "whole", device="cpu")
    with pytest.raises(StudyError, match="is the model that is pruned"):
        write_folder(loaded, removal, {}, tmp_path / "whole", overwrite=True)

"""Folders of pruned models: each form opens, gives what the masked model gives, and bad ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
from headscope.model.model import Model
from headscope.pruning import folder as folders
from headscope.pruning.folder import write_folder
from headscope.pruning.removal import remove
from tests import tiny
from tests.architectures import batch, result, watched
from tests.families import FAMILIES
from tests.pruned import PLAIN, expected, far, form, heads_of
from tests.test_removal import NEAR, count, pruned

WITH_CODE = ("bert", "gpt2", "phi3", "nomic_bert", "mixtral", "umt5", "deepseek_v3")
"""opened as others would, running the code in the folder"""
CODED = [
    *((name, "uneven") for name in ("modernbert", "deberta-v2", "squeezebert", "gpt_neox", "falcon", "qwen3_next")),
    *((name, "even") for name in ("albert", "t5", "bart", "recurrent_gemma")),
]
AS_LARGE = [("mpnet", "even"), ("convbert", "uneven"), ("t5", "uneven"), ("bitnet", "even")]


@pytest.fixture(autouse=True)
def code_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers keeps copies of code that it runs."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "code"))


def saved(model: Model, heads: Any, folder: Path) -> dict[str, Any]:
    return write_folder(model, remove(model, heads), {"source": model.name}, folder, overwrite=False)


@pytest.mark.parametrize(("name", "pattern"), [*((name, "even") for name in sorted(PLAIN)), *CODED, *AS_LARGE])
def test_an_architecture_opens_in_its_form(name: str, pattern: str, tmp_path: Path) -> None:
    model = watched(name)
    heads = heads_of(model, pattern)
    manifest = saved(model, heads, tmp_path / "out")
    assert manifest["form"] == form(name, pattern)
    made = batch(model, FAMILIES[name], "right")
    silent, code = expected(model, heads, made), tmp_path / "out" / "pruned_heads.py"
    if manifest["form"] == "with code":
        assert f"class {type(model.network).__name__}(" in code.read_text("utf-8")
        code.write_text("raise SystemExit('code of the folder was run')", encoding="utf-8")
        network = headscope.load(tmp_path / "out", device="cpu").network
    else:
        assert not code.exists()
        network = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert far(silent, result(pruned(model, network), made), made) <= NEAR


@pytest.mark.parametrize("name", WITH_CODE)
def test_transformers_opens_it_with_its_code(name: str, tmp_path: Path) -> None:
    model = watched(name)
    heads = heads_of(model, "uneven")
    saved(model, heads, tmp_path / name)
    made = batch(model, FAMILIES[name], "right")
    network = AutoModel.from_pretrained(tmp_path / name, trust_remote_code=True).eval()
    assert "transformers_modules" in type(network).__module__
    assert far(expected(model, heads, made), result(pruned(model, network), made), made) <= NEAR
    network.save_pretrained(tmp_path / "again")  # takes its code along
    again = AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    assert far(result(pruned(model, network), made), result(pruned(model, again), made), made) == 0
    whole = AutoModel.from_config(model.network.config, trust_remote_code=True)
    assert count(whole) == count(model.network), "others of its kind are as they were"


def test_the_stock_class_does_not_open_it_unnoticed(tmp_path: Path) -> None:
    saved(watched("bert"), "L0H1", tmp_path / "bert")
    with pytest.raises(RuntimeError, match=r"size|shape|mismatch"):
        AutoModel.from_pretrained(tmp_path / "bert")


def test_parts_for_language_and_classes_are_kept(tmp_path: Path) -> None:
    config = tiny.network("llama").config
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "whole")
    tiny.tokenizer().save_pretrained(tmp_path / "whole")
    model = load(tmp_path / "whole", device="cpu")
    for name, heads in (("plain", "L0H1,L0H3,L1H0,L1H2"), ("with code", "L0H0-1")):
        manifest = saved(model, heads, tmp_path / name)
        assert manifest["form"] == name
        assert manifest["before"]["parameters"] - manifest["after"]["parameters"] == (2048 if name == "plain" else 1536)
        config = json.loads((tmp_path / name / "config.json").read_text("utf-8"))
        assert config["architectures"] == ["LlamaForCausalLM"]
        opened, whole = (
            AutoModelForCausalLM.from_pretrained(tmp_path / place, trust_remote_code=True) for place in (name, "whole")
        )
        assert torch.equal(opened.lm_head.weight, whole.lm_head.weight)
        assert load(tmp_path / name, device="cpu", objective=True).network.lm_head is not None
        assert len(opened.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=3, do_sample=False)[0]) == 6
    new = AutoModelForSequenceClassification.from_pretrained(tmp_path / "with code", trust_remote_code=True)
    assert new.model.layers[0].self_attn.q_proj.weight.shape == (16, 32)


def test_a_file_in_half_precision_stays_so(tmp_path: Path) -> None:
    tiny.network("bert").to(torch.bfloat16).save_pretrained(tmp_path / "whole")
    tiny.tokenizer().save_pretrained(tmp_path / "whole")
    model = load(tmp_path / "whole", device="cpu")
    assert model.dtype == "float32"
    saved(model, "L0H1", tmp_path / "small")
    assert {held.dtype for held in load_file(tmp_path / "small" / "model.safetensors").values()} == {torch.bfloat16}


def test_weights_that_were_changed_in_memory_are_those_that_are_saved(tmp_path: Path) -> None:
    tiny.network("bert").save_pretrained(tmp_path / "whole")
    network = AutoModel.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        network.embeddings.word_embeddings.weight.mul_(2)
    saved(load(network, tiny.tokenizer()), "L0H1", tmp_path / "small")
    held = load_file(tmp_path / "small" / "model.safetensors")
    assert torch.equal(held["embeddings.word_embeddings.weight"], network.embeddings.word_embeddings.weight)


def test_a_pruned_folder_is_pruned_again(tmp_path: Path) -> None:
    model = watched("bert")
    saved(model, "L0H1,L1H2", tmp_path / "one")
    for heads, silent in (("L0H0", [(0, 0)]), ("L0H2,L1H2", [(0, 3), (1, 3)])):
        place = tmp_path / heads
        assert saved(load(tmp_path / "one", device="cpu"), heads, place)["form"] == "with code"
        made = tiny.batch(9, 4)
        wanted = expected(model, [(0, 1), (1, 2), *silent], made)
        assert far(wanted, tiny.run(load(place, device="cpu").network, made), made) <= NEAR


def test_the_folder_holds_what_is_needed_and_no_more(tmp_path: Path) -> None:
    manifest = saved(watched("bert"), "L0H1", tmp_path / "new" / "bert")
    names = {path.name for path in (tmp_path / "new" / "bert").iterdir()}
    assert names >= {"config.json", "model.safetensors", "pruned_heads.py", "pruning.json", "tokenizer.json"}
    assert not [name for name in names if name.endswith((".bin", ".pt"))]
    assert json.loads((tmp_path / "new" / "bert" / "pruning.json").read_text("utf-8")) == manifest
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bert"]
    assert AutoTokenizer.from_pretrained(tmp_path / "new" / "bert").vocab_size == len(tiny.VOCABULARY)


# Places


def test_what_is_there_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, place = watched("bert"), tmp_path / "out"
    removal = remove(model, "L0H1")
    place.mkdir()
    write_folder(model, removal, {}, place, overwrite=False)  # an empty folder is as good as none
    with pytest.raises(StudyError, match=r"not empty.*--overwrite"):
        write_folder(model, removal, {}, place, overwrite=False)
    write_folder(model, removal, {"second": 1}, place, overwrite=True)
    assert "second" in json.loads((place / "pruning.json").read_text("utf-8"))
    monkeypatch.setattr(folders, "_write", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StudyError, match="cannot be written: No space left"):
        write_folder(model, removal, {}, place, overwrite=True)
    assert "second" in json.loads((place / "pruning.json").read_text("utf-8"))
    assert [path.name for path in tmp_path.iterdir() if path.name != "code"] == ["out"]


def test_places_that_are_refused(tmp_path: Path) -> None:
    model, removal = watched("bert"), remove(watched("bert"), "L0H1")
    (tmp_path / "file").write_text("a")
    with pytest.raises(StudyError, match="is a file"):
        write_folder(model, removal, {}, tmp_path / "file", overwrite=True)
    with pytest.raises(StudyError, match="cannot be written"):
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

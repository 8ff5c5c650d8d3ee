"""Invalid records of pruned models: each is refused with a clear message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from headscope.errors import ModelError
from headscope.model.loading import load
from headscope.model.pruned_shapes import RECORD
from tests.helpers.architectures import watched
from tests.helpers.removed_heads import save_pruned


@pytest.fixture(scope="module")
def pruned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "phi3"
    save_pruned(watched("phi3"), "L0H0-1", folder)
    return folder


QKV, ATTENTION = "layers.0.self_attn.qkv_proj.weight", "layers.0.self_attn"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("all", "no record of removed heads"),
        ({"shapes": [1]}, "'shapes' should be an object"),
        ({"shapes": {"layers.9.w": [1]}}, "module 'layers.9'"),
        ({"shapes": {"layers.0.self_attn.none": [1]}}, "weight 'layers.0.self_attn.none'"),
        ({"shapes": {QKV: [32]}}, "the shape"),
        ({"shapes": {QKV: [-32, 32]}}, "the shape"),
        ({"shapes": {QKV: [True, 32]}}, "the shape"),
        ({"shapes": {QKV: [10**8, 32]}}, "the shape"),
        ({"shapes": {QKV: [40, 32]}}, "o_proj.weight has the shape"),
        ({}, "has the shape"),
        ({"numbers": {ATTENTION: 3}}, "should be an object"),
        ({"numbers": {ATTENTION: {"num_key_value_groups": -1}}}, "cannot be -1"),
        ({"numbers": {ATTENTION: {"forward": 1}}}, "'forward'"),
        ({"numbers": {ATTENTION: {"__class__": 1}}}, "'__class__'"),
        ({"numbers": {"nowhere": {"num_heads": 1}}}, "module 'nowhere'"),
        ({"config": {"layers.0.mlp.down_proj": {"num_attention_heads": 1}}}, "which has none"),
        ({"config": {ATTENTION: {"num_attention_heads": "many"}}}, "cannot be 'many'"),
    ],
)  # fmt: skip
def test_a_record_that_lies_is_refused(pruned_folder: Path, tmp_path: Path, record: Any, message: str) -> None:
    shutil.copytree(pruned_folder, tmp_path / "bad")
    config = json.loads((tmp_path / "bad" / "config.json").read_text("utf-8"))
    assert config[RECORD]["config"][ATTENTION]["num_attention_heads"] == 2
    config[RECORD] = {**config[RECORD], **record} if isinstance(record, dict) and record else record
    (tmp_path / "bad" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "bad", device="cpu")


def test_numbers_that_do_not_fit_are_met_when_it_runs(pruned_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(pruned_folder, tmp_path / "bad")
    config = json.loads((tmp_path / "bad" / "config.json").read_text("utf-8"))
    config[RECORD]["config"][ATTENTION]["num_attention_heads"] = 3
    (tmp_path / "bad" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="does not run on a text"):
        _ = load(tmp_path / "bad", device="cpu").architecture


def test_a_weight_file_of_other_shapes_is_refused(pruned_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(pruned_folder, tmp_path / "bad")
    weights = load_file(tmp_path / "bad" / "model.safetensors")
    weights[QKV] = weights[QKV][:-8].contiguous()
    save_file(weights, tmp_path / "bad" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"qkv_proj.weight has the shape"):
        load(tmp_path / "bad", device="cpu")

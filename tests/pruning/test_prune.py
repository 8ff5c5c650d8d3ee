"""`headscope.prune`: which heads are removed, and what the manifest says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope
from headscope.errors import ModelError, StudyError
from headscope.pruning.objective import read_windows
from headscope.pruning.rankings import parse_keep, score_heads, select_lowest, select_lowest_per_layer
from tests.helpers import tiny
from tests.helpers.pruning import compute_error, run_silenced
from tests.helpers.removed_heads import NEAR


@pytest.mark.parametrize(
    ("keep", "count"),
    [("70%", 50), ("0.7", 50), (0.7, 50), ("50", 50), (50, 50), (1, 1), (1.0, 72), ("100%", 72), (".5", 36)],
)
def test_how_many_are_kept(keep: Any, count: int) -> None:
    assert parse_keep(keep, 72) == count


@pytest.mark.parametrize(
    "keep", ["", "all", "-1", "0", "0%", "101%", "1.5", 73, 0, "70 heads", "nan", "0.001", True, "²"]
)
def test_how_many_cannot_be_kept(keep: Any) -> None:
    with pytest.raises(StudyError, match="keep"):
        parse_keep(keep, 72)


def test_the_least_go() -> None:
    head_scores = torch.tensor([[3.0, 1.0, 5.0, 6.0], [2.0, 8.0, 7.0, 4.0]]).numpy()
    assert select_lowest(head_scores, (1, 3), 5, [(1,), (3,)]) == [(1, 0), (1, 1), (3, 0)]
    # layers that share a module lose a head together, by the mean: 2.5, 4.5, 6, 5
    assert select_lowest(head_scores, (1, 3), 5, [(1, 3)]) == [(1, 0), (3, 0)]
    assert select_lowest_per_layer(head_scores, (1, 3), 0.5, ()) == [(1, 0), (1, 1), (3, 0), (3, 3)]
    pairs = (frozenset({0, 1}), frozenset({2, 3}))
    assert select_lowest_per_layer(head_scores, (1, 3), 0.5, pairs) == [(1, 1), (1, 2), (3, 0), (3, 3)]
    assert select_lowest_per_layer(head_scores, (1, 3), 6, pairs) == [(1, 1), (3, 0)]  # three of four: no equal groups
    with pytest.raises(StudyError, match="less than one head for each"):
        select_lowest_per_layer(head_scores.repeat(3, axis=0), (0, 1, 2, 3, 4, 5), 1, ())


# Whole runs

TEXTS = ["the cat sat. the dog ran! who, me?", "a b c d e f g h. a b c d", "one, two, the three. four five!"]


def test_those_ranked_least_go() -> None:
    model = tiny.model("bert")
    smaller = headscope.prune(model, keep="50%", by="random", seed=3)
    head_scores = score_heads(model, "random", [], seed=3)
    order = np.argsort(head_scores, axis=None)[:4]
    assert smaller.manifest["heads_removed"] == sorted(f"L{k // 4}H{k % 4}" for k in order)
    assert repr(smaller) == "Pruned(BertModel: 4 of 8 heads)"
    heads = [(int(k) // 4, int(k) % 4) for k in order]
    texts = tiny.batch(9, 5)
    assert compute_error(run_silenced(model, heads, texts), tiny.run(smaller.network, texts), texts) <= NEAR
    assert smaller.manifest["parameters_after"] < smaller.manifest["parameters_before"]
    assert "corpus" not in smaller.manifest["ranking"]


@pytest.mark.parametrize("by", ["norm", "signal-share"])
def test_texts_are_named_in_the_manifest(by: str, tmp_path: Path) -> None:
    smaller = headscope.prune(tiny.model("bert"), keep=6, by=by, documents=TEXTS, limit=2, length=16)
    manifest = smaller.save(tmp_path / "out")
    assert manifest["ranking"] == {
        "by": by, "keep": "6", "per_layer": False, "seed": 0, "corpus": manifest["ranking"]["corpus"], "texts": 2,
        "documents_left_out": True,
    }  # fmt: skip
    assert len(manifest["heads_removed"]) == 2
    assert (manifest["form"], manifest["heads_before"]) == ("with code", 8)
    assert manifest == json.loads((tmp_path / "out" / "pruning.json").read_text("utf-8"))


def test_the_default_is_the_gradient_on_the_bundled_texts() -> None:
    model = tiny.model("bert")
    smaller = headscope.prune(model, keep=6, limit=3, length=16)
    head_scores = score_heads(model, "gradient", read_windows(model, limit=3, length=16).windows)
    least = sorted(np.argsort(head_scores, axis=None)[:2].tolist())
    assert smaller.manifest["heads_removed"] == [f"L{k // 4}H{k % 4}" for k in least]
    ranking = smaller.manifest["ranking"]
    assert (ranking["by"], ranking["corpus"], ranking["texts"]) == ("gradient", "bundled openings", 3)


def test_a_ranking_without_a_number_for_any_head() -> None:
    with pytest.raises(StudyError, match=r"'signal-share' is undefined for every head on these texts \(3 in all\)"):
        headscope.prune(tiny.model("bert"), keep=6, by="signal-share", limit=3, length=16)


def test_as_many_in_each_layer_makes_an_ordinary_model(tmp_path: Path) -> None:
    smaller = headscope.prune(tiny.model("llama"), keep=0.5, by="random", per_layer=True)
    assert [layer.sizes.key_heads for layer in smaller.removal.layers] == [2, 2]
    assert smaller.save(tmp_path / "out")["form"] == "plain"
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (2, 2, 8)


def test_a_study_ranks(tmp_path: Path) -> None:
    model = tiny.model("bert")
    study = headscope.study(model, TEXTS, length=16)
    study.save(tmp_path / "study.nc")
    by_object, by_path = (
        headscope.prune(model, keep=4, by="pairs", study=source) for source in (study, tmp_path / "study.nc")
    )
    least_pairs = sorted(np.argsort(study.data["pairs"].values, axis=None, kind="stable")[:4].tolist())
    assert (
        [f"L{k // 4}H{k % 4}" for k in least_pairs]
        == by_object.manifest["heads_removed"]
        == by_path.manifest["heads_removed"]
    )
    with pytest.raises(StudyError, match="reads no study"):
        headscope.prune(model, keep=4, by="norm", study=study)
    with pytest.raises(StudyError, match="study this model"):
        headscope.prune(tiny.model("bert", seed=1), keep=4, by="pairs", study=study)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of the two"), ({"heads": "L0H0", "keep": 2}, "one of the two"),
        ({"keep": "100%"}, "no head is to be"),
        ({"heads": []}, "no head is to be"), ({"keep": 4, "by": "beauty"}, "unknown ranking 'beauty'"),
        ({"keep": 4, "by": "norm", "limit": 0, "length": 16}, "limit is 0"), ({"heads": "L9H0"}, "layer 9: "),
    ],
)  # fmt: skip
def test_what_cannot_be_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        headscope.prune(tiny.model("bert"), **{"by": "random", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"heads": "L0H1,first"}, {"heads": "L0H1", "how": "gently"}, {"keep": 4, "by": "beauty"}, {"keep": "much"},
        {"heads": "L0H1", "length": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_fits_no_model_is_refused_before_one_is_loaded(options: dict[str, Any]) -> None:
    with pytest.raises(StudyError):
        headscope.prune("no/such/model", **options)


def test_a_whole_layer_is_masked() -> None:
    smaller = headscope.prune(tiny.model("bert"), ["L1"], how="mask")
    assert smaller.manifest["heads_removed"] == ["L1H0", "L1H1", "L1H2", "L1H3"]


def test_a_model_that_brings_its_own_code_is_not_saved(tmp_path: Path) -> None:
    network = tiny.network("bert")
    network.__class__ = type("Own", (type(network),), {})
    smaller = headscope.prune(headscope.load(network, tiny.tokenizer()), "L0H1")
    with pytest.raises(ModelError, match="code of its own"):
        smaller.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())

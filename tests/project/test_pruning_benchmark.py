"""The benchmarks of noise and pruning run, and their statistics are correct."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import tiny

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import noise  # noqa: E402
import pruning  # noqa: E402


def test_ranks_share_what_is_equal():
    assert pruning.ranked(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_rank_correlation_worked_by_hand():
    assert pruning.correlation(np.array([1, 2, 3, 4]), np.array([1, 4, 9, 16])) == pytest.approx(1)
    assert pruning.correlation(np.array([1, 2, 3, 4]), np.array([4, 3, 2, 1])) == pytest.approx(-1)
    # Ranks 1 2 3 4 and 2 1 4 3: 1 − 6·4 / (4·15) = 0.6.
    assert pruning.correlation(np.array([1, 2, 3, 4]), np.array([20, 10, 40, 30])) == pytest.approx(0.6)
    assert pruning.correlation(np.ones(4), np.arange(4)) == 0
    low, high = pruning.interval(np.arange(30.0), np.arange(30.0))
    assert low == high == pytest.approx(1)


def test_heads_are_ranked_and_removed_on_different_texts(tmp_path: Path):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"Text {k}."}) + "\n" for k in range(12)), encoding="utf-8")
    first, second = pruning.halves(str(texts), 3)
    halves = [[document.text for document in half] for half in (first, second)]
    assert halves == [["Text 0.", "Text 4.", "Text 8."], ["Text 2.", "Text 6.", "Text 10."]]


def test_pruning_measures_every_ranking(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = tmp_path / "texts.jsonl"
    lines = [f"The {animal} met a raven. The raven flew away." for animal in ("cat", "dog", "fox", "owl")]
    texts.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines), encoding="utf-8")
    output = tmp_path / "made.json"
    few = ["--windows", "2", "--length", "16", "--draws", "2", "--steps", "2", "--device", "cpu"]
    folder = tmp_path / "small"
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    pruning.main(["--model", str(folder), "--texts", str(texts), *few, "--json", str(output)])
    result = json.loads(output.read_text(encoding="utf-8"))
    results = result["models"]["small"]
    shape = tiny.model("bert").architecture
    assert (results["objective"], results["texts"]) == ("embedding distance", 2)
    assert (results["layers"], results["heads"]) == (shape.layers, shape.heads)
    assert {"signal-share", "gradient", "ablation", "greedy", "norm", "signal power"} <= set(results["rankings"])
    for ranking in results["rankings"].values():
        for curve in ranking["curves"].values():
            assert len(curve) == len(result["shares"])
            assert curve[0] == pytest.approx(0, abs=1e-6)
            assert curve[-1] > 1e-4
    assert -1 <= results["rankings"]["gradient"]["correlation"] <= 1
    assert len(results["random"]) == 2
    assert "random, best of all" in capsys.readouterr().out

    same = ["--model", str(folder), "--texts", str(texts), *few, "--update", str(output)]
    with pytest.raises(SystemExit, match="1 windows, and 2 in the earlier result"):
        pruning.main([*same, "--windows", "1"])
    del results["rankings"]["signal-share"], results["rankings"]["position share"]["curves"]
    output.write_text(json.dumps(result), encoding="utf-8")
    pruning.main([*same, "--only", "signal-share", "--check", "gradient"])
    updated = json.loads(output.read_text(encoding="utf-8"))["models"]["small"]
    assert updated["added"]["check"]["largest_difference"] < 1e-6
    assert set(updated["rankings"]["signal-share"]["curves"]) == {"zero", "mean"}
    assert "curves" not in updated["rankings"]["position share"]
    assert updated["rankings"]["gradient"] == results["rankings"]["gradient"]


def test_noise_recovers_what_was_planted():
    cases = noise.recovered(noise.windows_of(40))
    for case in cases:
        assert abs(case["signal_share"] - case["planted"]) <= 0.2 * case["planted"] + 3 * case["signal_share_error"]
    (covered, *_) = noise.covered(noise.windows_of(40), 20)
    assert covered["within"][1] > 0.8

"""Retrieval and streaming heads, and the files that KV-cache tools read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from headscope.errors import StudyError
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import TallySettings
from tests.helpers.synthetic import study_of, tally, window

N, HEADS = 100, 4


def make_maps() -> torch.Tensor:
    """Head 0 looks at the first token, head 1 at the query itself, head 2 at token 10, head 3 half at each of these."""
    maps = torch.zeros(1, HEADS, N, N, dtype=torch.float64)
    maps[0, 0, :, 0] = 1
    maps[0, 1] = torch.eye(N)
    maps[0, 2] = torch.eye(N)
    maps[0, 2, 80:] = 0
    maps[0, 2, 80:, 10] = 1
    maps[0, 3] = (maps[0, 1] + maps[0, 2]) / 2
    return maps


def make_study(causal: bool = True, length: int = N) -> Study:
    shape = Shape(2, HEADS, length, width=2)
    output, maps = torch.ones(1, length, HEADS, 2).double(), make_maps()[:, :, :length, :length]
    counting = TallySettings(shape, 0.3, 0.3, 1.0, causal)
    sums = tally("torch", counting, [window([7] * length)], [output, output], [maps, maps.flip(1)])
    return study_of(sums, causal=int(causal))


def test_heads_that_look_far_back_have_high_scores(tmp_path: Path):
    """Of queries 68 to 99, the last 20 look at token 10 from beyond 64 tokens."""
    share = 20 / 32
    study = make_study()
    scores = [0, 0, share, share / 2]
    np.testing.assert_allclose(study.retrieval_scores(), [scores, scores[::-1]])
    folder = study.write_cache_policy(tmp_path / "new" / "policy")
    # as DuoAttention reads them
    read = np.loadtxt(folder / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    np.testing.assert_allclose(read, [scores, scores[::-1]], atol=1e-6)
    assert json.loads((folder / "config.json").read_text()) == {"sink_size": 4, "recent_size": 64}


def test_heads_that_share_keys_have_the_largest_score():
    study = make_study()
    np.testing.assert_allclose(study.retrieval_scores(2), [[0, 20 / 32], [20 / 32, 0]])
    for count in (0, 3, 8):
        with pytest.raises(StudyError, match=f"4 heads cannot share {count} heads of keys"):
            study.retrieval_scores(count)


def test_what_has_no_scores_is_said(tmp_path: Path):
    with pytest.raises(StudyError, match="a cache is kept by decoders only: synthetic looks at all tokens"):
        make_study(causal=False).retrieval_scores()
    with pytest.raises(StudyError, match=r"no text has more than 68 tokens.*--length"):
        make_study(length=68).write_cache_policy(tmp_path)
    with pytest.raises(StudyError, match="of all heads of a model"):
        make_study().select(layers=0).write_cache_policy(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="cannot be made a folder"):
        make_study().write_cache_policy(tmp_path / "file")
    old = make_study()
    old.data = old.data.drop_vars([name for name in old.data if str(name).startswith(("attends_", "attention_e"))])
    with pytest.raises(StudyError, match="did not measure attention scores: run it again"):
        old.write_cache_policy(tmp_path)
    assert old.heads()["attends_first"].isna().all()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

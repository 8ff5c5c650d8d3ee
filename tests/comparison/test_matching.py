"""Match heads of two models: a copy whose heads changed places, models of other tokens, and the assignment itself."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

import headscope
from headscope.comparison.assignment import assign_rows
from headscope.model.loading import load
from tests.helpers import tiny

TEXTS = ["the cat sat. the dog ran!", "a b c d e f g", "who, me? the one.", "the end of the day, the end"]
ORDER = [2, 0, 3, 1]
"""old numbers of the heads of the permuted copy"""


def permute_heads(network: torch.nn.Module) -> None:
    """Let the heads of every layer of a BERT change places; the function of the model stays the same."""
    for layer in network.encoder.layer:
        attention, width = layer.attention, tiny.WIDTH // tiny.HEADS
        rows = [head * width + k for head in ORDER for k in range(width)]
        with torch.no_grad():
            for name in ("query", "key", "value"):
                linear = getattr(attention.self, name)
                linear.weight.copy_(linear.weight[rows].clone())
                linear.bias.copy_(linear.bias[rows].clone())
            dense = attention.output.dense
            dense.weight.copy_(dense.weight[:, rows].clone())


def test_a_copy_with_permuted_heads_is_matched_perfectly():
    network = tiny.network("bert")
    permute_heads(network)
    match = headscope.match_heads(tiny.model("bert"), load(network, tiny.tokenizer()), TEXTS, length=16)
    table = match.table.set_index("head")
    expected = {f"L{layer}H{old}": f"L{layer}H{new}" for layer in range(2) for new, old in enumerate(ORDER)}
    assert table["other"].to_dict() == table["best"].to_dict() == expected
    np.testing.assert_allclose(table["correlation"], 1, atol=1e-5)
    assert match.texts == 4
    assert "8 of 8 heads, 4 texts" in repr(match)


def test_a_model_matched_with_itself_is_what_a_study_measures():
    model = tiny.model("bert")
    match = headscope.match_heads(model, model, TEXTS, length=16, batch_size=2)
    study = headscope.study(model, TEXTS, length=16)
    np.testing.assert_allclose(match.similarity, study.head_similarity(), atol=1e-5)
    assert match.similarity.dims == study.head_similarity().dims


def test_a_smaller_model_leaves_heads_without_a_match():
    small = tiny.model("bert", num_hidden_layers=1)
    match = headscope.match_heads(tiny.model("bert"), small, TEXTS, length=16)
    assert sorted(filter(None, match.table["other"])) == ["L0H0", "L0H1", "L0H2", "L0H3"]
    assert match.table["correlation"].notna().sum() == 4
    assert match.similarity.shape == (2, 4, 1, 4)


def test_models_that_read_other_tokens_are_refused():
    words = [word for word in tiny.VOCABULARY if word != "the"]
    other = load(tiny.network("bert", vocab_size=len(words)), tiny.tokenizer(words))
    with pytest.raises(headscope.StudyError, match=r"read different tokens.*text 1 differs, 'the' and 't'. Both need"):
        headscope.match_heads(tiny.model("bert"), other, TEXTS, length=16)
    with pytest.raises(headscope.StudyError, match="no text to run"):
        headscope.match_heads(tiny.model("bert"), other, [""], length=16)


@pytest.mark.parametrize("seed", range(30))
def test_the_assignment_is_the_best_of_all(seed: int):
    random = np.random.default_rng(seed)
    rows, columns = random.integers(1, 6, 2)
    gains = np.round(random.normal(size=(rows, columns)), seed % 3)
    assigned = assign_rows(gains)
    used = assigned[assigned >= 0].tolist()
    assert len(used) == len(set(used)) == min(rows, columns)
    tall = gains if rows <= columns else gains.T
    best = max(
        sum(tall[k, column] for k, column in enumerate(order))
        for order in permutations(range(tall.shape[1]), len(tall))
    )
    assert sum(gains[row, column] for row, column in enumerate(assigned) if column >= 0) == pytest.approx(best)

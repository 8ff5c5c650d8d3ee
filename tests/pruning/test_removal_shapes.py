"""Removing heads where shapes need other heads than those requested: empty layers, and heads that share their keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headscope.model.head_surgery import Sizes
from headscope.model.model import Model
from headscope.pruning.removal import DividedWeight, _pad_groups, _select_with_own_keys, remove
from tests.helpers import tiny
from tests.helpers.pruning import compute_error, run_silenced
from tests.helpers.removed_heads import NEAR


def test_a_layer_without_heads_keeps_a_silent_one() -> None:
    model = tiny.model("bert")
    heads = [(0, head) for head in range(4)]
    removal = remove(model, heads)
    assert (removal.layers[0].silent, removal.layers[0].sizes.heads) == ((0,), 1)
    dense = removal.network.encoder.layer[0].attention.output.dense
    assert dense.weight.shape == (32, 8)
    assert not dense.weight.any()
    inputs = tiny.batch(7, 3)
    assert compute_error(run_silenced(model, heads, inputs), tiny.run(removal.network, inputs), inputs) <= NEAR


def make_grouped_model(kind: str = "llama", **options: int) -> Model:
    """Return a model with nine heads, three on each key head, like SmolLM2."""
    sizes = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 4, "hidden_size": 36}
    return tiny.model(kind, **{**sizes, **options})


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi3"])
@pytest.mark.parametrize(
    ("removed", "heads", "keys", "silent"),
    [
        ((0, 1, 2), 6, 2, ()),  # a key head without heads is removed too
        ((0, 4, 8), 6, 3, ()),  # groups of two
        ((0, 1, 4, 8), 6, 3, (0,)),  # 1, 2 and 2 are left: one stays as a silent head
        ((0, 1, 2, 3, 4, 5, 6), 2, 1, ()),
        ((0, 1, 3, 4), 5, 5, ()),  # 1, 1 and 3: groups of three would be all nine, so each gets keys of its own
    ],
)
def test_grouped_heads(kind: str, removed: tuple[int, ...], heads: int, keys: int, silent: tuple[int, ...]) -> None:
    model = make_grouped_model(kind)
    pairs = [(0, head) for head in removed]
    removal = remove(model, pairs)
    assert removal.layers[0].how == "removed"
    assert removal.layers[0].sizes == Sizes(heads, keys, 4)
    assert removal.layers[0].silent == silent
    inputs = tiny.batch(9, 5)
    assert compute_error(run_silenced(model, pairs, inputs), tiny.run(removal.network, inputs), inputs) <= NEAR


def test_keys_are_doubled_row_by_row() -> None:
    model = make_grouped_model()
    full = model.network.layers[0].self_attn.k_proj.weight
    remaining = remove(model, "L0H0,L0H1,L0H3,L0H4").network.layers[0].self_attn.k_proj.weight
    rows = [*range(4), *range(4, 8), *range(8, 12), *range(8, 12), *range(8, 12)]  # of heads 2, 5, 6, 7, 8
    assert torch.equal(remaining, full[rows])


def test_what_makes_nothing_smaller_is_not_done() -> None:
    removal = remove(make_grouped_model(), "L0H0")
    assert (removal.layers[0].how, removal.layers[0].silent) == ("masked", (0,))
    assert "would not get smaller" in removal.layers[0].why


def test_equal_groups_by_hand() -> None:
    groups = (frozenset({0, 1, 2}), frozenset({3, 4, 5}))
    assert _pad_groups([0, 4, 5], groups) == (0, 1, 4, 5)
    assert _pad_groups([3, 5], groups) == (3, 5)
    assert _pad_groups([3, 5], ()) == (3, 5)


def test_own_keys_in_a_fused_map_by_hand() -> None:
    """Two heads on one key head: q0 q1 k v. Each head gets k and v of its own, in the order of the heads."""
    users = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 0]], dtype=bool)  # no head uses the last index
    assert _select_with_own_keys(DividedWeight("qkv.weight", 0, users[:, :4]), (1,)) == [1, 2, 3]
    grouped_users = np.array(
        [[1, 0, 0, 0, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0, 1], [0, 0, 0, 1, 0, 1, 0, 1]]
    )
    divided = DividedWeight("qkv.weight", 0, grouped_users.astype(bool))
    assert _select_with_own_keys(divided, (0, 1, 3)) == [0, 1, 3, 4, 4, 5, 6, 6, 7]

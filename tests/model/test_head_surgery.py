"""Numbers in modules that depend on the heads."""

from __future__ import annotations

import pytest

from headscope.model.head_surgery import Sizes, update_number


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("num_heads", 4, 3), ("n_head", 4, 3), ("num_attention_heads", 4, 3), ("all_head_size", 32, 24),
        ("embed_dim", 32, 24), ("attention_head_size", 8, 8), ("head_dim", 4, 4), ("layer_idx", 4, 4),
        ("num_key_value_heads", 2, 1), ("num_key_value_heads", 4, 4), ("kv_dim", 16, 8), ("num_key_value_groups", 2, 3),
        ("num_key_value_groups", 4, 3), ("sliding_window", 4, 4), ("hidden_size", 31, 31),
    ],
)  # fmt: skip
def test_numbers_are_known_by_name_and_value(name: str, value: int, becomes: int) -> None:
    assert update_number(name, value, Sizes(4, 2, 8), Sizes(3, 1, 8)) == becomes

"""The reading of five tokens and two heads that is worked out in tests/readings/test_reading.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope import Reading

TOKENS = ["[CLS]", "a", ".", "a", "[SEP]"]


IDS = [1, 7, 4, 7, 2]


SPECIAL = [True, False, False, False, True]


HEADS = [[[1, 0], [2, 0], [0, 1], [2, 1], [0, -1]], [[0, 1], [0, 0], [0, 2], [0, 0], [0, 1]]]


MAPS = [
    [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0], [0.5, 0, 0.25, 0.25, 0], [0.5, 0, 0, 0, 0.5]],
    [[0.25, 0, 0, 0, 0.75], [0, 0.25, 0, 0, 0.75], [0, 0, 0.25, 0, 0.75], [0, 0, 0, 0.25, 0.75], [0, 0, 0, 0, 1]],
]


def make_reading(heads: Any, maps: Any = None, tokens: list[str] | None = None, **options: Any) -> Reading:
    """Return a reading of one layer, from the outputs (head, position, width)."""
    outputs = np.array(heads, dtype=float).transpose(1, 0, 2)[None]
    labels = TOKENS[: outputs.shape[1]] if tokens is None else tokens
    return Reading.from_arrays(labels, outputs, None if maps is None else np.array(maps)[None], **options)

"""Sums over attention maps, computed in one pass over every map."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.numba_backend.jit import compiled


@compiled()
def add_attention_sums(
    attention: Any, start: int, texts: Any, offset_sums: Any, map_sums: Any, received: Any, near_attention: Any
) -> None:
    """Add the maps (text, head, query, key) of the texts from `start` on to a layer's sums by offset (block, head,
    offset) and by position (head, query, key).

    Set for each text and head what every key receives in all (text, head, key), and what it receives from the query
    before it, from itself, and from the query after it (text, head, 3, key).
    """
    center = (offset_sums.shape[2] - 1) // 2
    for head in range(attention.shape[1]):
        for row in range(attention.shape[0]):
            text, head_map = start + row, attention[row, head]
            n = texts.lengths[text]
            _add_map(
                head_map,
                n,
                offset_sums[texts.blocks[text], head, center - (n - 1) : center + n],
                map_sums[head],
                received[text, head],
            )
            for key in range(n):
                for step in range(3):
                    query = key + step - 1
                    near_attention[text, head, step, key] = head_map[query, key] if 0 <= query < n else 0


@compiled()
def _add_map(head_map: Any, n: int, offset_sums: Any, map_sums: Any, received: Any) -> None:
    by_offset = np.zeros(2 * n - 1, np.float64)
    for i in range(n):
        row, diagonal = head_map[i], by_offset[n - 1 - i :]
        for j in range(n):
            value = np.float64(row[j])
            diagonal[j] += value
            received[j] += value
        if len(map_sums):
            sum_row = map_sums[i]
            for j in range(n):
                sum_row[j] += np.float64(row[j])
    for k in range(2 * n - 1):
        offset_sums[k] += by_offset[k]


@compiled()
def add_heads(attention: Any, n: int, head_sum: Any) -> None:
    """Add a text's maps (head, query, key) to their sum over heads (query, key)."""
    for head in range(len(attention)):
        for query in range(n):
            row, sum_row = attention[head, query, :n], head_sum[query, :n]
            for key in range(row.size):
                sum_row[key] += np.float64(row[key])

"""What attention adds up to: every map is read once."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.tally.compiled.compiling import compiled


@compiled()
def add_attention(attention: Any, start: int, texts: Any, offsets: Any, maps: Any, columns: Any, beside: Any) -> None:
    """Add maps (text, head, query, key) of the texts from `start` on to a layer's sums by offset (block, head, offset)
    and by place (head, query, key).

    Says of each text and head what every key gets in all (text, head, key), and of that from the query before it, from
    itself, and from the one after (text, head, 3, key).
    """
    middle = (offsets.shape[2] - 1) // 2
    for head in range(attention.shape[1]):
        for k in range(attention.shape[0]):
            text, held = start + k, attention[k, head]
            n = texts.lengths[text]
            _add(
                held,
                n,
                offsets[texts.blocks[text], head, middle - (n - 1) : middle + n],
                maps[head],
                columns[text, head],
            )
            for key in range(n):
                for step in range(3):
                    query = key + step - 1
                    beside[text, head, step, key] = held[query, key] if 0 <= query < n else 0


@compiled()
def _add(attention: Any, n: int, offsets: Any, maps: Any, columns: Any) -> None:
    by_offset = np.zeros(2 * n - 1, np.float64)
    for i in range(n):
        row, diagonal = attention[i], by_offset[n - 1 - i :]
        for j in range(n):
            value = np.float64(row[j])
            diagonal[j] += value
            columns[j] += value
        if len(maps):
            kept = maps[i]
            for j in range(n):
                kept[j] += np.float64(row[j])
    for k in range(2 * n - 1):
        offsets[k] += by_offset[k]


@compiled()
def add_heads(attention: Any, n: int, summed: Any) -> None:
    """Add a text's maps (head, query, key) up to one (query, key)."""
    for head in range(len(attention)):
        for query in range(n):
            row, kept = attention[head, query, :n], summed[query, :n]
            for key in range(row.size):
                kept[key] += np.float64(row[key])

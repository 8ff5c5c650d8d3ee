"""The choice of examples in plain loops: the definition in code (docs/method.md, "Examples"). See `examples.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope import similarity as equations
from headscope.array_types import Floats
from headscope.corpus.windows import Window
from headscope.tally.example_store import (
    LEVELS,
    MIN_PAIRS,
    NEIGHBORS,
    RATES,
    SKETCH,
    STRONGEST,
    STRONGEST_PAIRS,
    ExampleStore,
    keep_ids,
)
from headscope.tally.quantities import MAX_PLACES, Shape


@dataclass(frozen=True)
class HeadRecord:
    """One head in one window of the sample."""

    window: Window
    layer: int
    head: int
    counts: tuple[int, ...]
    """in the order of `examples.COUNTS`"""
    pairs: list[tuple[int, int, int]]
    """the strongest pairs (i, j, similarity in 1/255 of the largest), the strongest first"""

    def compute_rate(self, rate: int) -> float:
        """Return a rate, by its number in `examples.RATES`."""
        return self.counts[1 + rate] / self.counts[0]


def describe_head(window: Window, layer: int, head: int, output: Floats, theta: float) -> HeadRecord:
    """Return what an example says of a head, given what it writes in a window (position, width)."""
    matrix = equations.compute_similarity(output)
    pairs = equations.list_pairs(equations.mark_high(matrix, theta))
    equal = sum(window.ids[i] == window.ids[j] for i, j in pairs)
    same = sum(window.sentence[i] == window.sentence[j] for i, j in pairs)
    near = sum(j - i <= NEIGHBORS for i, j in pairs)
    dominant = equations.find_dominant(pairs, window.ids)
    counts = (len(pairs), equal, same, near, dominant[1] if dominant else 0, sum(j - i for i, j in pairs))
    shown = [(i, j) for i, j in pairs if j < MAX_PLACES]
    levels = {(i, j): min(max(int(np.rint(LEVELS * matrix[i, j] / matrix.max())), 1), LEVELS) for i, j in shown}
    strongest = sorted(shown, key=lambda pair: (-levels[pair], pair))[:STRONGEST_PAIRS]
    return HeadRecord(window, layer, head, tuple(map(int, counts)), [(i, j, levels[i, j]) for i, j in strongest])


def choose_examples(records: list[HeadRecord], shape: Shape) -> ExampleStore:
    """Return the examples among the records of all windows of the sample."""
    store = ExampleStore(shape.layers, shape.heads)
    by_place = {(record.layer, record.head, record.window.digest): record for record in records}
    windows = {record.window.digest: record.window for record in records}
    sketch = sorted(windows)[:SKETCH]
    store.sketch_digests = np.array(sketch, np.uint64)
    store.sketch_counts = np.zeros((len(sketch), *store.sketch_counts.shape[1:]), np.int64)
    store.sketch_keys = np.full((len(sketch), *store.sketch_keys.shape[1:]), -1, np.int32)
    used = set(sketch)
    for layer in range(shape.layers):
        for head in range(shape.heads):
            for k, digest in enumerate(sketch):
                record = by_place[layer, head, digest]
                store.sketch_counts[k, layer, head] = record.counts
                _set_keys(store.sketch_keys[k, layer, head], record)
            for rate in range(len(RATES)):
                candidates = [by_place[layer, head, digest] for digest in windows]
                candidates = [record for record in candidates if record.counts[0] >= MIN_PAIRS]
                candidates.sort(key=lambda r: (-r.compute_rate(rate), -r.counts[0], r.window.digest))
                for k, record in enumerate(candidates[:STRONGEST]):
                    store.top_digests[layer, head, rate, k] = record.window.digest
                    store.top_counts[layer, head, rate, k] = record.counts
                    _set_keys(store.top_keys[layer, head, rate, k], record)
                    used.add(record.window.digest)
    store.windows = {digest: keep_ids(windows[digest]) for digest in sorted(used)}
    return store


def _set_keys(keys: np.ndarray[tuple[int], np.dtype[np.int32]], record: HeadRecord) -> None:
    """Store the pairs of a record as numbers, see `examples.decode_pairs`."""
    for k, (i, j, level) in enumerate(record.pairs):
        keys[k] = level * 65536 + 65535 - (i * 256 + j)

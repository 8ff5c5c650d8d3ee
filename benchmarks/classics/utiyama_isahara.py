"""The most probable segmentation, where every segment draws its words from a distribution of its own.

M. Utiyama & H. Isahara 2001, A statistical model for domain-independent text segmentation, ACL. With n words in the
text, k different ones, and n_i in segment i, of which f_i(w) are the word w, the cost of a segment is

    Σ over its words of log (n_i + k) / (f_i(w) + 1)  +  log n

the first from probabilities smoothed by one more of each word (Laplace), the second from a prior n^−m on m segments.
Costs add, so the cheapest of all segmentations is found exactly, by dynamic programming over where the last one
starts. With m known the prior is the same for all, and the cheapest with m segments is found over m as well.
"""

from __future__ import annotations

import numpy as np

from classics.words import check, numbered
from headscope.array_types import Floats, Ints


def segment(sentences: list[str], count: int | None = None) -> list[int]:
    """The boundaries of the cheapest segmentation, of all or of those with `count` segments."""
    n = len(sentences)
    check(count, n)
    if n == 0:
        return []
    rows = numbered(sentences)
    price = costs(rows)
    words = sum(len(row) for row in rows)
    if count is None:
        return cheapest(price + np.log(max(words, 1)))
    return cheapest_of(price, count)


def costs(rows: list[Ints]) -> Floats:
    """The cost of the words of segment [i, j) at [i, j]; infinite where that is no segment, i ≥ j.

    A segment's words cost n_i log (n_i + k) − Σ_w f log (f + 1). The sum grows with every word by what its f-th
    occurrence within the segment adds, so one pass over the words gives it for all ends of segments from one start.
    """
    n = len(rows)
    words = np.concatenate(rows)
    ends = np.cumsum([0, *(len(row) for row in rows)])
    k = int(words.max()) + 1 if len(words) else 0
    earlier = _earlier(words)
    times = np.arange(len(words) + 2)
    added = np.diff(times * np.log(times + 1))  # at f − 1: what the f-th occurrence adds
    seen = np.zeros(k, dtype=np.int64)  # occurrences before the start
    price = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        inside = slice(ends[start], None)
        sums = np.concatenate([[0.0], np.cumsum(added[earlier[inside] - seen[words[inside]]])])
        sizes = ends[start + 1 :] - ends[start]
        price[start, start + 1 :] = sizes * np.log(np.maximum(sizes + k, 1)) - sums[sizes]
        np.add.at(seen, rows[start], 1)
    return price


def _earlier(words: Ints) -> Ints:
    """How often each word has been there before."""
    order = np.argsort(words, kind="stable")
    firsts = np.searchsorted(words[order], words[order])
    times = np.empty(len(words), dtype=np.int64)
    times[order] = np.arange(len(words)) - firsts
    return times


def cheapest(price: Floats) -> list[int]:
    """The boundaries of the path from 0 to n of the least total price."""
    n = len(price) - 1
    best, start_of = np.zeros(n + 1), np.zeros(n + 1, dtype=np.int64)
    for end in range(1, n + 1):
        totals = best[:end] + price[:end, end]
        start_of[end] = np.argmin(totals)
        best[end] = totals[start_of[end]]
    found, end = [], int(start_of[n])
    while end > 0:
        found.append(end)
        end = int(start_of[end])
    return found[::-1]


def cheapest_of(price: Floats, count: int) -> list[int]:
    """The boundaries of the path from 0 to n with `count` steps of the least total price."""
    n = len(price) - 1
    best = price[0]  # of one segment up to every end
    starts = []
    for _ in range(1, count):
        totals = best[:, None] + price
        starts.append(np.argmin(totals, axis=0))
        best = totals[starts[-1], np.arange(n + 1)]
    found, end = [], n
    for start_of in reversed(starts):
        end = int(start_of[end])
        found.append(end)
    return found[::-1]

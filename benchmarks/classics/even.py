"""Segmenters that do not read: boundaries at even distances, and at random. What they reach is for nothing."""

from __future__ import annotations

import zlib

import numpy as np

from classics.words import check

LENGTH = 7
"""sentences of a segment where their number is unknown: the mean of Choi's 3 to 11, a guess that suits his texts"""


def segment(sentences: list[str], count: int | None = None) -> list[int]:
    """Segments of one length, or of two that differ by a sentence; without a count, as near to `LENGTH` as it goes.

    >>> segment(["…"] * 10, 4)
    [2, 5, 8]
    """
    n = len(sentences)
    check(count, n)
    if count is None:
        count = max(round(n / LENGTH), 1)
    return [round(part * n / count) for part in range(1, count)]


def at_random(sentences: list[str], count: int | None = None, seed: int = 0) -> list[int]:
    """Any boundaries of that number with equal chance; without a count, each gap is one with a chance of 1 / `LENGTH`.

    The same text is always cut the same, and another one otherwise, by the seed.
    """
    n = len(sentences)
    check(count, n)
    random = np.random.default_rng([seed, zlib.crc32("\n".join(sentences).encode())])
    gaps = np.arange(1, n)
    if count is None:
        chosen = gaps[random.random(len(gaps)) < 1 / LENGTH]
    else:
        chosen = np.sort(random.choice(gaps, count - 1, replace=False)) if count > 1 else gaps[:0]
    return [int(gap) for gap in chosen]

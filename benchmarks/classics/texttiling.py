"""TextTiling: a subject ends where the words before a gap are least like those after it.

M. A. Hearst 1997, TextTiling: segmenting text into multi-paragraph subtopic passages, Computational Linguistics 23.
Every gap is scored by the cosine of the stem counts of the blocks on both sides. How deep the score lies below the
peaks to its left and right says how much changes there, and the deepest valleys are the boundaries.

Hearst cuts a text into sequences of 20 words, which scores see as units, and moves boundaries to the next paragraph.
Here sentences are given, of about that length, and serve as the units, so that nothing needs to be moved. Her
smoothing of the scores is left out: it is meant for many small units, and with sentences it smooths segments away
(Pk of 24 % rather than 16 % on Choi's texts with the count known).
"""

from __future__ import annotations

import numpy as np

from classics.words import check, counted
from headscope.array_types import Bools, Floats, Ints

BLOCK = 6
"""sentences on each side of a gap, or as many as there are. Hearst takes 10 units; Choi's segments are shorter, and of
3 to 10 this does best on them."""
BETWEEN = 3
"""sentences that a segment has at least, as Hearst has at least three units between boundaries"""


def segment(sentences: list[str], count: int | None = None) -> list[int]:
    """The deepest valleys, as many as asked for, or all deeper than their mean less half a standard deviation.

    Gaps on slopes take no part in mean and deviation: a short text has many, and they lower the cutoff too far.
    """
    n = len(sentences)
    check(count, n)
    if n < 2:
        return []
    depth, valley = depths(scores(counted(sentences)))
    order = sorted(range(n - 1), key=lambda gap: (not valley[gap], -depth[gap]))
    if count is None:
        cutoff = depth[valley].mean() - depth[valley].std() / 2
        deep = [gap for gap in order if valley[gap] and depth[gap] > 0 and depth[gap] >= cutoff - 1e-12]
        return sorted(gap + 1 for gap in apart(deep, n))
    spaced = apart(order, count - 1)
    # more segments than fit apart: then also such as are short
    chosen = spaced + [gap for gap in order if gap not in spaced][: count - 1 - len(spaced)]
    return sorted(gap + 1 for gap in chosen)


def scores(counts: Ints, block: int = BLOCK) -> Floats:
    """The cosine of the blocks before and after each gap; 0 where one of them has no words."""
    n = len(counts)
    gaps = np.arange(1, n)
    up_to = np.concatenate([np.zeros((1, counts.shape[1]), dtype=np.int64), counts.cumsum(axis=0)])
    before = up_to[gaps] - up_to[np.maximum(gaps - block, 0)]
    after = up_to[np.minimum(gaps + block, n)] - up_to[gaps]
    lengths = np.sqrt((before**2).sum(axis=1) * (after**2).sum(axis=1))
    return (before * after).sum(axis=1) / np.maximum(lengths, 1)


def depths(heights: Floats) -> tuple[Floats, Bools]:
    """How far each gap lies below the peaks on both sides, summed, and whether it is the lowest between them.

    From a gap one climbs to either side for as long as it does not go down; on a slope, one side rises nothing.

    >>> depth, valley = depths(np.array([5.0, 2.0, 3.0, 1.0, 4.0]))
    >>> depth.tolist(), valley.tolist()
    ([0.0, 4.0, 0.0, 5.0, 0.0], [False, True, False, True, False])
    """
    n = len(heights)
    peaks = np.zeros((2, n))
    for side, ordered in enumerate((heights, heights[::-1])):
        for gap in range(n):
            climbs = gap > 0 and ordered[gap - 1] >= ordered[gap]
            peaks[side, gap] = peaks[side, gap - 1] if climbs else ordered[gap]
    rising = np.diff(heights)
    valley = np.append(True, rising <= 0) & np.append(rising >= 0, True)
    return peaks[0] + peaks[1, ::-1] - 2 * heights, valley


def apart(order: list[int], most: int) -> list[int]:
    """The first gaps in this order, but none that leaves fewer than `BETWEEN` sentences to one before it."""
    chosen: list[int] = []
    for gap in order:
        if len(chosen) == most:
            break
        if all(abs(gap - other) >= BETWEEN for other in chosen):
            chosen.append(gap)
    return chosen

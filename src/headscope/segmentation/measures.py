"""How far a segmentation is from the true one: Pk and WindowDiff, both 0 where they agree and at most 1.

A text of n sentences is cut by `boundaries`, rising numbers b with 0 < b < n: a segment starts at sentence b. Both
measures slide a probe of k sentences over the text and look at sentences i and i + k, for every i of the n − k that
fit. Single boundaries are not matched, so that one found a sentence off is worth more than one that is missed.

    Pk           the share of probes whose two ends lie in one segment by one segmentation and in two by the other
                 (Beeferman, Berger & Lafferty 1999, Statistical models for text segmentation, Machine Learning 34)
    WindowDiff   the share of probes that pass another number of boundaries in one segmentation than in the other
                 (Pevzner & Hearst 2002, A critique and improvement of an evaluation metric for text segmentation,
                 Computational Linguistics 28)

What the papers leave open, the shortest window and how halves are rounded, is done as the library `segeval` 2.0 does
it, and its defaults give the same numbers. nltk's functions make the same n − k probes when given a mark for each of
the n − 1 gaps, and one more when given one for each of the n sentences; its own k divides by the number of boundaries
rather than of segments, which makes it longer, and it has no shortest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.errors import StudyError
from headscope.types import Ints

SHORTEST = 2
"""sentences of a window by default; at 1 both measures only count gaps that differ, and a near miss is two errors"""


def pk(reference: Sequence[int] | Ints, found: Sequence[int] | Ints, n: int, window: int | None = None) -> float:
    """The share of probes for which one segmentation has a boundary between the two ends, and the other has none.

    The window is by default that of the reference (`window_of`). Where no probe fits, n ≤ k, there is nothing in
    between: 0 where the segmentations are equal, and 1 where they are not.

    >>> pk([4], [5], 8, window=2)  # of six probes, 2→4 passes the true boundary only, and 4→6 the found one only
    0.3333333333333333
    """
    passed = _passed(reference, found, n, window)
    if passed is None:
        return float(not np.array_equal(reference, found))
    true, claimed = passed
    return float(np.mean((true > 0) != (claimed > 0)))


def window_diff(
    reference: Sequence[int] | Ints, found: Sequence[int] | Ints, n: int, window: int | None = None
) -> float:
    """The share of probes that pass another number of boundaries in one segmentation than in the other.

    It is never below Pk: probes that differ in whether there is a boundary differ in how many there are. The window,
    and texts that are too short for it, are as for Pk.

    >>> window_diff([4], [4, 5], 8, window=2)  # 3→5 passes two for one, 4→6 one for none; Pk sees only the second
    0.3333333333333333
    """
    passed = _passed(reference, found, n, window)
    if passed is None:
        return float(not np.array_equal(reference, found))
    true, claimed = passed
    return float(np.mean(true != claimed))


def window_of(reference: Sequence[int] | Ints, n: int) -> int:
    """Half of the mean length of the reference's segments, rounded (a half to the even number), and at least 2.

    >>> window_of([5, 12], 20), window_of([], 10), window_of([1, 2, 3], 4)
    (3, 5, 2)
    """
    return max(round(n / (2 * (len(reference) + 1))), SHORTEST)


def _passed(
    reference: Sequence[int] | Ints, found: Sequence[int] | Ints, n: int, window: int | None
) -> tuple[Ints, Ints] | None:
    """How many boundaries every probe passes in each segmentation; None where no probe fits."""
    if n < 0:
        raise StudyError(f"a text of {n} sentences cannot be segmented")
    if window is not None and window < 1:
        raise StudyError(f"a window of {window} sentences compares nothing; it needs at least 1")
    true, claimed = _segments("reference", reference, n), _segments("found", found, n)
    k = window_of(reference, n) if window is None else window
    if n <= k:
        return None
    return true[k:] - true[:-k], claimed[k:] - claimed[:-k]


def _segments(name: str, boundaries: Sequence[int] | Ints, n: int) -> Ints:
    """The number of the segment of every sentence; says which boundary is wrong where one is."""
    marks = np.zeros(n, dtype=np.int64)
    before = 0
    for position, boundary in enumerate(boundaries):
        where = f"{name}: boundary {boundary} at position {position}"
        if isinstance(boundary, bool) or not isinstance(boundary, int | np.integer):
            raise StudyError(f"{where} is not a whole number")
        if not 0 < boundary < n:
            raise StudyError(f"{where} is outside the text: a segment can start at sentences 1 to {n - 1} of {n}")
        if boundary <= before:
            again = "is there twice" if boundary == before else f"stands after {before}"
            raise StudyError(f"{where} {again}; boundaries must rise")
        marks[boundary] = 1
        before = int(boundary)
    return np.cumsum(marks)

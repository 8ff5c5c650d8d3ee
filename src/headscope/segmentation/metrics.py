"""Metrics of a segmentation against the true one: Pk and WindowDiff, both from 0 (equal) to 1.

A text of n sentences is cut by `boundaries`, increasing numbers b with 0 < b < n: a segment starts at sentence b. Both
metrics move a probe of k sentences over the text and compare sentences i and i + k, for each of the n − k possible i.
Boundaries are not matched one by one, so a boundary that is one sentence off costs less than a missing one.

    Pk           the share of probes whose two ends are in one segment in one segmentation and in two in the other
                 (Beeferman, Berger & Lafferty 1999, Statistical models for text segmentation, Machine Learning 34)
    WindowDiff   the share of probes over which the two segmentations have different numbers of boundaries
                 (Pevzner & Hearst 2002, A critique and improvement of an evaluation metric for text segmentation,
                 Computational Linguistics 28)

What the papers leave open, the shortest window and how halves are rounded, is done as in the library `segeval` 2.0, and
the numbers are equal to those of its defaults. The functions of nltk use the same n − k probes if given a mark for each
of the n − 1 gaps, and one more if given a mark for each of the n sentences; nltk's default k divides by the number of
boundaries instead of segments, which makes it longer, and has no minimum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope.array_types import Ints
from headscope.errors import StudyError

SHORTEST = 2
"""smallest default window, in sentences; at 1 the metrics only count differing gaps, and a near miss is two errors"""


def pk(reference: Sequence[int] | Ints, found: Sequence[int] | Ints, n: int, window: int | None = None) -> float:
    """Return Pk: the share of probes for which only one segmentation has a boundary between the two ends.

    Args:
        reference: Boundaries of the true segmentation.
        found: Boundaries of the segmentation to evaluate.
        n: Number of sentences.
        window: Length k of the probe in sentences, by default half the mean length of the reference's segments. If no
            probe fits, n ≤ k, the result is 0 for equal segmentations and 1 for others.

    >>> pk([4], [5], 8, window=2)  # of six probes, 2→4 passes only the true boundary, and 4→6 only the found one
    0.3333333333333333
    """
    counts = _count_boundaries(reference, found, n, window)
    if counts is None:
        return float(not np.array_equal(reference, found))
    true_counts, found_counts = counts
    return float(np.mean((true_counts > 0) != (found_counts > 0)))


def window_diff(
    reference: Sequence[int] | Ints, found: Sequence[int] | Ints, n: int, window: int | None = None
) -> float:
    """Return WindowDiff: the share of probes over which the segmentations have different numbers of boundaries.

    It is never below Pk: if only one of two numbers is 0, they differ. The arguments are those of `pk`.

    >>> window_diff([4], [4, 5], 8, window=2)  # 3→5 passes one and two, 4→6 none and one; Pk counts only the second
    0.3333333333333333
    """
    counts = _count_boundaries(reference, found, n, window)
    if counts is None:
        return float(not np.array_equal(reference, found))
    true_counts, found_counts = counts
    return float(np.mean(true_counts != found_counts))


def choose_window(reference: Sequence[int] | Ints, n: int) -> int:
    """Return half of the mean length of the reference's segments, rounded (a half to the even number), at least 2.

    >>> choose_window([5, 12], 20), choose_window([], 10), choose_window([1, 2, 3], 4)
    (3, 5, 2)
    """
    return max(round(n / (2 * (len(reference) + 1))), SHORTEST)


def _count_boundaries(
    reference: Sequence[int] | Ints, candidate: Sequence[int] | Ints, n: int, window: int | None
) -> tuple[Ints, Ints] | None:
    """Return the number of boundaries that every probe passes in each segmentation; None if no probe fits."""
    if n < 0:
        raise StudyError(f"a text of {n} sentences cannot be segmented")
    if window is not None and window < 1:
        raise StudyError(f"a window of {window} sentences compares nothing; it needs at least 1")
    true_numbers, found_numbers = _number_segments("reference", reference, n), _number_segments("found", candidate, n)
    k = choose_window(reference, n) if window is None else window
    if n <= k:
        return None
    return true_numbers[k:] - true_numbers[:-k], found_numbers[k:] - found_numbers[:-k]


def _number_segments(name: str, boundaries: Sequence[int] | Ints, n: int) -> Ints:
    """Return the number of the segment of every sentence (n); raise StudyError for a wrong boundary."""
    marks = np.zeros(n, dtype=np.int64)
    previous = 0
    for position, boundary in enumerate(boundaries):
        description = f"{name}: boundary {boundary} at position {position}"
        if isinstance(boundary, bool) or not isinstance(boundary, int | np.integer):
            raise StudyError(f"{description} is not a whole number")
        if not 0 < boundary < n:
            raise StudyError(f"{description} is outside the text: a segment can start at sentences 1 to {n - 1} of {n}")
        if boundary <= previous:
            problem = "is there twice" if boundary == previous else f"stands after {previous}"
            raise StudyError(f"{description} {problem}; boundaries must rise")
        marks[boundary] = 1
        previous = int(boundary)
    return np.cumsum(marks)

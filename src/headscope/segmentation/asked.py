"""What is asked of a segmentation, and what is no answerable question."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.errors import StudyError

FEWEST, MOST = 0.01, 100.0


def check(count: Any, granularity: Any) -> None:
    """Refuse a number of segments or a granularity that means nothing."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
        raise StudyError(f"count is {count!r}: it is the number of segments wanted, 1 or more; None finds it")
    try:
        share = float(granularity)
    except (TypeError, ValueError):
        share = np.nan
    if not FEWEST <= share <= MOST:
        raise StudyError(f"granularity is {granularity!r}: it is a number from {FEWEST} to {MOST:g}; 1 is the default")

"""Validate the options of a segmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.errors import StudyError

MIN_GRANULARITY, MAX_GRANULARITY = 0.01, 100.0


def validate_options(count: Any, granularity: Any) -> None:
    """Raise StudyError unless count is None or a positive integer, and granularity is a number in its range."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
        raise StudyError(f"count is {count!r}: it is the number of segments wanted, 1 or more; None finds it")
    try:
        value = float(granularity)
    except (TypeError, ValueError):
        value = np.nan
    if not MIN_GRANULARITY <= value <= MAX_GRANULARITY:
        raise StudyError(
            f"granularity is {granularity!r}: it is a number from {MIN_GRANULARITY} to {MAX_GRANULARITY:g}; "
            "1 is the default"
        )

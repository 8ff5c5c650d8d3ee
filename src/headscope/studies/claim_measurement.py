"""The result of measuring a claim: a number, and the conditions it has to meet; limits and words for all claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.studies import claim_statistics as stats
from headscope.studies.claim_statistics import CannotMeasure, NothingCounted
from headscope.studies.result import Study

MOST_HEADS = 0.9
TWICE = 2.0
"""Attention is where a claim says if there is at least so many times the attention that even attention would have."""
MANY_VALUES, FEW_VALUES = 0.75, 0.2
STRONG_CORRELATION = 0.9
SHARED_COLUMNS = 0.5
FAR = 50 / 128
"""The paper's distance of 50 tokens, as a share of its window of 128."""
THIRD, THIRD_OF_CHANCE = 0.33, 0.33 * 3.5
"""The paper's limit of 33 % at windows of 128 tokens "of around 3–4 sentences", where chance gives about 1/3.5."""
PAPER_LENGTH = 128
CLEARLY = 0.1
"""Differences between layers that a fixed network has by accident are smaller than this share of chance."""
ALMOST_RANDOM = 0.2
ROUNDING = 1e-9
NO_MIDDLE = "the model has too few layers to speak of first, middle and last ones"
NO_SAMPLE = "no text is in the sample this is measured on"


@dataclass(frozen=True)
class Condition:
    """What a claim asks of one number: to be above, or below, some limit."""

    text: str
    value: float
    error: float
    limit: float = 0.0
    at_most: bool = False
    or_equal: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether it is met; None within two standard errors of the limit, or if the number is not known."""
        margin = (self.limit - self.value) if self.at_most else (self.value - self.limit)
        error = 0.0 if math.isnan(self.error) else self.error
        if math.isnan(margin) or ROUNDING < abs(margin) < 2 * error:
            return None
        return bool(margin >= -ROUNDING if self.or_equal else margin > ROUNDING)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for the details of a finding."""
        outcome = {True: "met", False: "not met", None: "undecided"}[self.is_met]
        numbers = {
            name: None if math.isnan(number) else float(number)
            for name, number in (("value", self.value), ("error", self.error), ("limit", self.limit))
        }
        return {"condition": self.text, **numbers, "is": outcome}


@dataclass(frozen=True)
class Measurement:
    """Result of measuring a claim: the number with its standard error and its null, and what the claim asks."""

    explanation: str
    value: Any
    error: Any
    null: Any
    conditions: Sequence[Condition]
    unit: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def require_own_keys(study: Study) -> None:
    """Raise `CannotMeasure` if attention goes to another text."""
    if str(study.data.attrs.get("stack", "")) == "cross":
        raise CannotMeasure("attention goes to the tokens of another text, which have no place on a diagonal")


def require_sample(study: Study, name: str = "sample_texts") -> None:
    """Raise `CannotMeasure` if no text in the sample has what a claim needs."""
    if not stats.get_values(study, name).sum():
        raise NothingCounted(NO_SAMPLE)


def get_layer_groups(study: Study) -> tuple[list[int], list[int], list[int]]:
    """Return the first, middle and last layers."""
    middle = stats.get_middle_layers(study)
    if not middle:
        raise CannotMeasure(NO_MIDDLE)
    return stats.get_first_layers(study), middle, stats.get_last_layers(study)


def average(values: Any) -> float:
    """Return the mean of the numbers that are known; NaN if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def compute_median(values: Any) -> float:
    """Return the median of the numbers that are known; NaN if there are none."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else math.nan


def format_layers(layers: Sequence[int]) -> str:
    """Return the numbers of consecutive layers."""
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"


def format_percent(value: Any, error: Any) -> str:
    """Return a share with its standard error, if there is one, in percent."""
    return format_share(value) if np.isnan(error) else f"{value * 100:z.1f} ± {error * 100:.1f} %"


def format_share(value: Any) -> str:
    """Return a share in percent; never -0.0.

    >>> format_share(-0.0001)
    '0.0 %'
    """
    return f"{float(value) * 100:z.1f} %"


def format_number(value: Any, error: Any, digits: int = 2) -> str:
    """Return a number with its standard error, if there is one."""
    return f"{value:z.{digits}f}" if np.isnan(error) else f"{value:z.{digits}f} ± {error:.{digits}f}"


def format_groups(values: Floats, errors: Floats, format_value: Callable[[Any, Any], str]) -> str:
    """Return the numbers of the first, middle and last layers."""
    parts = [format_value(value, error) for value, error in zip(values[:3], errors[:3], strict=True)]
    return f"{parts[0]} in the first layers, {parts[1]} in the middle, {parts[2]} in the last"

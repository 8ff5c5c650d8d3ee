"""What the criteria of both parts of a head type share: the scale of effects, the required certainty, and words.

A head type has two parts: what the head attends to (`attention_types.py`) and what its outputs are similar for
(`output_types.py`). Either requires an effect that is both large and certain. docs/head-types.md says where the
thresholds come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headscope.array_types import Floats
from headscope.corpus.windows import BLOCKS
from headscope.studies.rates import MIN_BLOCKS
from headscope.studies.sample_size import MIN_TEXTS, TOO_FEW_TEXTS

Z = 5
"""Required standard errors above chance. By Student's t over 20 blocks, one rate in 25,000 reaches this by chance."""
EXTREME = 0.001
"""Shares are clipped to [EXTREME, 1 - EXTREME], so that odds stay finite."""


@dataclass(frozen=True)
class HeadType:
    """One part of a head type and its definition.

    Examples
    --------
    >>> from headscope.studies.head_types import PARTS
    >>> local = PARTS["writes"].types[1]
    >>> local.name, local.description
    ('local', 'Tokens next to each other get similar outputs.')
    """

    name: str
    letter: str
    """in the cells of maps"""
    description: str
    """meaning, in one sentence"""
    criterion: str
    """condition for a head to be of this type, in one sentence with its thresholds"""


@dataclass(frozen=True)
class Choice:
    """The type that one part of a head gets."""

    name: str
    words: str
    """evidence, for the description of the head"""
    also: tuple[str, ...] = ()
    """other types that fit, in their order"""
    strength: float = math.nan
    """size of the effect that names it; 1 is just enough"""


UNKNOWN = HeadType(
    TOO_FEW_TEXTS,
    "·",
    "The study has too few texts to say of any head what it is.",
    f"Fewer than {MIN_TEXTS} texts, or fewer than {MIN_BLOCKS} of {BLOCKS} blocks of documents that hold texts.",
)


def compute_strength(rate: Floats, chance: Floats, times: float, *, odds: bool = True) -> Floats:
    """Return log(effect) / log(required effect), where an effect is the odds ratio of a rate to chance.

    It is NaN where there is no rate, or where chance is 0 or 1 and odds are undefined.

    Args:
        rate: Of each head.
        chance: The same by chance.
        times: The required effect.
        odds: Whether effects are odds ratios. If not, they are ratios.
    """
    scale = compute_log_odds if odds else np.log
    no_room = (chance <= 0) | ((chance >= 1) & odds)
    with np.errstate(invalid="ignore", divide="ignore"):
        effect: Floats = (scale(rate) - scale(chance)) / math.log(times)
    return np.where(no_room | np.isnan(rate), np.nan, effect)


def compute_log_odds(shares: Floats) -> Floats:
    """Return the logarithms of the odds of shares, which are clipped to [EXTREME, 1 - EXTREME]."""
    clipped = np.clip(shares, EXTREME, 1 - EXTREME)
    odds: Floats = np.log(clipped / (1 - clipped))
    return odds


def format_percent(share: float) -> str:
    """Return a share in percent with two digits.

    >>> format_percent(0.984), format_percent(0.0078)
    ('98 %', '0.8 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def format_tokens(distance: float) -> str:
    """Return a distance in tokens with two digits.

    >>> format_tokens(42.3), format_tokens(1.04)
    ('42', '1.0')
    """
    return f"{distance:.0f}" if distance >= 9.95 else f"{distance:.1f}"

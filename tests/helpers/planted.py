"""Synthetic studies whose heads have chosen rates: every sum is set by hand, so that each criterion can be met or
missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from tests.helpers.synthetic import study_of

BLOCKS = 20
TEXTS = 1000
"""in each block, of TOKENS tokens each"""
TOKENS = 101
ALL = TEXTS * TOKENS * (TOKENS - 1) // 2
EQUAL, SAME, SHUFFLED = 0.01, 0.3, 0.2
"""rates that chance gives"""
NEAR = (100 + 99) / 5050
DISTANCE = (TOKENS + 1) / 3


@dataclass(frozen=True)
class Planted:
    """A head; every rate that is not set is as chance gives it."""

    pairs: int = 100_000
    """in each block"""
    equal: float = EQUAL
    near: float = NEAR
    same: float = SAME
    dominant: float = SHUFFLED
    distance: float = DISTANCE
    swing: dict[str, float] = field(default_factory=dict)
    """how much a share is raised in even blocks and lowered in odd blocks"""

    def count(self, name: str, block: int) -> int:
        share = getattr(self, name) + self.swing.get(name, 0.0) * (-1) ** block
        return round(self.pairs * min(max(share, 0.0), 1.0))


def planted(
    *rows: Sequence[Planted], blocks: int = BLOCKS, all_same_swing: float = 0.0, texts: int = TEXTS, **changes: Any
) -> Study:
    """Return a study with these layers of heads, over this many blocks."""
    sums = Tally.zeros(Shape(len(rows), len(rows[0]), TOKENS, maps=False))
    used = slice(blocks)
    pairs = texts * TOKENS * (TOKENS - 1) // 2
    for name in ("texts", "sample_texts"):
        sums[name][used] = texts
    sums["window_tokens"][used, TOKENS] = texts
    sums["all_pairs"][used] = pairs
    sums["all_equal"][used] = round(pairs * EQUAL)
    for block in range(blocks):
        sums["all_same"][block] = round(pairs * (SAME + all_same_swing * (-1) ** block))
    for layer, row in enumerate(rows):
        for number, head in enumerate(row):
            for block in range(blocks):
                _set_sums(sums, (block, layer, number), head, texts)
    return study_of(sums, **changes)


def _set_sums(sums: Tally, index: tuple[int, int, int], head: Planted, texts: int) -> None:
    if not head.pairs:
        return
    sums["pairs"][index] = head.pairs
    sums["equal"][index] = head.count("equal", index[0])
    sums["same"][index] = head.count("same", index[0])
    near = head.count("near", index[0])
    rest, total = head.pairs - near, round(head.pairs * head.distance)
    sums["distance"][index][0] = near
    sums["distance_sum"][index] = near
    if rest:  # at two consecutive distances, such that the mean is exact
        base, remainder = divmod(total - near, rest)
        sums["distance"][index][base - 1] += rest - remainder
        sums["distance"][index][base] += remainder
        sums["distance_sum"][index] = total
    sums["texts_with_pairs"][index] = sums["shuffled_share_texts"][index] = texts
    sums["dominant_share_sum"][index] = texts * head.count("dominant", index[0]) / head.pairs
    sums["shuffled_share_sum"][index] = texts * SHUFFLED


def get_share_at_odds(times: float, chance: float) -> float:
    """Return the share whose odds are `times` the odds of chance."""
    return float(times * chance / (1 - chance + times * chance))


VARIED = (
    (Planted(equal=0.3), Planted(near=0.5, distance=12), Planted(same=0.8), Planted(dominant=0.7)),
    (Planted(distance=50), Planted(pairs=ALL // 2), Planted(pairs=0), Planted(equal=0.03)),
)
"""one head of each type, in their order"""

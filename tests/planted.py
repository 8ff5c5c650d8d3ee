"""Studies whose heads have chosen rates: every sum is made by hand, so that each criterion can be met or missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally
from tests.synthetic import study_of

BLOCKS = 20
TEXTS = 1000
"""in each block, of TOKENS tokens each"""
TOKENS = 101
ALL = TEXTS * TOKENS * (TOKENS - 1) // 2
EQUAL, SAME, SHUFFLED = 0.01, 0.3, 0.2
"""what chance gives"""
NEAR = (100 + 99) / 5050
DISTANCE = (TOKENS + 1) / 3


@dataclass(frozen=True)
class Planted:
    """A head; all it is not told to prefer is as chance gives it."""

    pairs: int = 100_000
    """in each block"""
    equal: float = EQUAL
    near: float = NEAR
    same: float = SAME
    dominant: float = SHUFFLED
    distance: float = DISTANCE
    swing: dict[str, float] = field(default_factory=dict)
    """how far a share is above in even and below in odd blocks"""

    def count(self, name: str, block: int) -> int:
        share = getattr(self, name) + self.swing.get(name, 0.0) * (-1) ** block
        return round(self.pairs * min(max(share, 0.0), 1.0))


def planted(
    *rows: Sequence[Planted], blocks: int = BLOCKS, all_same_swing: float = 0.0, texts: int = TEXTS, **changes: Any
) -> Study:
    """A study with these layers of heads, over so many blocks."""
    made = Tally.zeros(Shape(len(rows), len(rows[0]), TOKENS, maps=False))
    used = slice(blocks)
    every = texts * TOKENS * (TOKENS - 1) // 2
    for name in ("texts", "sample_texts"):
        made[name][used] = texts
    made["window_tokens"][used, TOKENS] = texts
    made["all_pairs"][used] = every
    made["all_equal"][used] = round(every * EQUAL)
    for block in range(blocks):
        made["all_same"][block] = round(every * (SAME + all_same_swing * (-1) ** block))
    for layer, row in enumerate(rows):
        for number, head in enumerate(row):
            for block in range(blocks):
                _plant(made, (block, layer, number), head, texts)
    return study_of(made, **changes)


def _plant(made: Tally, at: tuple[int, int, int], head: Planted, texts: int) -> None:
    if not head.pairs:
        return
    made["pairs"][at] = head.pairs
    made["equal"][at] = head.count("equal", at[0])
    made["same"][at] = head.count("same", at[0])
    near = head.count("near", at[0])
    rest, total = head.pairs - near, round(head.pairs * head.distance)
    made["distance"][at][0] = near
    made["distance_sum"][at] = near
    if rest:  # all of them at two neighbouring distances, such that the mean is exact
        base, more = divmod(total - near, rest)
        made["distance"][at][base - 1] += rest - more
        made["distance"][at][base] += more
        made["distance_sum"][at] = total
    made["texts_with_pairs"][at] = made["shuffled_share_texts"][at] = texts
    made["dominant_share_sum"][at] = texts * head.count("dominant", at[0]) / head.pairs
    made["shuffled_share_sum"][at] = texts * SHUFFLED


def at_odds(times: float, chance: float) -> float:
    """The share whose odds are so many times those of chance."""
    return float(times * chance / (1 - chance + times * chance))


VARIED = (
    (Planted(equal=0.3), Planted(near=0.5, distance=12), Planted(same=0.8), Planted(dominant=0.7)),
    (Planted(distance=50), Planted(pairs=ALL // 2), Planted(pairs=0), Planted(equal=0.03)),
)
"""one head of each character, in their order"""

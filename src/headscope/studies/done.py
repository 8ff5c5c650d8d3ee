"""Which texts are in the sums: whole portions of shards, and of a portion under way, how many texts of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headscope.studies.account import HASHES

Key = tuple[int, int]
"""shard, portion"""


@dataclass
class UnderWay:
    """The texts of a portion that count already: so many, in the order they come in, and the sum of their digests."""

    texts: int = 0
    digests: int = 0


@dataclass
class Done:
    """What was done. It adds."""

    portions: dict[int, list[list[int]]] = field(default_factory=dict)
    """of a shard, its whole portions as runs: first, and the one after the last"""
    content: dict[int, int] = field(default_factory=dict)
    """of a shard, the sum of the hashes of all documents in these"""
    ended: dict[int, int] = field(default_factory=dict)
    """of a shard that was read to its end, the number of its portions"""
    under_way: dict[Key, UnderWay] = field(default_factory=dict)
    stamps: dict[int, str] = field(default_factory=dict)
    """of a shard, a mark of its files' sizes and last changes when it was opened"""

    def has(self, shard: int, portion: int) -> bool:
        return any(first <= portion < after for first, after in self.portions.get(shard, ()))

    def all_of(self, shard: int) -> bool:
        """Whether a shard was read to its end and nothing of it is missing."""
        count = self.ended.get(shard)
        return count is not None and self.portions.get(shard, []) == ([[0, count]] if count else [])

    def begun(self, shard: int) -> bool:
        return shard in self.portions or any(shard == key[0] for key in self.under_way)

    def count(self, shard: int, portion: int, digests: list[int]) -> None:
        """Some texts of a portion count."""
        held = self.under_way.setdefault((shard, portion), UnderWay())
        held.texts += len(digests)
        held.digests = (held.digests + sum(digests)) % HASHES

    def close(self, shard: int, portion: int, content: int) -> None:
        """All texts of a portion count."""
        self.under_way.pop((shard, portion), None)
        if self.has(shard, portion):
            raise ValueError(f"portion {portion} of shard {shard} was counted before")
        self.content[shard] = (self.content.get(shard, 0) + content) % HASHES
        self.portions[shard] = _joined([*self.portions.get(shard, []), [portion, portion + 1]])

    def add(self, other: Done) -> None:
        """Take in what another did: whole portions, none of which may be here."""
        for shard, runs in other.portions.items():
            mine = self.portions.get(shard, [])
            if any(first < after2 and first2 < after for first, after in mine for first2, after2 in runs):
                raise ValueError(f"portions of shard {shard} were counted before")
            self.portions[shard] = _joined([*mine, *runs])
            self.content[shard] = (self.content.get(shard, 0) + other.content.get(shard, 0)) % HASHES
            for first, after in runs:
                for portion in range(first, after):
                    self.under_way.pop((shard, portion), None)
        self.ended |= other.ended
        self.stamps |= other.stamps

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "portions": [[shard, runs] for shard, runs in self.portions.items()],
            "content": [[shard, f"{content:x}"] for shard, content in self.content.items()],
            "ended": [[shard, count] for shard, count in self.ended.items()],
            "under_way": [[*key, held.texts, f"{held.digests:x}"] for key, held in self.under_way.items()],
            "stamps": list(self.stamps.items()),  # in one step: another thread may add to it
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> Done:
        made = cls(
            portions={int(shard): [[int(k) for k in run] for run in runs] for shard, runs in plain["portions"]},
            content={int(shard): int(content, 16) for shard, content in plain["content"]},
            ended={int(shard): int(count) for shard, count in plain["ended"]},
            under_way={
                (int(shard), int(portion)): UnderWay(int(texts), int(digests, 16))
                for shard, portion, texts, digests in plain["under_way"]
            },
            stamps={int(shard): str(stamp) for shard, stamp in plain["stamps"]},
        )
        for runs in made.portions.values():
            if _joined(runs) != runs or any(first < 0 or after <= first for first, after in runs):
                raise ValueError("portions that are no runs")
        return made


def _joined(runs: list[list[int]]) -> list[list[int]]:
    """Runs in order, those that touch made one.

    >>> _joined([[3, 4], [0, 2], [2, 3], [6, 7]])
    [[0, 4], [6, 7]]
    """
    made: list[list[int]] = []
    for first, after in sorted(runs):
        if made and made[-1][1] >= first:
            made[-1][1] = max(made[-1][1], after)
        else:
            made.append([first, after])
    return made

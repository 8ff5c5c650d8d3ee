"""Who works on what: portions of shards are lent to workers, and those that are lost are lent again.

A portion counts when its sums came back, and only then; so a worker may vanish at any moment, and no text is lost or
counted twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headscope.studies.done import Done, UnderWay

MOST = 1024
"""portions that are lent at once"""


@dataclass(frozen=True)
class Lease:
    """Portions of a shard from `first` on, so many; of one that was under way when the last run ended, what is known of
    it."""

    shard: int
    first: int
    count: int
    known: UnderWay | None = None

    @property
    def after(self) -> int:
        return self.first + self.count


@dataclass
class _Shard:
    """What was lent of a shard."""

    number: int
    next: int = 0
    back: list[Lease] = field(default_factory=list)
    """leases that were lost"""
    out: int = 0
    """leases whose sums have not come back"""
    readable: int | None = None
    """how many of its portions can be read, if not all"""


@dataclass
class Leases:
    """The leases of one study. Shards have numbers from 0; how many portions one has shows when someone reads its end.

    A worker is given more of the shard it reads already, then one that nobody reads, then it helps with another's.
    """

    shards: int
    done: Done
    failed: set[tuple[int, int]] = field(default_factory=set)
    """portions with documents that cannot be read"""

    def __post_init__(self) -> None:
        self._open = {number: _Shard(number) for number in range(self.shards) if not self.done.all_of(number)}
        self._fresh = deque(self._open)
        """shards of which nothing was lent; there may be a million, and only a few of the others"""
        self._begun: dict[int, _Shard] = {}
        self._reads: dict[object, int] = {}

    def take(self, worker: object, most: int = 1) -> Lease | None:
        """Something to do for a worker; None where there is nothing to do now."""
        for shard in self._offered(worker):
            lease = self._next(shard, max(1, min(most, MOST)))
            if lease is not None:
                shard.out += 1
                self._reads[worker] = shard.number
                return lease
        return None

    def _offered(self, worker: object) -> Iterator[_Shard]:
        """Shards in the order in which a worker should be given of them."""
        mine = self._begun.get(self._reads.get(worker, -1))
        if mine is not None:
            yield mine
        while self._fresh:
            shard = self._open[self._fresh.popleft()]
            self._begun[shard.number] = shard
            yield shard
        yield from sorted(self._begun.values(), key=lambda shard: (shard.out, shard.number))

    def _next(self, shard: _Shard, most: int) -> Lease | None:
        if shard.back:
            return shard.back.pop(0)
        end = self._end(shard)
        while self._settled(shard.number, shard.next):
            shard.next += 1
        if end is not None and shard.next >= end:
            return None
        first, known = shard.next, self.done.under_way.get((shard.number, shard.next))
        count = 1
        while known is None and count < most and not self._apart(shard.number, first + count):
            count += 1
        if end is not None:
            count = min(count, end - first)
        shard.next = first + count
        return Lease(shard.number, first, count, known)

    def _end(self, shard: _Shard) -> int | None:
        return self.done.ended.get(shard.number, shard.readable)

    def _settled(self, shard: int, portion: int) -> bool:
        return self.done.has(shard, portion) or (shard, portion) in self.failed

    def _apart(self, shard: int, portion: int) -> bool:
        return self._settled(shard, portion) or (shard, portion) in self.done.under_way

    def returned(self, lease: Lease) -> None:
        """The sums of a lease came back, and what is done was told of them."""
        shard = self._open[lease.shard]
        shard.out -= 1
        self._close(shard)

    def lost(self, lease: Lease) -> None:
        """A worker ended before its lease did. It is lent again in halves: where workers live shortly, less is lost."""
        shard = self._open[lease.shard]
        shard.out -= 1
        half = (lease.count + 1) // 2
        shard.back.append(replace(lease, count=half))
        if half < lease.count:
            shard.back.append(replace(lease, first=lease.first + half, count=lease.count - half))

    def broken(self, lease: Lease, again: bool = False) -> bool:
        """Something in a lease cannot be read. Its portions are lent one by one; False: it was the portion itself.

        `again`: by the same error as one before. So nothing behind that can be reached, and none of it is lent.
        """
        shard = self._open[lease.shard]
        shard.out -= 1
        if lease.count > 1:
            shard.back += [Lease(lease.shard, portion, 1) for portion in range(lease.first, lease.after)]
        else:
            self.failed.add((lease.shard, lease.first))
        if again and lease.count == 1:
            shard.readable = min(lease.first, lease.first if shard.readable is None else shard.readable)
        if shard.readable is not None:
            shard.back = [held for held in shard.back if held.first < shard.readable]
        self._close(shard)
        return lease.count > 1

    def _close(self, shard: _Shard) -> None:
        end = self._end(shard)
        if end is None or shard.out or shard.back:
            return
        if all(self._settled(shard.number, portion) for portion in range(end)):
            del self._open[shard.number]
            self._begun.pop(shard.number, None)

    def stop_reading(self, worker: object) -> None:
        """A worker is gone."""
        self._reads.pop(worker, None)

    @property
    def all_done(self) -> bool:
        return not self._open

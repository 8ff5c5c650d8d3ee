"""How a study stands: the sums so far, and which documents are in them. It is all that a study needs to go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from headscope.studies.account import Account
from headscope.studies.done import Done
from headscope.tally.quantities import Shape
from headscope.tally.tally import Tally


@dataclass
class Standing:
    """Standings of one study add, where each holds other portions."""

    tally: Tally
    account: Account = field(default_factory=Account)
    done: Done = field(default_factory=Done)
    batch_size: int = 0
    """texts at once, by now: fewer than planned where memory ran out"""
    seconds: dict[str, float] = field(default_factory=dict)
    """where the time went, in this run and those before it"""
    shown: bool = False
    """layers were shown to the talliers that these could not compute themselves"""
    runs: int = 1
    """how often it was begun, or taken up again"""

    @classmethod
    def empty(cls, shape: Shape, batch_size: int) -> Standing:
        return cls(Tally.zeros(shape), batch_size=batch_size)

    @property
    def texts(self) -> int:
        return int(self.tally["texts"].sum())

    def add(self, other: Standing) -> None:
        """Take in what another worker did."""
        self.done.add(other.done)  # refuses what is here already, before anything is changed
        self.tally.add(other.tally)
        self.account.add(other.account)
        self.batch_size = min(self.batch_size, other.batch_size)
        self.shown |= other.shown
        for name, taken in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + taken

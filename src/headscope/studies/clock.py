"""Where the time of a study goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds by what they were spent on. They are counted by a clock that nobody sets."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """All since the last lap was this."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def rounded(self) -> dict[str, float]:
        return {name: round(taken, 3) for name, taken in self.seconds.items()}

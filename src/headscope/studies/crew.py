"""Talliers that share the texts of every batch, each in a thread of its own.

On a CPU torch shares every single product of a model among all cores. It is faster to share the texts: each core then
runs the whole model on some of them, its numbers stay in its cache, and no core waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import reduce

import torch

from headscope.corpus.windows import Batch
from headscope.model.model import Model
from headscope.tally.kernels import Choice
from headscope.tally.tally import Tallier, Tally

FEWEST = 4
"""texts for each thread, or what a thread has to do for every layer outweighs them"""


class Crew:
    """As one tallier; the first works in the calling thread."""

    def __init__(self, choice: Choice) -> None:
        self.talliers = [choice.make() for _ in range(choice.threads)]
        self.pool = ThreadPoolExecutor(choice.threads, "headscope", torch.set_num_threads, (1,))
        self.busy: list[Tallier] = []

    def observe(self, model: Model, batch: Batch) -> None:
        """Run a model over a batch, every head watched."""
        count = max(1, min(len(self.talliers), len(batch) // FEWEST))
        self.busy = self.talliers[:count]
        if count == 1:
            _observe(model, batch, self.talliers[0])
            return
        parts = [Batch.of(batch.windows[k::count], batch.pad_id) for k in range(count)]
        with model.prepared(), _one_thread():
            others = [
                self.pool.submit(_observe, model, part, tallier)
                for part, tallier in zip(parts[1:], self.busy[1:], strict=True)
            ]
            try:
                _observe(model, parts[0], self.busy[0])
            finally:
                wait(others)
            for other in others:
                other.result()

    def end(self) -> None:
        for tallier in self.busy:
            tallier.end()

    def total(self) -> Tally:
        return reduce(Tally.__add__, (tallier.total() for tallier in self.talliers))

    @property
    def lag(self) -> int:
        """How many batches have ended and do not count yet."""
        return max(getattr(tallier, "lag", 0) for tallier in self.talliers)

    def settle(self) -> None:
        """Have all batches count that ended."""
        for tallier in self.talliers:
            if hasattr(tallier, "settle"):
                tallier.settle()

    def shown(self) -> bool:
        """Whether layers were shown to the talliers that these could not compute themselves."""
        return any(getattr(tallier, "shown", 0) for tallier in self.talliers)

    def close(self) -> None:
        self.pool.shutdown(wait=False)


def _observe(model: Model, batch: Batch, tallier: Tallier) -> None:
    tallier.begin(batch)
    model.observe(batch, tallier.see, getattr(tallier, "attend", None))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within this context torch's products stay in the thread that asks for them; each thread knows it for itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

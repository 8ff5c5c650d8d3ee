"""Talliers at work side by side, each on a batch of its own and in a thread of its own.

On a CPU torch shares every single product of a model among all cores. It is faster to share the batches: each core then
runs the whole model on some texts, its numbers stay in its cache, and no core waits for another. And it makes numbers
what they are on any machine: what is computed together is one batch in one thread, however many threads there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import reduce

import torch

from headscope.corpus.windows import Batch
from headscope.model.model import Model
from headscope.tally.kernels import Choice
from headscope.tally.tally import Tallier, Tally


class Crew:
    """As one tallier, which takes up to `size` batches at a time; the first works in the calling thread."""

    def __init__(self, choice: Choice) -> None:
        self.talliers = [choice.make() for _ in range(choice.threads)]
        self.shares = choice.shares
        self.pool = ThreadPoolExecutor(choice.threads, "headscope", torch.set_num_threads, (1,))
        self.busy: list[Tallier] = []

    @property
    def size(self) -> int:
        return len(self.talliers)

    def observe(self, model: Model, batches: Sequence[Batch]) -> None:
        """Run a model over some batches, every head watched. What an error leaves of them counts for nothing."""
        self.busy = self.talliers[: len(batches)]
        if not self.shares:
            (batch,) = batches
            _observe(model, batch, self.talliers[0])
            return
        with model.prepared(), _one_thread():
            others = [
                self.pool.submit(_observe, model, batch, tallier)
                for batch, tallier in zip(batches[1:], self.busy[1:], strict=True)
            ]
            try:
                _observe(model, batches[0], self.busy[0])
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

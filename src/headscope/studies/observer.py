"""A model at work on the texts of a study: batches in, sums out, and of every text it is known whether it counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from headscope.model.model import Model
from headscope.studies.clock import Clock
from headscope.studies.crew import Crew
from headscope.studies.events import Event, Load, Mark
from headscope.studies.job import Job
from headscope.studies.memory import Room
from headscope.studies.standing import Standing
from headscope.studies.texts import Texts
from headscope.studies.undisturbed import undisturbed


class Observer:
    """Adds to a standing. `texts` are those that it takes events of; the standing's account and what is done are its.

    `before_tear` is called when the rest of the texts is only what an error left: how the study stands then is the last
    that another run can go on from.
    """

    def __init__(
        self, model: Model, job: Job, texts: Texts, standing: Standing, before_tear: Callable[[], None] | None = None
    ) -> None:
        self.model, self.texts, self.clock = model, texts, Clock(standing.seconds)
        self.crew = Crew(job.choice(model))
        self.room = Room(standing.batch_size, job.batch_size)
        self.before_tear = before_tear
        self.counted = standing.texts
        """texts that count, in this run and those before it"""
        self._standing, self._ended = standing, deque[Event]()
        texts.account, texts.done = standing.account, standing.done

    def observe(self, events: Iterator[Event]) -> Iterator[None]:
        """Take all events; after each step, what counts by now is in the standing."""
        held: list[Load] = []
        error: Exception | None = None
        while True:
            try:
                event = next(events, None)
            except Exception as raised:  # what came before it is studied first
                error, event = raised, None
            if isinstance(event, Load):
                held.append(event)
                if len(held) < self.crew.size:
                    continue
            self.clock.lap("waiting_for_texts")
            yield from self._run(held)
            held = []
            if isinstance(event, Mark):
                with undisturbed():
                    self._ended.append(event)
                    self._count(self.crew.lag)
                yield
            elif event is None:
                break
            elif not isinstance(event, Load):
                self.settle()
                if self.before_tear is not None:
                    self.before_tear()
        self.settle()
        if error is not None:
            raise error

    def _run(self, loads: list[Load]) -> Iterator[None]:
        for parts in self.room.tried(loads, self.crew.size, lambda batches: self.crew.observe(self.model, batches)):
            with undisturbed():  # the sums, and what is said of them, change together
                self.crew.end()
                self._ended.extend(parts)
                self._count(self.crew.lag)
            self.clock.lap("model_and_sums")
            yield

    def settle(self) -> None:
        """Have all count that ended."""
        with undisturbed():
            self.crew.settle()
            self._count(0)
        self.clock.lap("model_and_sums")

    def _count(self, lag: int) -> None:
        waiting = sum(isinstance(event, Load) for event in self._ended)
        while self._ended and (waiting > lag or not isinstance(self._ended[0], Load)):
            event = self._ended.popleft()
            self.texts.count(event)
            if isinstance(event, Load):
                waiting -= 1
                self.counted += len(event.batch)

    @property
    def standing(self) -> Standing:
        """How the study stands, if all was settled; for reading only."""
        before = self._standing
        return Standing(
            before.tally + self.crew.total(),
            self.texts.account,
            self.texts.done,
            self.room.size,
            self.clock.seconds,
            before.shown or (self.crew.shown() and hasattr(self.crew.talliers[0], "attend")),
            before.runs,
        )

    def close(self) -> None:
        self.crew.close()

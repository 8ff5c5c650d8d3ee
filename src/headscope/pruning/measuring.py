"""What silencing each head does to a model's objective, text by text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.corpus.windows import Batch, Window
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.pruning.naming import Head
from headscope.pruning.objective import Objective, objective_of
from headscope.pruning.reuse import Reuse
from headscope.pruning.silencing import By, head_means, silenced
from headscope.pruning.texts import Numbered, batches_of
from headscope.run.batch_size import is_out_of_memory
from headscope.types import Floats

Told = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much in all"""


@dataclass
class Bench:
    """A model and texts, on which heads are silenced in one way or another and the objective is measured."""

    model: Model
    objective: Objective
    batches: list[Numbered]
    by: By = "zero"
    means: Floats | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        windows: Sequence[Window],
        by: By = "zero",
        batch_size: int | None = None,
        means: Floats | None = None,
    ) -> Bench:
        """`means`: what heads write on average, where that is known; else it is found here, if needed."""
        batches = batches_of(model, windows, batch_size)
        if by == "mean" and means is None:
            means = head_means(model, (each.batch for each in batches))
        return cls(model, objective_of(model), batches, by, means)

    @property
    def texts(self) -> int:
        return sum(len(each.places) for each in self.batches)

    def losses(self, heads: Sequence[Head]) -> Floats:
        """The objective of every text, in their order, with these heads silent together."""
        found = np.zeros(self.texts)
        for each in self.batches:
            self.objective.learn(each.batch)
            with self._silent(heads):
                found[each.places] = self._measured(each.batch)
        return found

    def changes(
        self, heads: Sequence[Head], *, silent: Sequence[Head] = (), progress: Told | None = None
    ) -> Iterator[tuple[Numbered, Floats, Floats]]:
        """Batch by batch: the objective (texts,), and how it changes (texts, heads) when each head alone is silenced;
        all that with the heads in `silent` silenced already."""
        reuse, runs = Reuse(self.model), 0
        for each in self.batches:
            self.objective.learn(each.batch)
            with self._silent(silent), reuse.recording():
                base = self._measured(each.batch)
            made = np.zeros((len(base), len(heads)))
            for k, head in enumerate(heads):
                layer = self.model.anatomy.numbers.index(head[0])
                with self._silent([*silent, head]):
                    made[:, k] = self._above(reuse, layer, each.batch) - base
                runs += 1
                if progress is not None:
                    progress("silencing heads", runs, len(self.batches) * len(heads))
            yield each, base, made

    def _above(self, reuse: Reuse, layer: int, batch: Batch) -> Floats:
        if layer in reuse.proven:
            with reuse.below(layer):
                return self._measured(batch)
        whole = self._measured(batch)
        reuse.prove(layer, whole, lambda: self._measured(batch))
        return whole

    def mean_changes(self, heads: Sequence[Head], *, silent: Sequence[Head] = ()) -> Floats:
        """The mean over texts of each head's change: (heads,)."""
        total = sum(made.sum(axis=0) for _, _, made in self.changes(heads, silent=silent))
        return np.asarray(total / self.texts)

    def _silent(self, heads: Sequence[Head]) -> Any:
        return silenced(self.model, heads, by=self.by, means=self.means) if heads else nullcontext()

    def _measured(self, batch: Batch) -> Floats:
        try:
            return self.objective.per_text(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise StudyError(
                f"out of memory with {len(batch)} texts of {batch.ids.shape[1]} tokens at once: choose a smaller "
                "--batch-size or --length"
            ) from None

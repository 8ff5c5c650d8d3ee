"""Measure what silencing heads does to a model's objective, text by text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.array_types import Floats
from headscope.corpus.windows import Batch, Window
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.pruning.head_names import Head
from headscope.pruning.layer_replay import LayerReplay
from headscope.pruning.objective import Objective, choose_objective
from headscope.pruning.silencing import SilencingMode, compute_head_means, silenced
from headscope.pruning.text_batches import NumberedBatch, batch_windows
from headscope.run.batch_size import is_out_of_memory

ProgressCallback = Callable[[str, int, int], None]
"""called with the name of the step, the number of units done, and the number in all"""


@dataclass
class AblationRunner:
    """A model and texts on which its objective is measured while heads are silenced."""

    model: Model
    objective: Objective
    batches: list[NumberedBatch]
    by: SilencingMode = "zero"
    means: Floats | None = None

    @classmethod
    def create(
        cls,
        model: Model,
        windows: Sequence[Window],
        by: SilencingMode = "zero",
        batch_size: int | None = None,
        means: Floats | None = None,
    ) -> AblationRunner:
        """Batch the texts, and measure the heads' mean outputs over them if `by` needs these and they are not given."""
        batches = batch_windows(model, windows, batch_size)
        if by == "mean" and means is None:
            means = compute_head_means(model, (numbered.batch for numbered in batches))
        return cls(model, choose_objective(model), batches, by, means)

    @property
    def texts(self) -> int:
        return sum(len(numbered.places) for numbered in self.batches)

    def measure_losses(self, heads: Sequence[Head]) -> Floats:
        """Measure the objective of every text, in their order, with these heads silent together: (texts,)."""
        losses = np.zeros(self.texts)
        for numbered in self.batches:
            self.objective.record_baseline(numbered.batch)
            with self._silence(heads):
                losses[numbered.places] = self._measure(numbered.batch)
        return losses

    def measure_changes(
        self, heads: Sequence[Head], *, silent: Sequence[Head] = (), progress: ProgressCallback | None = None
    ) -> Iterator[tuple[NumberedBatch, Floats, Floats]]:
        """Yield for each batch the objective and how it changes when each head alone is silenced.

        Args:
            silent: Heads that are silent throughout.

        Yields:
            The batch, the objective (texts,), and the changes (texts, heads).
        """
        replay, runs = LayerReplay(self.model), 0
        for numbered in self.batches:
            self.objective.record_baseline(numbered.batch)
            with self._silence(silent), replay.record():
                base = self._measure(numbered.batch)
            changes = np.zeros((len(base), len(heads)))
            for k, head in enumerate(heads):
                layer = self.model.architecture.numbers.index(head[0])
                with self._silence([*silent, head]):
                    changes[:, k] = self._measure_from_layer(replay, layer, numbered.batch) - base
                runs += 1
                if progress is not None:
                    progress("silencing heads", runs, len(self.batches) * len(heads))
            yield numbered, base, changes

    def _measure_from_layer(self, replay: LayerReplay, layer: int, batch: Batch) -> Floats:
        if layer in replay.verified:
            with replay.skip_below(layer):
                return self._measure(batch)
        losses = self._measure(batch)
        replay.verify(layer, losses, lambda: self._measure(batch))
        return losses

    def compute_mean_changes(self, heads: Sequence[Head], *, silent: Sequence[Head] = ()) -> Floats:
        """Return the mean over texts of each head's change: (heads,)."""
        total = sum(changes.sum(axis=0) for _, _, changes in self.measure_changes(heads, silent=silent))
        return np.asarray(total / self.texts)

    def _silence(self, heads: Sequence[Head]) -> Any:
        return silenced(self.model, heads, by=self.by, means=self.means) if heads else nullcontext()

    def _measure(self, batch: Batch) -> Floats:
        try:
            return self.objective.measure_texts(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise StudyError(
                f"out of memory with {len(batch)} texts of {batch.ids.shape[1]} tokens at once: choose a smaller "
                "--batch-size or --length"
            ) from None

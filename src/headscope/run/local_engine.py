"""Count chunks in this process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from headscope import provenance
from headscope.corpus.chunks import Chunk
from headscope.corpus.documents import Corpus
from headscope.devices import use_tf32
from headscope.model.model import Model
from headscope.run.engines import OnProgress, PartialResult
from headscope.run.executor import BatchExecutor, choose_batch_size
from headscope.run.kernel_trial import can_use_tf32, choose_backend
from headscope.run.pipeline import Section, SectionReader
from headscope.run.plan import RunPlan
from headscope.run.state import ChunkProgress, RunState, StageClock

FLUSH_SECONDS = 5.0
"""Sums are yielded at the end of a section, but not more often: they are large, and fast machines finish many
sections in that time."""


class LocalEngine:
    """One model, which counts chunks one after the other.

    Args:
        batch_size: What a run that is resumed had.
        in_thread: Documents may be read in a background thread.
    """

    def __init__(
        self, model: Model, corpus: Corpus, plan: RunPlan, *, batch_size: int = 0, in_thread: bool = True
    ) -> None:
        self.model, self.corpus, self.plan, self.in_thread = model, corpus, plan, in_thread
        self.backend = choose_backend(plan, model)
        self.tf32 = plan.tf32 and can_use_tf32(model)
        if plan.batch_size is not None:
            self.planned_size = plan.batch_size
        elif model.device.type == "cuda" and batch_size:
            self.planned_size = batch_size
        else:
            self.planned_size = choose_batch_size(model, plan.settings.length, plan.chunk_size.documents)
        self.batch_size = min(self.planned_size, batch_size or self.planned_size)
        self.device_name = provenance.get_device_name(model.device)
        self.clock = StageClock()

    def count(
        self,
        chunks: Sequence[Chunk],
        in_progress: Mapping[int, ChunkProgress],
        on_progress: OnProgress = lambda texts, documents: None,
        check: Callable[[], None] = lambda: None,
    ) -> Generator[PartialResult]:
        """Count chunks in their order; see `Engine`."""
        reader = SectionReader(
            self.corpus, self.model, self.plan.settings.cut, self.planned_size, self.plan.section_texts
        )
        executor = BatchExecutor(self.model, self.backend, self.batch_size, self.plan.get_shape(self.model))
        counted: list[Section] = []
        self.clock.restart()
        try:
            with reader.prefetch(chunks, in_progress, in_thread=self.in_thread, check=check) as sections:
                for section in sections:
                    self.clock.lap("waiting_for_texts")
                    with use_tf32(self.tf32):  # left before anything is yielded: the caller may run another generator
                        self._run(section, executor, sum(done.stats.documents for done in counted), on_progress, check)
                    self.clock.lap("model_and_sums")
                    counted.append(section)
                    if executor.seconds >= FLUSH_SECONDS:
                        yield self._flush(counted, executor)
                        counted = []
                if counted:
                    yield self._flush(counted, executor)
        finally:
            executor.close()

    @staticmethod
    def _run(
        section: Section,
        executor: BatchExecutor,
        documents: int,
        on_progress: OnProgress,
        check: Callable[[], None],
    ) -> None:
        """Run the batches of a section; `documents` are those of the sections before it."""
        texts, before = max(1, section.texts), executor.texts
        for batch in section.batches:
            executor.add(batch)
            check()
            fraction = min(1.0, (executor.texts - before) / texts)
            on_progress(executor.texts, documents + int(fraction * section.stats.documents))

    def _flush(self, sections: list[Section], executor: BatchExecutor) -> PartialResult:
        note = executor.note
        with use_tf32(self.tf32):
            sums = executor.flush()
        state = RunState(sums, kernels={self.backend.name: note}, tf32=self.tf32)
        state.devices = {self.device_name}
        errors: dict[int, str] = {}
        for section in sections:
            state.stats.add(section.stats)
            if section.error:
                errors[section.chunk] = section.error
            elif section.is_last:
                state.completed.add(section.chunk)
                state.in_progress.pop(section.chunk, None)
            else:
                state.in_progress[section.chunk] = section.progress
        self.batch_size = state.batch_size = executor.batch_size
        if executor.batch_size < self.planned_size:
            state.batch_size_note = f"halved from {self.planned_size} after running out of memory"
        self.clock.lap("model_and_sums")
        state.seconds = self.clock.pop_seconds()
        return PartialResult(state, errors)


def count_chunk(engine: LocalEngine, chunk: Chunk) -> PartialResult:
    """Return the partial sums of one chunk. They depend on the chunk, the model and the settings alone."""
    results = list(engine.count([chunk], {}))
    for result in results[1:]:
        results[0].state.add(result.state)
        results[0].errors.update(result.errors)
    return results[0]

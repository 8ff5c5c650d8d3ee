"""The main loop of a study.

    plan       cut the corpus into chunks                               RunPlan, Corpus.plan_chunks
    resume     read the last checkpoint; skip the chunks in it          Checkpoint.read, verify_unchanged
    map        an engine counts chunks and yields partial sums          LocalEngine, RayEngine
    add        add partial sums to the state of the run                 RunState.add
    progress   tell the user
    checkpoint write the state to disk now and then, and at the end     Checkpoint.write

If the process dies, whatever it was doing, the last checkpoint counts: it holds the sums of some chunks and the numbers
of these chunks, written together. The same command reads it and counts the rest. What is lost is the work since then:
at most the checkpoint interval, plus the sections whose sums had not reached this loop (of one process a few seconds
and the section being counted; of a cluster the tasks in flight).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass

from headscope.corpus.documents import Corpus
from headscope.errors import Changed, CorpusError
from headscope.interrupts import InterruptFlag, defer_interrupts
from headscope.run.checkpoint import Checkpoint
from headscope.run.engines import Engine
from headscope.run.plan import RunPlan
from headscope.run.state import RunState, record_versions, verify_unchanged

MAX_FAILED_CHUNKS = 10
"""chunks with documents that cannot be read, after which a study stops"""


@dataclass(frozen=True)
class Progress:
    """How far a study is: what `headscope.study` gives to the function passed as `progress`.

    Examples
    --------
    >>> import headscope
    >>> steps = []
    >>> study = headscope.study("minilm", ["Two ravens met.", "Bread rises."], progress=steps.append)
    >>> steps[-1].documents, steps[-1].expected
    (2, 2)
    """

    texts: int
    documents: int
    expected: int | None
    """documents in all, where that is known"""
    unit: str = "texts"
    """what is studied: texts, or images"""
    texts_before: int = 0
    documents_before: int = 0
    """counted by earlier runs, which this one resumes"""


def run_chunks(
    engine: Engine,
    corpus: Corpus,
    plan: RunPlan,
    state: RunState,
    checkpoint: Checkpoint | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Count all chunks of a plan that are not complete, and add their sums to the state.

    Args:
        state: The chunks, and what earlier runs counted of them; updated in place. However this function ends, it holds
            what was counted.
        on_progress: Called with how far the study is.

    Raises:
        Changed: The corpus is not the one that earlier runs counted.
        CorpusError: Some documents cannot be read. All other chunks are counted.
    """
    verify_unchanged(corpus, state)
    remaining = [chunk for chunk in plan.select_share(state.chunks) if chunk.number not in state.completed]
    errors: dict[int, str] = {}
    before = state.texts, state.stats.documents

    def report(texts: int = 0, documents: int = 0) -> None:
        texts, documents = state.texts + texts, state.stats.documents + documents
        if texts:
            on_progress(Progress(texts, documents, plan.expected, plan.unit, *before))

    with InterruptFlag() as interrupt:
        try:
            with closing(engine.count(remaining, state.in_progress, report, interrupt.check)) as results:
                for result in results:
                    with defer_interrupts():  # the sums and the set of completed chunks must change together
                        record_versions(corpus, result.state, state)
                        state.add(result.state)
                    report()
                    errors.update(result.errors)
                    state.failed |= result.errors.keys()
                    if len(errors) >= MAX_FAILED_CHUNKS:
                        break
                    if checkpoint is not None and checkpoint.is_due:
                        write_checkpoint(checkpoint, state)
                    interrupt.check()
        except Changed:  # the checkpoint stays as it is
            raise
        except BaseException as error:
            with suppress(Exception):  # the first error counts
                write_checkpoint(checkpoint, state)
            if isinstance(error, KeyboardInterrupt):
                interrupt.check()  # raises `Terminated` if the signal was SIGTERM: a library may have lost that
            raise
        write_checkpoint(checkpoint, state)
    if errors:
        messages = list(dict.fromkeys(message for _, message in sorted(errors.items())))
        if len(errors) >= MAX_FAILED_CHUNKS:
            messages.append(f"Stopped after {len(errors)} errors: there may be more")
        raise CorpusError("\n".join(messages))


def write_checkpoint(checkpoint: Checkpoint | None, state: RunState) -> None:
    """Write the state of a run that has counted something."""
    if checkpoint is not None and (state.completed or state.in_progress):
        with defer_interrupts():
            checkpoint.write(state)

"""Which engine: the one that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headscope.corpus.documents import Corpus
from headscope.engines.local import Local
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.checkpoint import Checkpoints
from headscope.studies.job import Job
from headscope.studies.standing import Standing

ENGINES = ("local", "ray")


class Engine(Protocol):
    """Where a study runs."""

    def run(self, standing: Standing, kept: Checkpoints | None, told: Callable[[int, int], None]) -> None:
        """Bring a study from how it stands to its end; `told` is told of the texts and documents that count."""

    @property
    def standing(self) -> Standing:
        """How the study stands, also after an error ended it."""


def engine_of(
    name: str,
    model: Model,
    corpus: Corpus,
    job: Job,
    *,
    ahead: bool = True,
    workers: int | None = None,
    address: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Engine:
    """The engine of that name."""
    if name not in ENGINES:
        raise StudyError(f"unknown engine {name!r}; there are: {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise StudyError(f"workers is {workers}: at least 1")
    if name == "local":
        if workers is not None or address is not None:
            raise StudyError("workers and an address are for a cluster: say --engine ray")
        return Local(model, corpus, job, ahead=ahead)
    from headscope.engines.ray_cluster import RayCluster

    return RayCluster(model, corpus, job, workers=workers, address=address, say=say)

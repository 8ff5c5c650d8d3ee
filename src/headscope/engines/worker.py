"""A worker: holds the model once, takes leases, and gives back how far each brought the study."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from headscope.corpus.documents import Corpus
from headscope.corpus.shards import Portion
from headscope.engines.leases import Lease
from headscope.model.model import Model
from headscope.studies.events import Event, Mark
from headscope.studies.job import Job
from headscope.studies.observer import Observer
from headscope.studies.precision import multiplying
from headscope.studies.standing import Standing
from headscope.studies.texts import Texts


class Worker:
    """Reads its shards by itself. One that goes on with the shard it reads does not begin that anew."""

    def __init__(self, model: Model, corpus: Corpus, job: Job) -> None:
        self.model, self.corpus, self.job = model, corpus, job
        self.batch_size = job.batch_size
        self._shard = -1
        self._at = 0
        """the number of the next portion"""
        self._portions: Iterator[Portion] = iter(())
        self._texts = self._new_texts()

    def work(self, lease: Lease) -> Standing:
        """The sums of the portions of a lease, as far as there are so many."""
        if lease.shard != self._shard or lease.first < self._at:
            self._texts = self._new_texts()
            self._shard, self._at = lease.shard, 0
            self._portions = self._texts.portions(self.corpus.shards[lease.shard])
        standing = Standing.empty(self.job.shape(self.model), self.batch_size)
        if lease.known is not None:
            standing.done.under_way[lease.shard, lease.first] = replace(lease.known)  # it grows; a lease does not
        observer = Observer(self.model, self.job, self._texts, standing)
        try:
            with multiplying(self.job.tf32), self._texts.taken(self._events(lease), ahead=True) as events:
                for _ in observer.observe(events):
                    pass
            self.batch_size = observer.room.size
            return observer.standing
        except BaseException:
            self._shard = -1  # whatever it was, this reader is not to be gone on with
            raise
        finally:
            observer.close()

    def _new_texts(self) -> Texts:
        return Texts(self.corpus, self.model, self.job.settings.cut, self.job.batch_size)

    def _events(self, lease: Lease) -> Generator[Event]:
        shard = self.corpus.shards[lease.shard]
        while self._at < lease.after:
            portion = next(self._portions, None)
            if portion is None:
                if self._texts.broken is None:
                    yield Mark(lease.shard, count=self._at)
                return
            self._at += 1
            if portion.number >= lease.first:
                yield from self._texts.portion(shard, portion)
            if self._texts.broken is not None:
                return

"""A study in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from headscope.corpus.documents import Corpus
from headscope.errors import Changed, HeadscopeError
from headscope.model.model import Model
from headscope.studies.checkpoint import Checkpoints
from headscope.studies.job import Job
from headscope.studies.observer import Observer
from headscope.studies.precision import multiplying
from headscope.studies.standing import Standing
from headscope.studies.texts import Texts
from headscope.studies.undisturbed import undisturbed


class Local:
    """One model, which takes all shards in turn. `ahead`: texts may be read in another thread than this."""

    def __init__(self, model: Model, corpus: Corpus, job: Job, *, ahead: bool = True) -> None:
        self.model, self.job, self.ahead = model, job, ahead
        self.texts = Texts(corpus, model, job.settings.cut, job.batch_size)

    def run(self, standing: Standing, kept: Checkpoints | None, told: Callable[[int, int], None]) -> None:
        """Bring a study from how it stands to its end; `told` is told of the texts and documents that count.

        Whatever ends it early, `standing` then says how far it came, and so does a checkpoint.
        """
        self.observer = Observer(self.model, self.job, self.texts, standing)
        torn = False

        def keep() -> None:
            if kept is None or torn or not self.observer.counted:
                return
            with undisturbed():
                self.observer.settle()
                kept.write(self.observer.standing)
            self.observer.clock.lap("checkpoints")

        def tear() -> None:
            nonlocal torn
            keep()
            torn = True

        self.observer.before_tear = tear
        try:
            with multiplying(self.job.tf32), self.texts.loads(ahead=self.ahead) as events:
                said = (0, 0)
                for _ in self.observer.observe(events):
                    now = (self.observer.counted, self.texts.account.read)
                    if now != said and self.observer.counted:
                        told(*now)
                    said = now
                    if kept is not None and kept.due:
                        keep()
            keep()
        except (Exception, KeyboardInterrupt) as error:  # whatever it is, also out of memory, loses nothing
            with suppress(HeadscopeError):  # what ended counts, unless it is what is broken
                self.observer.settle()
                if not isinstance(error, Changed):
                    keep()
            raise
        finally:
            self.observer.close()

    @property
    def standing(self) -> Standing:
        """How the study stands."""
        return self.observer.standing

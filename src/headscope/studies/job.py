"""What a study computes, decided once: every worker, and every run that takes it up again, does the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from headscope import manifest
from headscope.corpus.documents import Corpus
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies import trial
from headscope.studies.memory import Room
from headscope.studies.precision import uses_tf32
from headscope.studies.settings import SAMPLE_FRACTION, SMALL_CORPUS, Settings
from headscope.tally.kernels import AUTO, FASTEST, Choice, choose
from headscope.tally.quantities import Shape
from headscope.tally.tally import Counting


@dataclass(frozen=True)
class Job:
    """Settings as the model takes them, and what was left open in them."""

    settings: Settings
    fraction: float
    """of the texts in the sample"""
    batch_size: int
    kernel: str
    kernel_note: str
    tf32: bool
    expected: int | None = None
    """documents, where that is known"""

    @classmethod
    def of(
        cls, model: Model, corpus: Corpus, settings: Settings, *, batch_size: int | None, kernel: str, tf32: bool
    ) -> Job:
        if batch_size is not None and batch_size < 1:
            raise StudyError(f"batch size is {batch_size}: at least 1")
        counted = corpus.count(SMALL_CORPUS)
        small = counted is not None or (corpus.limit is not None and corpus.limit <= SMALL_CORPUS)
        fraction = settings.sample if settings.sample is not None else (1.0 if small else SAMPLE_FRACTION)
        size = Room.of(model, settings.length, batch_size).size
        made = cls(settings, fraction, size, kernel, "", tf32 and uses_tf32(model), counted)
        chosen = made._tried(model)
        return cls(settings, fraction, size, chosen.name, chosen.note, made.tf32, counted)

    def shape(self, model: Model) -> Shape:
        anatomy = model.anatomy
        return Shape(anatomy.layers, anatomy.heads, self.settings.length, self.settings.keeps_maps)

    def choice(self, model: Model) -> Choice:
        """The kernel, for a model on this machine."""
        return choose(self.kernel, self._counting(model), model.device, tf32=self.tf32)

    def check(self, model: Model) -> None:
        """Refuse a kernel that counts otherwise on this machine than plain torch does."""
        self._tried(model)

    def _tried(self, model: Model) -> Choice:
        """The kernel, if it counts as plain torch does; one that was not asked for by name is else left for another."""
        chosen, counting = self.choice(model), trial.of_one_layer(self._counting(model))
        if chosen.name not in FASTEST.values():
            return chosen
        about = chosen.name, counting, self.tf32
        if about not in model.tried:
            tallier = choose(chosen.name, counting, model.device, tf32=self.tf32).make()
            model.tried[about] = trial.disagreement(tallier, counting, model, rounded=self.tf32)
        wrong = model.tried[about]
        if not wrong:
            return chosen
        if self.kernel != AUTO:
            raise StudyError(f"the kernel {chosen.name} cannot do this: {wrong}: choose --kernel vectorized")
        return replace(replace(self, kernel="vectorized").choice(model), note=f"not {chosen.name}: {wrong}")

    def _counting(self, model: Model) -> Counting:
        anatomy, settings = model.anatomy, self.settings
        return Counting(self.shape(model), settings.theta, settings.tau, self.fraction, anatomy.causal, anatomy.numbers)

    def identity(self, model: Model, corpus: Corpus) -> dict[str, Any]:
        """Everything that must not change while a study is under way, by the names that people know."""
        settings = asdict(self.settings) | {"maps": self.settings.keeps_maps, "sample": self.fraction}
        return {
            "model": model.name,
            "weight_hash": model.weight_hash,
            "stack": model.anatomy.stack,
            "dtype": model.dtype,
            "device": model.device.type,
            "tokenizer": model.tokens.name,
            **settings,
            "batch_size": self.batch_size,
            "kernel": self.kernel,
            "tf32": self.tf32,
            "limit": corpus.limit or "none",
            **{name: value for name, value in asdict(corpus.options).items() if name != "skip_broken"},
            "headscope": manifest.of_run()["headscope"],
            "texts": [source.name for source in corpus.sources],
        }

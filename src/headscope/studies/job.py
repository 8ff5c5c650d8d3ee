"""What a study computes, decided once: every worker, and every run that takes it up again, does the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headscope import manifest
from headscope.corpus.documents import Corpus
from headscope.errors import StudyError
from headscope.model.model import Model
from headscope.studies.memory import Room
from headscope.studies.precision import uses_tf32
from headscope.studies.settings import SAMPLE_FRACTION, SMALL_CORPUS, Settings
from headscope.tally.kernels import Choice, choose
from headscope.tally.quantities import Shape
from headscope.tally.tally import Counting

NAMED = 3
"""files that a message names"""


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
        chosen = made.choice(model)
        return cls(settings, fraction, size, chosen.name, chosen.note, made.tf32, counted)

    def shape(self, model: Model) -> Shape:
        anatomy = model.anatomy
        return Shape(anatomy.layers, anatomy.heads, self.settings.length, self.settings.keeps_maps)

    def choice(self, model: Model) -> Choice:
        """The kernel, for a model on this machine."""
        anatomy, settings = model.anatomy, self.settings
        counting = Counting(
            self.shape(model), settings.theta, settings.tau, self.fraction, anatomy.causal, anatomy.numbers
        )
        return choose(self.kernel, counting, model.device, tf32=self.tf32)

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


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed between two identities, in words."""
    words = [
        f"{name} ({before.get(name)} before, {value} now)"
        for name, value in now.items()
        if name != "texts" and before.get(name) != value
    ]
    return words + _other_texts(list(before.get("texts", [])), list(now.get("texts", [])))


def _other_texts(before: list[str], now: list[str]) -> list[str]:
    if before == now:
        return []
    gone, new = [name for name in before if name not in set(now)], [name for name in now if name not in set(before)]
    if not gone and not new:
        return ["texts (the same files in another order)"]
    said = [f"{_named(names)} {what}" for names, what in ((gone, "no longer there"), (new, "new")) if names]
    return [f"texts ({'; '.join(said)})"]


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")

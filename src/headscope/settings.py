"""Settings of a study. Every field is a command-line option and a keyword argument of `headscope.study`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from headscope.corpus.windows import SentenceMode, WindowMode, WindowSpec
from headscope.errors import StudyError
from headscope.similarity import TAU, THETA

MAX_SMALL_CORPUS = 2000
"""Largest number of documents for which all texts are in the sample."""
SAMPLE_FRACTION = 0.05
MAX_LENGTH_WITH_MAPS = 256
"""Largest window length for which N×N maps are kept by default."""
MAX_LENGTH = 2**20
MAX_BATCH_SIZE = 2**20
AUTO = "auto"
KERNELS = {
    "triton": "on NVIDIA GPUs",
    "compiled": "on CPUs",
    "vectorized": "anywhere torch runs",
    "reference": "the definition in plain loops, slow",
}


@dataclass(frozen=True)
class Settings:
    """Options of a study; the defaults follow the paper."""

    length: int = 128
    windows: WindowMode = "first"
    sentences: SentenceMode = "tokens"
    min_tokens: int = 2
    theta: float = THETA
    tau: float = TAU
    sample: float | None = None
    """fraction of the texts in the sample; None: 1 where the corpus is known to be small, else 0.05"""
    maps: bool | None = None
    """keep N×N maps; None: for windows of up to 256 tokens"""
    skip_broken: bool = False
    """skip and count documents that the tokenizer cannot process; otherwise the first of them is an error"""

    def __post_init__(self) -> None:
        if self.length < 3:
            raise StudyError(f"length is {self.length}: a window needs at least 3 tokens")
        if self.length > MAX_LENGTH:
            raise StudyError(f"length is {self.length}: a window has at most {MAX_LENGTH:,} tokens")
        for name, choices in (("windows", get_args(WindowMode)), ("sentences", get_args(SentenceMode))):
            if getattr(self, name) not in choices:
                raise StudyError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(choices)}")
        for name in ("theta", "tau"):
            if not 0 < getattr(self, name) < 1:
                raise StudyError(f"{name} is {getattr(self, name)}: it is a share of the maximum, between 0 and 1")
        if self.sample is not None and not 0 <= self.sample <= 1:
            raise StudyError(f"sample is {self.sample}: it is a fraction of the texts, from 0 to 1")
        if self.min_tokens < 1:
            raise StudyError(f"min_tokens is {self.min_tokens}: at least 1")

    def choose_sample(self, expected: int | None, limit: int | None) -> float:
        """Return the fraction of the texts in the sample.

        Args:
            expected: Number of documents, if it is at most `MAX_SMALL_CORPUS`.
            limit: Number of documents that are read at most.
        """
        if self.sample is not None:
            return self.sample
        is_small = expected is not None or (limit is not None and limit <= MAX_SMALL_CORPUS)
        return 1.0 if is_small else SAMPLE_FRACTION

    @property
    def cut(self) -> WindowSpec:
        return WindowSpec(self.length, self.windows, self.sentences, self.min_tokens, skip_broken=self.skip_broken)

    @property
    def keeps_maps(self) -> bool:
        return self.length <= MAX_LENGTH_WITH_MAPS if self.maps is None else self.maps


def check_run_options(batch_size: int | None, kernel: str, checkpoint_interval: float) -> None:
    """Raise a StudyError for invalid run options. Whether a kernel works here is checked when the engine starts."""
    if batch_size is not None and not 1 <= batch_size <= MAX_BATCH_SIZE:
        raise StudyError(f"batch size is {batch_size}: from 1 to {MAX_BATCH_SIZE:,}")
    if kernel not in (AUTO, *KERNELS):
        raise StudyError(f"unknown kernel {kernel!r}; there are: {', '.join((AUTO, *KERNELS))}")
    if not checkpoint_interval >= 0:
        raise StudyError(f"{checkpoint_interval} seconds between checkpoints: at least 0")

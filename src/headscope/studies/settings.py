"""What a study is asked to do. Every field is an option of the command line and of `headscope.study`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from headscope.corpus.windows import Cut, SentenceMode, WindowMode
from headscope.errors import StudyError
from headscope.similarity import TAU, THETA

SMALL_CORPUS = 2000
"""Up to so many documents, all texts are in the sample."""
SAMPLE_FRACTION = 0.05
LARGEST_MAPS = 256
"""N×N maps are kept for windows up to this length unless asked for."""


@dataclass(frozen=True)
class Settings:
    """METHOD §1 and §2, its defaults."""

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
    """documents that the tokenizer cannot take are skipped and counted; else the first of them is an error"""

    def __post_init__(self) -> None:
        if self.length < 3:
            raise StudyError(f"length is {self.length}: a window needs at least 3 tokens")
        for name, kinds in (("windows", get_args(WindowMode)), ("sentences", get_args(SentenceMode))):
            if getattr(self, name) not in kinds:
                raise StudyError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(kinds)}")
        for name in ("theta", "tau"):
            if not 0 < getattr(self, name) < 1:
                raise StudyError(f"{name} is {getattr(self, name)}: it is a share of the maximum, between 0 and 1")
        if self.sample is not None and not 0 <= self.sample <= 1:
            raise StudyError(f"sample is {self.sample}: it is a fraction of the texts, from 0 to 1")
        if self.min_tokens < 1:
            raise StudyError(f"min_tokens is {self.min_tokens}: at least 1")

    @property
    def cut(self) -> Cut:
        return Cut(self.length, self.windows, self.sentences, self.min_tokens, skip_broken=self.skip_broken)

    @property
    def keeps_maps(self) -> bool:
        return self.length <= LARGEST_MAPS if self.maps is None else self.maps

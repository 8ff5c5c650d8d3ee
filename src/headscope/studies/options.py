"""`Settings` as keyword arguments, for type checkers."""

from __future__ import annotations

from typing import TypedDict

from headscope.corpus.windows import SentenceMode, WindowMode


class Options(TypedDict, total=False):
    """What `headscope.study` takes by name."""

    length: int
    windows: WindowMode
    sentences: SentenceMode
    min_tokens: int
    theta: float
    tau: float
    sample: float | None
    maps: bool | None
    skip_broken: bool

# ruff: noqa: D103
"""`headscope …` with something changed underneath it: python soak/child.py HOOKS study …

Hooks, with commas between them: `blank` draws one empty figure instead of all; `slow` reads slowly; `clock` makes the
time of day jump back and forth; `memory` runs out of it in one batch; `tokenizer` breaks at one document.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

SLOW = 0.05
"""seconds a document"""
DAYS = 86400.0
REFUSED = 8
"""the batch at which memory runs out"""


def clock() -> None:
    real, jumps = time.time, random.Random(0)
    time.time = lambda: real() + jumps.uniform(-400, 400) * DAYS


def blank() -> None:
    from matplotlib.figure import Figure

    from headscope import output

    output.draw_all = lambda source: {"11b": Figure(figsize=(1, 1))}


def slow() -> None:
    from headscope.corpus.shards import Shard

    real = Shard._documents

    def documents(self: Shard) -> Iterator[Any]:
        for document in real(self):
            time.sleep(SLOW)
            yield document

    Shard._documents = documents


def memory() -> None:
    import torch

    from headscope.model.model import Model

    real, batches = Model.observe, iter(range(REFUSED + 1))

    def observe(self: Model, *given: Any) -> None:
        if next(batches, None) == REFUSED:
            raise torch.OutOfMemoryError("CUDA out of memory")
        real(self, *given)

    Model.observe = observe


def tokenizer() -> None:
    from headscope.errors import CorpusError
    from headscope.model.model import Model

    real = Model.windows_of

    def windows_of(self: Model, documents: Any, cut: Any) -> Iterator[Any]:
        for document in documents:
            if document.name.endswith("e.jsonl:20"):
                raise CorpusError(f"{document.name}: the tokenizer fails on it")
            yield from real(self, [document], cut)

    Model.windows_of = windows_of


HOOKS = {"clock": clock, "blank": blank, "slow": slow, "memory": memory, "tokenizer": tokenizer}

if __name__ == "__main__":
    asked = sys.argv.pop(1).split(",")
    for name in sorted(asked, key=lambda name: name != "clock"):  # before anything is imported that asks for the time
        HOOKS[name]()
    from headscope.cli import main

    main()

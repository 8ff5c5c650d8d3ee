# ruff: noqa: D103
"""`headscope …` with something changed underneath it: python soak/child.py HOOKS study …

Hooks, with commas between them: `chunks` makes small chunks and hands the sums of each over at once; `blank` draws one
empty figure instead of all; `slow` reads slowly; `clock` makes the time of day jump back and forth; `memory` runs out
of it in one batch; `tokenizer` breaks at one document.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from typing import Any

SLOW = 0.05
"""seconds per document"""
DAYS = 86400.0
REFUSED = 8
"""the batch at which memory runs out"""
CHUNK_DOCUMENTS, CHUNK_BYTES = 16, 4096
"""of a small chunk; by default all texts of the soak would be one or two"""
BROKEN = "Number 269."
"""how the document ends at which the tokenizer breaks, the 20th of e.jsonl"""


def clock() -> None:
    real, jumps = time.time, random.Random(0)
    time.time = lambda: real() + jumps.uniform(-400, 400) * DAYS


def blank() -> None:
    from matplotlib.figure import Figure

    from headscope import output_folder

    output_folder.draw_all = lambda source: {"11b": Figure(figsize=(1, 1))}


def chunks() -> None:
    from headscope.corpus.chunks import ChunkSize
    from headscope.run import local_engine, plan

    plan.choose_chunk_size = lambda *_: ChunkSize(CHUNK_DOCUMENTS, CHUNK_BYTES)
    local_engine.FLUSH_SECONDS = 0.0


def slow() -> None:
    from headscope.run import pipeline

    read_chunk = pipeline.read_chunk

    def read_slowly(*arguments: Any) -> Iterator[Any]:
        for document in read_chunk(*arguments):
            time.sleep(SLOW)
            yield document

    pipeline.read_chunk = read_slowly


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

    real = Model.cut_documents

    def cut_documents(self: Model, documents: Any, cut: Any) -> Iterator[Any]:
        for document in documents:
            if document.text.endswith(BROKEN):
                raise CorpusError(f"{document.name}: the tokenizer fails on it")
            yield from real(self, [document], cut)

    Model.cut_documents = cut_documents


HOOKS = {
    "clock": clock, "chunks": chunks, "blank": blank, "slow": slow, "memory": memory, "tokenizer": tokenizer,
}  # fmt: skip

if __name__ == "__main__":
    asked = sys.argv.pop(1).split(",")
    for name in sorted(asked, key=lambda name: name != "clock"):  # before anything is imported that asks for the time
        HOOKS[name]()
    from headscope.__main__ import main

    main()

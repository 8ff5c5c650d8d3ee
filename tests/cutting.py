"""Studies that are cut and taken up again, and when they are the same as one that was not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope
from headscope.corpus import shards
from headscope.corpus.formats import Document
from headscope.errors import Stopped
from headscope.model.model import Model
from headscope.studies.checkpoint import packed
from headscope.studies.result import Study
from headscope.studies.standing import Standing
from headscope.tally.quantities import Shape
from tests import tiny

WORDS = [
    "the cat sat.",
    "a owl",
    "the cat, a cat.",
    "on the owl sat a cat!",
    "",
    "cat",
    "a owl sat on the cat. the owl.",
]


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PORTION", 7)
    monkeypatch.setattr(shards, "SHARD_BYTES", 500)


def texts(count: int, seed: int = 0) -> list[str]:
    chosen = np.random.default_rng(seed)
    return [" ".join(chosen.choice(WORDS, size=chosen.integers(0, 6))) for _ in range(count)]


def files(folder: Path, counts: list[int]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    made = []
    for number, count in enumerate(counts):
        made.append(folder / f"{number:02}.jsonl")
        made[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count, number)), "utf-8")
    return made


def assert_equal(one: Study, other: Study) -> None:
    """Every integer the same, every real to 1e-12, and the manifests tell the same of the texts."""
    assert set(one.data.variables) == set(other.data.variables)
    for name, variable in one.data.variables.items():
        there = other.data[name].values
        if variable.dtype.kind == "f":
            np.testing.assert_allclose(variable.values, there, rtol=1e-12, atol=1e-12, err_msg=str(name))
        else:
            np.testing.assert_array_equal(variable.values, there, err_msg=str(name))
    for name in ("corpus_hash", "documents_read", "documents_skipped", "excerpts", "sample", "complete", "batch_size"):
        assert one.manifest[name] == other.manifest[name], name


def saved_model(folder: Path) -> Path:
    """A tiny model as people have it on their disk."""
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def checkpoint_of(shape: Shape) -> bytes:
    """What a checkpoint holds behind its hash."""
    standing = Standing.empty(shape, 3)
    standing.tally.attend(7, np.ones((20, shape.layers), dtype=np.int64))
    standing.account.note(Document("the cat sat.", "a"))
    standing.account.excerpts[0, 0, 0] = {"name": "a", "text": "the cat sat."}
    standing.done.close(0, 0, 5)
    standing.done.count(0, 1, [3, 4])
    standing.done.stamps[0] = "ab"
    standing.seconds["opening"] = 1.5
    return packed({"theta": 0.3, "texts": ["a"]}, standing)[-1]


def stopping(after: int) -> Callable[[Any], None]:
    """Presses Ctrl-C when so many steps were told of."""
    told = iter(range(after))

    def stop(_: Any) -> None:
        if next(told, None) is None:
            raise KeyboardInterrupt

    return stop


def cut(model: Model, documents: Any, folder: Path, cuts: list[int], **options: Any) -> Study:
    """A study that is ended after so many steps, again and again, and then runs to its end."""
    for after in cuts:
        try:
            return headscope.study(model, documents, checkpoints=folder, progress=stopping(after), **options)
        except Stopped:
            continue
    return headscope.study(model, documents, checkpoints=folder, **options)


OPTIONS = {"length": 24, "sample": 0.5, "batch_size": 3}

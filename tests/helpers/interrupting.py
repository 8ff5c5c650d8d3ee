"""Helpers for studies that are interrupted and resumed, and for comparing them with uninterrupted ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headscope
from headscope.corpus.chunks import Chunk, ChunkSize
from headscope.corpus.document import Document
from headscope.errors import Stopped
from headscope.model.model import Model
from headscope.run import local_engine, plan
from headscope.run.checkpoint import pack_checkpoint
from headscope.run.state import ChunkProgress, RunState
from headscope.studies.result import Study
from headscope.tally.quantities import Shape
from tests.helpers import tiny

WORDS = [
    "the cat sat.",
    "a owl",
    "the cat, a cat.",
    "on the owl sat a cat!",
    "",
    "cat",
    "a owl sat on the cat. the owl.",
]


SMALL = ChunkSize(documents=4, bytes=300)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few documents, sections of eight, each handed over at once."""
    monkeypatch.setattr(plan, "choose_chunk_size", lambda *more: SMALL)
    monkeypatch.setattr(local_engine, "FLUSH_SECONDS", 0.0)


def texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(0, 6))) for _ in range(count)]


def files(folder: Path, counts: list[int]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for number, count in enumerate(counts):
        paths.append(folder / f"{number:02}.jsonl")
        paths[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(count, number)), "utf-8")
    return paths


def assert_equal(first: Study, second: Study) -> None:
    """Assert that all integers are equal, all reals to 1e-12, and that the manifests describe the same texts."""
    assert set(first.data.variables) == set(second.data.variables)
    for name, variable in first.data.variables.items():
        expected = second.data[name].values
        if variable.dtype.kind == "f":
            np.testing.assert_allclose(variable.values, expected, rtol=1e-12, atol=1e-12, err_msg=str(name))
        else:
            np.testing.assert_array_equal(variable.values, expected, err_msg=str(name))
    for name in ("corpus_hash", "documents_read", "documents_skipped", "excerpts", "sample", "complete", "batch_size"):
        assert first.manifest[name] == second.manifest[name], name


def save_tiny_model(folder: Path) -> Path:
    """Save a tiny model and its tokenizer as files."""
    tiny.network("bert").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def make_checkpoint_payload(shape: Shape) -> bytes:
    """Return the part of a checkpoint file after its hash."""
    state, document = RunState.empty(shape), Document("the cat sat.", "a")
    state.sums.attend(7, np.ones((20, shape.layers), dtype=np.int64))
    state.stats.add_document(document, 0)
    state.stats.add_excerpt((0, 0), document)
    state.batch_size = 3
    state.chunks = [Chunk(0, 0, 1, 0, 300), Chunk(1, 0, 1, 300), *(Chunk(k, k - 1, k) for k in range(2, 6))]
    state.source_sizes = [700, 1, 1, 1, -1]
    state.completed = {0, 1, 5}
    state.in_progress[2] = ChunkProgress(3, 2**100)
    state.versions[0] = "ab"
    state.kernels["numba"] = ""
    state.devices.add("cpu")
    state.seconds["opening"] = 1.5
    return pack_checkpoint({"theta": 0.3, "texts": ["a"]}, SMALL, state)[-1]


def stop_after(after: int) -> Callable[[Any], None]:
    """Return a progress callback that raises KeyboardInterrupt after `after` reports."""
    reports = iter(range(after))

    def stop(_: Any) -> None:
        if next(reports, None) is None:
            raise KeyboardInterrupt

    return stop


def run_interrupted(model: Model, documents: Any, folder: Path | str, cuts: list[int], **options: Any) -> Study:
    """Run a study that is interrupted after each of these numbers of reports, and then runs to its end."""
    for after in cuts:
        try:
            return headscope.study(model, documents, checkpoint_dir=folder, progress=stop_after(after), **options)
        except Stopped:
            continue
    return headscope.study(model, documents, checkpoint_dir=folder, **options)


OPTIONS: dict[str, Any] = {"length": 24, "sample": 0.5, "batch_size": 3}


def write_parquet(path: Path, groups: list[list[str]]) -> Path:
    """Write a Parquet file with these texts in its row groups."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for group in groups:
            writer.write_table(pa.table({"text": group}, schema), row_group_size=max(1, len(group)))
    return path


def make_jsonl(folder: Path) -> Path:
    return files(folder, [60])[0]


def make_files(folder: Path) -> list[Path]:
    return files(folder, [20, 0, 3, 30, 1])


def make_parquet(folder: Path) -> Path:
    chosen = texts(60)
    return write_parquet(folder / "a.parquet", [chosen[k : k + 5] for k in range(0, 60, 5)])


def make_gz(folder: Path) -> Path:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts(60))
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(rows.encode(), mtime=0))
    return path


def make_folder(folder: Path) -> Path:
    for number, text in enumerate(texts(60)):
        (folder / f"{number:02}.txt").write_text(text, "utf-8")
    return folder


CORPORA: dict[str, Callable[[Path], Path | list[Path]]] = {
    "JSONL in many chunks": make_jsonl,
    "several JSONL files": make_files,
    "Parquet in many row groups": make_parquet,
    "gz in many sections": make_gz,
    "folder of small files": make_folder,
}
"""Corpora of about sixty texts, written to an empty folder. With `small_chunks` each has many chunks, or sections."""

# ruff: noqa: D103
"""Texts of all kinds, made of the bundled ones; the same for the same seed."""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headscope.corpus import formats

WORDS = (0, 1, 2, 5, 12, 30, 60, 200)
"""of a document"""


def texts(count: int, seed: int = 0, sizes: tuple[int, ...] = WORDS) -> list[str]:
    words = " ".join(document.text for document in formats.load_openings()).split()
    chosen = random.Random(seed)
    made = []
    for number in range(count):
        size = chosen.choice(sizes)
        start = chosen.randrange(len(words) - size)
        made.append(" ".join([*words[start : start + size], *([f"Number {number}."] if size else [])]))
    return made


def lines(path: Path, held: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in held), "utf-8")
    return path


def mixed(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Their names in the folder: JSON lines, packed ones, a folder of texts, CSV, Parquet, JSON lines again."""
    folder.mkdir(parents=True)
    held = texts(count, seed)
    parts = [held[k * count // 6 : (k + 1) * count // 6] for k in range(6)]
    lines(folder / "a.jsonl", parts[0])
    second = folder / "b.jsonl.gz"
    second.write_bytes(gzip.compress(lines(folder / "b.jsonl", parts[1]).read_bytes()))
    (folder / "b.jsonl").unlink()
    (folder / "notes").mkdir()
    for number, text in enumerate(parts[2]):
        (folder / "notes" / f"{number:04}.txt").write_text(text or " ", "utf-8")
    with open(folder / "c.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["number", "text"], *([str(k), text] for k, text in enumerate(parts[3]))])
    pq.write_table(pa.table({"text": parts[4]}), folder / "d.parquet")
    lines(folder / "e.jsonl", parts[5])
    return ["a.jsonl", "b.jsonl.gz", "notes", "c.csv", "d.parquet", "e.jsonl"]

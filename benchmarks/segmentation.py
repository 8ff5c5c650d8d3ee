"""How well texts are cut where their subject changes: heads, embeddings of the same model, and the classics.

    python benchmarks/segmentation.py [FILE] [--model NAME …] [--segments 4 10 20] [--limit N] [--json FILE]
    python benchmarks/segmentation.py --join TEXTS [--limit N] …
    python benchmarks/segmentation.py --growth [--model NAME]
    python benchmarks/segmentation.py --docs benchmarks/results/segmentation-*.json

FILE has a JSON object in each line, its `segments` a list of lists of sentences (Choi's benchmark has ten of 3 to 15
sentences); by default the development documents beside the repository, where they are. Documents of 4 segments are
parts of those of 10, and those of 20 are two joined. Pk and WindowDiff in percent, lower is better, mean over
documents; ± is half of a 95 % interval from 2,000 draws of documents.

With `--join`, documents are made as Choi made his, of any texts: ten excerpts of 3 to 11 sentences, each from another
text. Nothing was ever chosen by looking at such documents.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import headscope
from headscope.segmentation import pieces
from headscope.segmentation.metrics import pk, window_diff
from measuring.segment_tables import SECTIONS, growth_table, quality_table
from measuring.segmenters import CLASSICS, Cut, Ways
from measuring.tables import DOCS, machine, read_all, save, write_page

FILE = Path(__file__).parent.parent.parent / "shared" / "data" / "choi-dev.jsonl.gz"
DRAWS = 2000
EXCERPT, JOINED = (3, 11), 100
"""sentences of an excerpt, and documents that are made where no number is asked for"""
LENGTHS = (100, 200, 400, 800, 1600)
CLASSES = {"below 5": (0, 5), "5 to 8": (5, 8), "8 to 10": (8, 10), "above 10": (10, np.inf)}
"""documents by the mean length of their segments, in sentences"""


@dataclass(frozen=True)
class Text:
    """A document and its true boundaries."""

    sentences: list[str]
    boundaries: list[int]

    @classmethod
    def of(cls, segments: Sequence[Sequence[str]]) -> Text:
        ends = np.cumsum([len(part) for part in segments])
        return cls([sentence for part in segments for sentence in part], ends[:-1].tolist())

    @property
    def count(self) -> int:
        return len(self.boundaries) + 1


def read(path: Path, limit: int | None) -> list[list[list[str]]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        found = [json.loads(line)["segments"] for line in lines if line.strip()]
    return found[:limit]


def joined(source: str, limit: int) -> list[list[list[str]]]:
    """Documents of ten excerpts, 3 to 11 sentences each, from ten different texts; the same ones every time."""
    pool = []
    for document in headscope.documents(source):
        edges = pieces.find_sentence_edges(document.text)
        sentences = [" ".join(document.text[a:b].split()) for a, b in pairwise(edges)]
        if len(sentences) >= EXCERPT[1]:
            pool.append(sentences)
    random = np.random.default_rng(0)
    found = []
    for _ in range(limit):
        parts = []
        for k in random.choice(len(pool), 10, replace=False):
            size = int(random.integers(EXCERPT[0], EXCERPT[1] + 1))
            start = int(random.integers(0, len(pool[k]) - size + 1))
            parts.append(pool[k][start : start + size])
        found.append(parts)
    return found


def texts_of(documents: list[list[list[str]]], segments: int) -> list[Text]:
    """Documents of so many segments: parts of those there are, or several joined."""
    if segments == 10:
        return [Text.of(document) for document in documents]
    if segments < 10:
        parts = [d[k : k + segments] for d in documents for k in range(0, len(d) - segments + 1, segments)]
        return [Text.of(part) for part in parts[::2]]
    together = segments // 10
    groups = [documents[k : k + together] for k in range(0, len(documents) - together + 1, together)]
    return [Text.of([part for document in group for part in document]) for group in groups]


def errors(texts: list[Text], cut: Cut, *, known: bool) -> tuple[Any, float]:
    """(texts, 2): Pk and WindowDiff, and the mean number of segments found."""
    rows, counts = [], []
    for text in texts:
        found = list(cut(text.sentences, text.count if known else None))
        n = len(text.sentences)
        rows.append((100 * pk(text.boundaries, found, n), 100 * window_diff(text.boundaries, found, n)))
        counts.append(len(found) + 1)
    return np.array(rows), float(np.mean(counts))


def summary(rows: Any) -> dict[str, float]:
    drawn = np.random.default_rng(0).integers(0, len(rows), size=(DRAWS, len(rows)))
    low, high = np.percentile(rows[drawn].mean(axis=1), [2.5, 97.5], axis=0)
    mean = rows.mean(axis=0)
    return {
        "pk": float(mean[0]),
        "window_diff": float(mean[1]),
        "pk_half": float(high[0] - low[0]) / 2,
        "window_diff_half": float(high[1] - low[1]) / 2,
    }


def by_length(texts: list[Text], rows: Any) -> dict[str, dict[str, float]]:
    mean = np.array([len(text.sentences) / text.count for text in texts])
    found = {}
    for name, (low, high) in CLASSES.items():
        chosen = (mean >= low) & (mean < high)
        if chosen.any():
            found[name] = {"documents": int(chosen.sum()), "pk": float(rows[chosen, 0].mean())}
    return found


def measured(texts: list[Text], cut: Cut) -> dict[str, Any]:
    start = time.perf_counter()
    known, _ = errors(texts, cut, known=True)
    seconds = (time.perf_counter() - start) / len(texts)
    made = {
        "known": summary(known),
        "by_length": {"known": by_length(texts, known)},
        "milliseconds": 1000 * seconds,
    }
    try:
        free, count = errors(texts, cut, known=False)
    except NotImplementedError:
        return made
    made["by_length"]["unknown"] = by_length(texts, free)
    return made | {"unknown": summary(free), "segments_found": count}


def quality(asked: argparse.Namespace) -> dict[str, Any]:
    documents = joined(asked.join, asked.limit or JOINED) if asked.join else read(asked.file, asked.limit)
    texts = {segments: texts_of(documents, segments) for segments in asked.segments}
    result: dict[str, Any] = {
        "kind": "segmentation",
        "file": f"excerpts of {Path(asked.join).name}, joined" if asked.join else asked.file.name,
        "documents": {str(segments): len(held) for segments, held in texts.items()},
        "classics": {},
        "models": {},
        "machine": machine("cpu"),
    }
    for name, cut in CLASSICS.items():
        result["classics"][name] = {str(k): measured(held, cut) for k, held in texts.items()}
    for name in asked.model:
        ways = Ways.of(headscope.load(name))
        ways.read([text.sentences for held in texts.values() for text in held])
        result["models"][Path(name).name] = {
            way: {str(k): measured(held, cut) for k, held in texts.items()} for way, cut in ways.each().items()
        }
    print(quality_table(result))
    return result


def growth(asked: argparse.Namespace) -> dict[str, Any]:
    """Seconds to cut one text, by its length: all of it, from the sentences to the segments."""
    documents = read(asked.file, None)
    pool = [sentence for document in documents for part in document for sentence in part]
    rows = []
    model = headscope.load(asked.model[0])
    headscope.segment(model, pool[:50])  # the background, and what is compiled or loaded at first
    for n in LENGTHS:
        start = time.perf_counter()
        headscope.segment(model, pool[:n])
        whole = time.perf_counter() - start
        words = sum(len(sentence.split()) for sentence in pool[:n])
        rows.append({"sentences": n, "words": words, "seconds": whole})
    result = {
        "kind": "segmentation-growth",
        "model": Path(asked.model[0]).name,
        "rows": rows,
        "machine": machine("cpu"),
    }
    print(growth_table(result))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--model", nargs="+", default=["minilm"])
    parser.add_argument("--segments", nargs="+", type=int, default=[10, 4, 20])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--join", metavar="TEXTS", help="make documents of excerpts from these texts")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", nargs="+", type=Path, help="write the tables of docs/segmentation.md from results")
    asked = parser.parse_args()
    if asked.docs:
        write_page(DOCS / "segmentation.md", SECTIONS, read_all(asked.docs))
        return
    if not asked.join and asked.file == FILE and not FILE.is_file():
        print("segmentation: skipped, there are no documents: name a file of them")
        return
    if not asked.join and not asked.file.is_file():
        parser.error(f"{asked.file} is not there: name a file whose lines hold `segments`, lists of lists of sentences")
    result = growth(asked) if asked.growth else quality(asked)
    if asked.json:
        save(result, asked.json)


if __name__ == "__main__":
    main()

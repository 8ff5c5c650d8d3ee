"""Small treebanks in CoNLL-U, of words of the tests' own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Word = tuple[str, int, str]
"""form, number of the head, relation"""
SENTENCE: list[Word] = [
    ("the", 2, "det"),
    ("cat", 5, "nsubj"),
    ("and", 4, "cc"),
    ("owl", 2, "conj"),
    ("sat", 0, "root"),
    (".", 5, "punct"),
]


def as_line(number: int | str, form: str, head: int | str = "_", relation: str = "_", misc: str = "_") -> str:
    """Return a line of ten columns."""
    return "\t".join([str(number), form, "_", "_", "_", "_", str(head), relation, "_", misc])


def as_sentence(words: Sequence[Word]) -> str:
    """Return the lines of a sentence, and the empty line after it."""
    lines = [as_line(number, *word) for number, word in enumerate(words, start=1)]
    return "\n".join([*lines, "", ""])


def as_treebank(documents: Sequence[Sequence[Sequence[Word]]]) -> str:
    """Return documents of sentences as CoNLL-U."""
    return "".join(
        f"# newdoc id = d{number}\n" + "".join(as_sentence(sentence) for sentence in sentences)
        for number, sentences in enumerate(documents)
    )


def draw_documents(count: int, seed: int = 0) -> list[list[list[Word]]]:
    """Return documents of random sentences, each with random heads and relations."""
    random = np.random.default_rng(seed)
    return [[_draw_sentence(random) for _ in range(random.integers(1, 4))] for _ in range(count)]


def _draw_sentence(random: np.random.Generator) -> list[Word]:
    size = int(random.integers(2, 8))
    words: list[Word] = []
    for number in range(1, size + 1):
        head = int(random.integers(0, size + 1))
        relation = str(random.choice(["det", "nsubj", "amod", "conj"])) if head not in (0, number) else "root"
        words.append(
            (str(random.choice(["the", "cat", "owl", "sat", "mat"])), 0 if relation == "root" else head, relation)
        )
    return words


def write_treebanks(folder: Path, counts: list[int]) -> list[Path]:
    """Write a treebank of so many documents each."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:02}.conllu" for number in range(len(counts))]
    for seed, (path, count) in enumerate(zip(paths, counts, strict=True)):
        path.write_text(as_treebank(draw_documents(count, seed)), "utf-8")
    return paths
